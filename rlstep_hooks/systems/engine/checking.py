"""Many launch files at once, as a pull request changes them: what each means now, what it meant before, and where a finding stands."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.files import SCRIPTS, edited
from rlstep_hooks.launch.text import LaunchError, NoLaunchError, Place
from rlstep_hooks.planning.checked import Checked, Placed
from rlstep_hooks.planning.comparison import compare
from rlstep_hooks.systems.engine.launch_search import find_launch
from rlstep_hooks.systems.engine.launch_settings import CONFIGS
from rlstep_hooks.systems.engine.launches import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rlstep_hooks.planning.comparison import QuantityDifference
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.launched import Options, Plan
    from rlstep_hooks.systems.engine.launch import Launch

SUFFIXES = (*SCRIPTS, *CONFIGS, ".py")
"""Ends of the names of files that may hold a launch."""


def check(
    paths: Iterable[str], options_of: Callable[[str], Options], *, before: Mapping[str, str] | None = None
) -> list[Checked]:
    """What some files mean as launches.

    Args:
        paths: The files.
        options_of: What completes the launch of a file.
        before: The texts of changed files as they were, to compare with; None to compare nothing.
    """
    return [_checked(path, options_of(path), before) for path in paths]


def _checked(path: str, options: Options, before: Mapping[str, str] | None) -> Checked:
    earlier, reason_before = _earlier(path, options, before) if before is not None else (None, "")
    try:
        launch = find_launch([path], options)
        plan = plan_of(launch, options)
    except NoLaunchError:
        return Checked(path=path)
    except (LaunchError, OSError) as error:
        place = error.place if isinstance(error, LaunchError) else None
        return Checked(path=path, reason=str(error), place=place, before=earlier, reason_before=reason_before)
    findings = tuple(Placed(finding=finding, place=_place(finding, launch, path)) for finding in plan.findings)
    differences: tuple[QuantityDifference, ...] = ()
    if earlier is not None and earlier.shown is not None and plan.shown is not None:
        differences = tuple(compare(_as_meant(earlier), _as_meant(plan)))
    return Checked(
        path=path, plan=plan, findings=findings, before=earlier, reason_before=reason_before, differences=differences
    )


def _as_meant(plan: Plan) -> Plan:
    """A plan with the schedule of its sizes, also where the framework refuses them."""
    return msgspec.structs.replace(plan, schedule=plan.shown)


def _earlier(path: str, options: Options, before: Mapping[str, str]) -> tuple[Plan | None, str]:
    """The plan of a file as it was, or why it had none."""
    try:
        with edited(before):
            return plan_of(find_launch([path], options), options), ""
    except (LaunchError, OSError) as error:
        return None, str(error)


def _place(finding: Finding, launch: Launch, path: str) -> Place:
    """The line of the setting that a finding speaks of, the longest name first; otherwise of the command."""
    said = " ".join((finding.observed, finding.fix, finding.expected, finding.why))
    settings = sorted(launch.given.values(), key=lambda setting: -len(setting.name))
    for setting in settings:
        names = {setting.name, setting.written.lstrip("-"), setting.name.rpartition(".")[2]}
        if setting.place.line and Path(setting.place.source).is_file() and any(len(n) > 3 and n in said for n in names):
            return setting.place
    command = launch.command.place
    return command if command.line else Place(path, 1, 1)


# What a revision had.


def changed_since(revision: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The files that differ from a revision, and what those that it has held there.

    Args:
        revision: A commit, branch or tag.
        folder: A folder of the repository.

    Returns:
        Paths of the files that are here, from that folder; the earlier texts by path.

    Raises:
        LaunchError: It is no repository, or has no such revision.
    """
    names = _git(folder, "diff", "--name-only", "--relative", "-z", revision, "--").split("\0")
    names += _git(folder, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    paths = sorted({name for name in names if name})
    texts = {}
    for name in paths:
        try:
            texts[str(folder / name)] = _git(folder, "show", f"{revision}:./{name}")
        except LaunchError:
            continue  # the revision does not have it
    return [str(folder / name) for name in paths if (folder / name).is_file()], texts


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"git cannot be asked: {error}") from None
    if done.returncode:
        raise LaunchError(
            f"git {' '.join(words[:1])}: {done.stderr.strip().splitlines()[0] if done.stderr else 'failed'}"
        )
    return done.stdout


def may_be_launches(paths: Sequence[str]) -> list[str]:
    """The paths whose names are those of scripts, configurations or Python files."""
    return [path for path in paths if path.endswith(SUFFIXES)]


def with_folders_opened(paths: Sequence[str]) -> list[str]:
    """Some paths, each folder among them replaced by the files below it that may be launches; hidden folders are left out."""
    found: list[str] = []
    for path in paths:
        if not Path(path).is_dir():
            found.append(path)
            continue
        below = (file.relative_to(path) for file in sorted(Path(path).rglob("*")) if file.is_file())
        shown = (file for file in below if not any(part.startswith(".") for part in file.parts))
        found += may_be_launches([str(Path(path, file)) for file in shown])
    return found
