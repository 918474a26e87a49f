"""`rlstep run -- ray job submit ...`: what to add to the job's runtime environment, because it does not inherit ours.

`ray job submit` starts its command on the cluster, in the cluster's environment. `rlstep run` never changes a command, so it prints
what to add and leaves that to the user.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.systems.injection import SITE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SINK = "RLSTEP_SINK"  # as in `session/ray_sink.py`; importing that would double the time that a command waits
_PASSED_ON = ("RLSTEP_ON_FAIL", "RLSTEP_SCALARS", _SINK)
_SUBMITS = re.compile(r"\bray\s+job\s+submit\b")
_LARGEST_SCRIPT = 1 << 20


class Submission(msgspec.Struct, frozen=True):
    """The runtime environment of a `ray job submit`."""

    given: dict[str, Any] | None
    """What the runtime environment says; None if it cannot be read here."""
    where: str = ""
    """Where it is given, such as "--runtime-env-json"; empty if it is not given."""


def needed(folder: Path, framework: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables that a job needs to be audited.

    Args:
        folder: The folder to record in, on a disk that all machines share unless they record through Ray.
        framework: Name of the system; empty if unknown.
        inherited: The environment of this process.
    """
    variables = {"RLSTEP_DIR": str(folder.absolute())}
    variables |= {name: inherited[name] for name in _PASSED_ON if name in inherited}
    from rlstep_hooks.systems.engine import index  # most commands submit no job, as below

    own = index.system_of(framework).ray_job if framework and index.exists(framework) else None
    if own is not None:
        variables |= own
    else:
        # Ray replaces ${NAME} by the machine's value (`update_envs` in ray/_private/utils.py, 2.60).
        variables["PYTHONPATH"] = f"{SITE}:${{PYTHONPATH}}"
    return variables


def submission(command: Sequence[str]) -> Submission | None:
    """The `ray job submit` of a command or of the script that it runs; None if there is none."""
    own = list(command[: command.index("--")]) if "--" in command else list(command)
    for index, word in enumerate(own):
        if Path(word).name == "ray" and own[index + 1 : index + 3] == ["job", "submit"]:
            return _given(own[index + 3 :])
    if any(_submits(Path(word)) for word in own):
        return Submission(None, "the script's `ray job submit`")
    return None


def _submits(path: Path) -> bool:
    if path.suffix not in (".sh", ".bash", ".slurm", ".sbatch"):
        return False
    try:
        with path.open(errors="replace") as file:
            return _SUBMITS.search(file.read(_LARGEST_SCRIPT).replace("\\\n", " ")) is not None
    except OSError:
        return False


def _given(options: list[str]) -> Submission:
    """The value of `--runtime-env-json` or `--runtime-env`; Ray accepts only one of them."""
    for name, read in (("--runtime-env-json", _json), ("--runtime-env", _yaml)):
        value = next((o.partition("=")[2] for o in options if o.startswith(f"{name}=")), None)
        if value is None and name in options[:-1]:
            value = options[options.index(name) + 1]
        if value is not None:
            found = read(value)
            return Submission(found if isinstance(found, dict) else None, name)
    return Submission({})


def _json(text: str) -> object:
    import json

    try:
        return json.loads(text)
    except ValueError:
        return None


def _yaml(path: str) -> object:
    import yaml

    try:
        return yaml.safe_load(Path(path).read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return None


def merged(given: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """A runtime environment with our variables added. The user's variables stay; our folder is put first in their PYTHONPATH."""
    theirs = {str(name): str(value) for name, value in (given.get("env_vars") or {}).items()}
    both = {**variables, **theirs}
    if "PYTHONPATH" in variables and "PYTHONPATH" in theirs:
        paths = [str(SITE), *filter(None, theirs["PYTHONPATH"].split(os.pathsep))]
        both["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return {**given, "env_vars": both}


def advice(command: Sequence[str], folder: Path, framework: str, inherited: Mapping[str, str]) -> str:
    """What to add to a `ray job submit`; empty for other commands and if nothing is missing."""
    found = submission(command)
    if found is None:
        return ""
    import json  # most commands submit no job, and wait for this module before they start

    variables = needed(folder, framework, inherited)
    begin = "rlstep: a Ray job does not inherit this environment. To have it audited, "
    if found.given is None:
        text = f"{begin}add to env_vars in {found.where}:\n  {json.dumps(variables)}"
    else:
        complete = merged(found.given, variables)
        if complete == found.given:
            return ""
        verb = f"put this in place of its {found.where}" if found.where else "add this to `ray job submit`"
        text = f"{begin}{verb}:\n  --runtime-env-json={shlex.quote(json.dumps(complete))}"
    share = f"have rlstep-hooks installed and share {folder.absolute()} (or record through Ray: {_SINK}=ray)"
    if _SINK in variables:
        share = (
            f"have rlstep-hooks installed; records are in {folder.absolute()} on the machine of the run's controller"
        )
    text += f"\nrlstep: all machines of the cluster must {share}"
    return text + (", at the path that PYTHONPATH names." if "PYTHONPATH" in variables else ".")
