"""`rlstep diff`: the first difference between two plans, two recorded runs, or a run and a plan."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.cli.launches import side
from rlstep_hooks.judge.replay import NoRecordError
from rlstep_hooks.judge.run_diff.recorded import RecordedRun, is_recorded, recorded_run
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.comparison import QuantityDifference, compare
from rlstep_hooks.record.ledger import is_url
from rlstep_hooks.systems.engine import index

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rlstep_hooks.planning.launched import Options, Plan

_STATUS = {"same": 0, "differ": 1, "unknown": 2}


Versions = tuple[str | None, str | None]
"""The releases of A and B, where they are given apart."""


def show(
    sides: list[str],
    command: list[str],
    options: Options,
    *,
    versions: Versions = (None, None),
    as_json: bool = False,
) -> int:
    """Print where two sides differ. A side is a launch, or a recorded run: its folder or URL, or `FOLDER/RUN`.

    Args:
        sides: A, and B if no command is given.
        command: The launch command of B.
        options: Options that complete the launches.
        versions: The releases of both; with both of them one launch is enough.
        as_json: Whether to print JSON.

    Returns:
        0 if they are the same, 1 if they differ, 2 if the records do not show it.

    Raises:
        LaunchError: A side cannot be read, or its framework refuses it.
    """
    one_launch = command or sides
    if all(versions) and (not sides or (not command and len(sides) == 1)) and one_launch:
        first, second = list(one_launch), list(one_launch)
    else:
        first, second = _split(sides, command)
    of_a, of_b = (
        msgspec.structs.replace(options, version=version) if version is not None else options for version in versions
    )
    with ExitStack() as copies:
        a, b = _recorded(first, copies), _recorded(second, copies)
        if a is not None and b is not None:
            return _runs(a, b, as_json)
        if a is not None:
            return _run_and_plan("A", a, second, of_b, as_json)
        if b is not None:
            return _run_and_plan("B", b, first, of_a, as_json)
        return _plans(_planned(first, of_a), _planned(second, of_b), as_json)


def _split(sides: list[str], command: list[str]) -> tuple[list[str], list[str]]:
    if command and len(sides) == 1:
        return sides, command
    if not command and len(sides) == 2:
        return [sides[0]], [sides[1]]
    raise LaunchError("give two launches or recorded runs: `rlstep diff A B` or `rlstep diff A -- <launch command>`")


def _recorded(words: list[str], copies: ExitStack) -> RecordedRun | None:
    """The recorded run that a side names (a local copy if it is remote); None if the side is a launch."""
    if len(words) != 1:
        return None
    [place] = words
    try:
        if is_url(place):
            return _copied(place, copies)
        return recorded_run(place, deviations_of=index.deviations_of) if is_recorded(place) else None
    except (NoRecordError, OSError) as error:
        raise LaunchError(str(error)) from None


def _copied(url: str, copies: ExitStack) -> RecordedRun:
    """The run at the URL of a folder, or at `URL/RUN`."""
    from rlstep_hooks.record.remote import RemoteError, fetched

    holder, _, run = url.rstrip("/").rpartition("/")
    try:
        folder = copies.enter_context(fetched(url))
    except RemoteError as error:
        try:
            folder = copies.enter_context(fetched(holder, run))
        except RemoteError:
            raise error from None
        url = holder
    return msgspec.structs.replace(recorded_run(str(folder), deviations_of=index.deviations_of), place=url)


def _planned(words: list[str], options: Options) -> Plan:
    plan = side(words, options)
    if plan.schedule is None:
        raise LaunchError(f"{plan.title} refuses {plan.source}: {plan.findings[0].observed}")
    return plan


def _plans(a: Plan, b: Plan, as_json: bool) -> int:
    differences = compare(a, b)
    if as_json:
        _print_json({"a": a.source, "b": b.source, "differences": differences})
    else:
        _print(_plans_shown(a, b, differences))
    return 1 if differences else 0


def _plans_shown(a: Plan, b: Plan, differences: list[QuantityDifference]) -> RenderableType:
    from rlstep_hooks.show.difference import quantities

    if not differences:
        return f"the same schedule: {a.title} {a.version} from {a.source}, {b.title} {b.version} from {b.source}"
    return quantities(
        differences, f"A {a.title} {a.version} from {a.source}", f"B {b.title} {b.version} from {b.source}"
    )


def _runs(a: RecordedRun, b: RecordedRun, as_json: bool) -> int:
    from rlstep_hooks.judge.run_diff.two_runs import compare_runs

    difference = compare_runs(a, b)
    if as_json:
        where = difference.parting.where if difference.parting is not None else None
        _print_json({"a": _named(a), "b": _named(b), "where": where, **_fields(difference)})
    else:
        from rlstep_hooks.show.difference import two_runs

        _print(two_runs(a, b, difference))
    return _STATUS[difference.outcome]


def _run_and_plan(name: str, run: RecordedRun, words: list[str], options: Options, as_json: bool) -> int:
    from rlstep_hooks.judge.run_diff.run_and_plan import compare_with_plan, options_beside

    plan = _planned(words, options)
    completed = options_beside(run, plan, options)
    if completed != options:
        plan = _planned(words, completed)
    difference = compare_with_plan(run, plan, deviations_of=index.deviations_of)
    if as_json:
        _print_json({"run": _named(run), "plan": plan.source, **_fields(difference)})
    else:
        from rlstep_hooks.show.difference import run_and_plan

        other = f"{'B' if name == 'A' else 'A'}  {plan.source} · {plan.title} {plan.version}"
        taken = [each for each in ("version", "rows") if getattr(completed, each) != getattr(options, each)]
        other += f" · {' and '.join(taken)} as in the run" if taken else ""
        _print(run_and_plan(run, name, other, difference))
    return _STATUS[difference.outcome]


def _named(run: RecordedRun) -> dict[str, Any]:
    return {"folder": run.place, "run": run.name, "verdict": run.report.verdict, "complete": run.report.complete}


def _fields(difference: Any) -> dict[str, Any]:
    return {name: getattr(difference, name) for name in difference.__struct_fields__}


def _print_json(value: dict[str, Any]) -> None:
    from rlstep_hooks.record.wire import to_json

    print(to_json(value, indent=2).decode())


def _print(shown: RenderableType) -> None:
    from rlstep_hooks.show.terminal import Terminal

    Terminal(highlight=False).print(shown)
