"""`rlstep plan --all-versions`: the releases in which the numbers of a launch differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.comparison import QuantityDifference, compare
from rlstep_hooks.planning.launched import Plan
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.planning.words import number, printable
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.launch_search import find_launch
from rlstep_hooks.systems.engine.launches import plan_of
from rlstep_hooks.systems.engine.release import planned_releases

if TYPE_CHECKING:
    from rlstep_hooks.planning.launched import Options


def show(words: list[str], options: Options, *, as_json: bool = False) -> int:
    """Print the plan of each release, and where it parts from the release before.

    Returns:
        0 if a release accepts the launch, else 1.

    Raises:
        LaunchError: The launch cannot be read.
        OSError: A file cannot be read.
    """
    plans = plans_by_release(words, options)
    differences = differences_of(plans)
    if as_json:
        from rlstep_hooks.record.wire import to_json

        print(to_json({"releases": list(plans), "differences": differences}, indent=2).decode())
    else:
        print(printable("\n".join(lines_of(plans, differences))))
    return 0 if any(plan.schedule is not None for plan in plans.values()) else 1


def plans_by_release(words: list[str], options: Options) -> dict[str, Plan]:
    """The plan of a launch in each release that is planned, oldest first.

    Raises:
        LaunchError: It cannot be read, or its framework's releases are not told apart.
        OSError: A file cannot be read.
    """
    launch = find_launch(words, options)
    system = index.system_of(launch.framework)
    releases = planned_releases(system)
    if len(releases) < 2:
        raise LaunchError(f"{system.title}: one release is known, {releases[0]}")
    found: dict[str, Plan] = {}
    for release in releases:
        try:
            found[release] = plan_of(launch, msgspec.structs.replace(options, version=release))
        except LaunchError as error:
            found[release] = Plan(
                framework=system.name,
                title=system.title,
                version=release,
                source=launch.source,
                schedule=None,
                notes=(Note("assumes", error.reason),),
            )
    return found


def differences_of(plans: dict[str, Plan]) -> dict[str, list[QuantityDifference]]:
    """What differs in each release whose plan is not that of the accepted release before it."""
    found: dict[str, list[QuantityDifference]] = {}
    before: Plan | None = None
    for release, plan in plans.items():
        if plan.schedule is None:
            continue
        if before is not None and (differs := compare(before, plan)):
            found[release] = differs
        before = plan
    return found


def lines_of(plans: dict[str, Plan], differences: dict[str, list[QuantityDifference]]) -> list[str]:
    """One line for each run of releases with the same plan or the same refusal, with what changed below it."""
    from rlstep_hooks.show.difference import shown

    lines: list[str] = []
    first, last, said = "", "", ""
    for release, plan in plans.items():
        now = _words(plan)
        if now != said or release in differences:
            if said:
                lines.append(_line(first, last, said))
            lines += [
                f"    {each.quantity}: {shown(each.a.value)} -> {shown(each.b.value)}"
                for each in differences.get(release, [])
            ]
            first, said = release, now
        last = release
    return [*lines, _line(first, last, said)]


def _line(first: str, last: str, said: str) -> str:
    return f"{first if first == last else f'{first} to {last}':24} {said}"


def _words(plan: Plan) -> str:
    schedule = plan.schedule
    if schedule is None:
        why = plan.findings[-1].observed if plan.findings else plan.notes[-1].text
        return f"refused: {why}"
    refused = next((f" · refused: {each.observed}" for each in plan.findings if each.code == "RLS110"), "")
    return (
        f"{number(schedule.samples_per_rollout, 'samples')} a rollout · {number(schedule.updates_per_rollout, 'updates')} a rollout · "
        f"{number(schedule.rollouts, 'rollouts')} · {number(schedule.updates, 'updates')}{refused}"
    )
