"""`rlstep plan`: the plan of a launch, without running it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

from rlstep_hooks.cli.launches import side
from rlstep_hooks.planning.steps import all_readings, logged_steps

if TYPE_CHECKING:
    from rlstep_hooks.planning.launched import Options, Plan
    from rlstep_hooks.planning.schedule import Schedule


def show(
    words: list[str],
    options: Options,
    *,
    as_json: bool = False,
    as_markdown: bool = False,
    explain: bool = False,
    steps: int | None = None,
    strict: bool = False,
) -> int:
    """Print the plan of a launch.

    Returns:
        The exit status: 1 if a finding is an error (with `strict`, a warning too).

    Raises:
        LaunchError: The launch cannot be read.
        OSError: A file cannot be read.
    """
    plan = side(words, options)
    if as_json:
        print(to_json(plan, steps))
    elif as_markdown:
        from rlstep_hooks.show.markdown import plan_markdown

        print(plan_markdown(plan, steps or (logged_steps(plan.schedule) if plan.schedule is not None else None)))
    else:
        print(text_for(sys.stdout, plan, steps, explain=explain))
    failing = ("error", "warning") if strict else ("error",)
    return 1 if any(finding.severity in failing for finding in plan.findings) else 0


def to_json(plan: Plan, steps: int | None) -> str:
    """The plan as JSON: the fields of the Schedule and their explanations."""
    import msgspec

    from rlstep_hooks.judge.rules.plan_checks import REPORTS
    from rlstep_hooks.record.wire import to_json as encode

    schedule = msgspec.structs.asdict(plan.schedule) if plan.schedule is not None else {"schedule": None}
    shown = steps or (logged_steps(plan.schedule) if plan.schedule is not None else None)
    more: dict[str, Any] = {
        "framework": plan.title,
        "version": plan.version,
        "source": plan.source,
        "formulas": list(plan.formulas),
        "notes": list(plan.notes),
        "findings": [
            {**msgspec.structs.asdict(finding), "report": REPORTS.get(finding.code, "")} for finding in plan.findings
        ],
        "unused_settings": {
            setting.name: {"value": setting.value, "place": str(setting.place)} for setting in plan.unused
        },
        "steps": _readings(plan.schedule, shown),
    }
    return encode({**schedule, **more}, indent=2).decode()


def _readings(schedule: Schedule | None, steps: int | None) -> list[Any]:
    return list(all_readings(schedule, steps)) if schedule is not None and steps else []


def text_for(stream: TextIO, plan: Plan, steps: int | None = None, *, explain: bool = False) -> str:
    """The plan as text for a stream: as wide as the terminal, with colours if the stream is one."""
    import os
    import shutil

    from rlstep_hooks.show.plan import plan_text

    shown = steps or (logged_steps(plan.schedule) if plan.schedule is not None else None)
    width = shutil.get_terminal_size((100, 40)).columns
    coloured = stream.isatty() and "NO_COLOR" not in os.environ
    return plan_text(plan, shown, explain=explain, width=width, coloured=coloured)
