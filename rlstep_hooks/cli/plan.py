"""`rlstep plan`: what a launch means, without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.readers.launch_plan import Options, Plan, plan_launch
from rlstep_hooks.steps import all_readings, logged_steps

if TYPE_CHECKING:
    from rlstep_hooks.schedule import Schedule

_MOST_NAMES = 12


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
        LaunchError: It cannot be read.
        OSError: A file cannot be read.
    """
    plan = plan_launch(words, options)
    if as_json:
        print(to_json(plan, steps))
    elif as_markdown:
        from rlstep_hooks.render.plan import markdown

        print(markdown(plan, steps or (logged_steps(plan.schedule) if plan.schedule is not None else None)))
    else:
        _print(plan, steps, explain=explain)
    failing = ("error", "warning") if strict else ("error",)
    return 1 if any(finding.severity in failing for finding in plan.findings) else 0


def to_json(plan: Plan, steps: int | None) -> str:
    """The plan as JSON: the fields of the Schedule, and beside them what explains it."""
    import msgspec

    from rlstep_hooks.events import to_json as encode
    from rlstep_hooks.rules.plan_checks import REPORTS

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


def _print(plan: Plan, steps: int | None, *, explain: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    from rlstep_hooks.render.plan import formula_lines, plan_table, steps_table

    console = Console()
    if plan.schedule is not None:
        console.print(plan_table(plan.schedule, whence=f"from {plan.source}"), "", soft_wrap=False)
        shown = steps or logged_steps(plan.schedule)
        if shown:
            console.print(steps_table(plan.schedule, shown), "")
        if explain:
            for formula, source in formula_lines(plan):
                console.print(Text(formula))
                console.print(Text(f"    {source}", style="dim"))
            console.print()
    else:
        console.print(Text(f"{plan.title} {plan.version} · from {plan.source}", style="bold"), "")
    for note in plan.notes:
        console.print(Text.assemble((f"  {note.kind:8}", "cyan"), note.text))
    if plan.schedule is not None:
        for reason in dict.fromkeys(plan.schedule.not_evaluated.values()):
            names = ", ".join(name for name, why in plan.schedule.not_evaluated.items() if why == reason)
            console.print(Text.assemble(("  unknown ", "yellow"), f"{names}: {reason}"))
    if plan.unused:
        console.print(Text(f"  {_unused_words(plan, everything=explain)}", style="dim"))
    if plan.findings:
        from rlstep_hooks.render.console import finding_lines
        from rlstep_hooks.rules.plan_checks import REPORTS

        console.print()
        for finding in plan.findings:
            console.print(finding_lines(finding))
            console.print(Text(f"  report    {REPORTS[finding.code]}", style="dim"), "")


def _unused_words(plan: Plan, *, everything: bool) -> str:
    names = [str(setting) for setting in plan.unused]
    shown = names if everything else names[:_MOST_NAMES]
    more = f" and {len(names) - len(shown)} more (--explain names them)" if len(shown) < len(names) else ""
    return f"not part of the schedule: {', '.join(shown)}{more}"
