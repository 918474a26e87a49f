"""What a person sees in a terminal: the plan before training, a live line, the verdict after it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlstep_hooks.events import Measured, MicroBatch, Rollout, RunStarted, Unobserved, Update
from rlstep_hooks.injection import PARENT
from rlstep_hooks.render.plan import headline, plan_rows
from rlstep_hooks.render.words import number

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rlstep_hooks.controlled.run import ControlledRun
    from rlstep_hooks.events import AnyEvent
    from rlstep_hooks.judge import Judge
    from rlstep_hooks.report import Finding, Report
    from rlstep_hooks.schedule import Schedule

_VERDICT_STYLE = {"PASS": "bold green", "FAIL": "bold red", "NOT_EVALUATED": "bold yellow"}
_SEVERITY_STYLE = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def plan_table(schedule: Schedule) -> RenderableType:
    """The plan on one screen."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_column()
    for row in plan_rows(schedule):
        table.add_row(*row)
    return Group(Text(headline(schedule), style="bold"), Text(), table)


def finding_lines(finding: Finding) -> RenderableType:
    """One finding: what, where, expected against observed, why, what to do."""
    style = _SEVERITY_STYLE[finding.severity]
    head = Text.assemble((f"{finding.severity.upper()} {finding.code}", style), f" {finding.title} · {finding.where}")
    if finding.occurrences > 1:
        head.append(f" · {finding.occurrences} times, first here", style="dim")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    if finding.severity != "info":
        table.add_row("  expected", escape(finding.expected))
    for name, text in (("observed", finding.observed), ("why", finding.why), ("fix", finding.fix)):
        table.add_row(f"  {name}", escape(text))
    return Group(head, table)


def verdict_block(report: Report) -> RenderableType:
    """The verdict, plan against observed, and the findings."""
    counts, schedule = report.counts, report.schedule
    head = Text(report.verdict.replace("_", " "), style=_VERDICT_STYLE[report.verdict])
    passed = sum(1 for rule in report.rules if rule.verdict == "PASS")
    failed = sum(1 for rule in report.rules if rule.verdict == "FAIL")
    unknown = len(report.rules) - passed - failed
    if report.rules:
        head.append(f"  {passed} rules passed, {failed} failed, {unknown} not evaluated", style="not bold")
    if not report.complete:
        head.append("  (training did not come to its end)", style="yellow")
    if report.processes > 1:
        head.append(f"  {report.processes} processes", style="not bold")
    parts: list[RenderableType] = [head, Text()]
    if schedule is not None:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        table.add_column("")
        table.add_column("planned", justify="right")
        table.add_column("observed", justify="right")
        shared = schedule.world_size > 1 and schedule.loop == "loader"
        samples = schedule.samples_per_rollout // (schedule.world_size if shared else 1)
        planned_samples = schedule.rollouts * samples if schedule.rollouts is not None else None
        refreshes = 0 if schedule.old_logprob_source in ("detach", "engine") else schedule.rollouts
        each = " (of this process)" if shared else ""
        table.add_row("rollouts", number(schedule.rollouts), number(counts.rollouts))
        table.add_row(f"samples{each}", number(planned_samples), number(counts.samples))
        table.add_row("old log-prob refreshes", number(refreshes), number(counts.old_logprob_refreshes))
        table.add_row("updates", number(schedule.updates), number(counts.updates))
        parts += [table, Text()]
    if report.lags:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for name in ("lag", "micro-batches", "mean |log ratio|", "max |log ratio|", "clipped"):
            table.add_column(name, justify="right")
        for lag in report.lags:
            clipped = "" if lag.clipped is None else f"{100 * lag.clipped:.2g} %"
            table.add_row(
                str(lag.lag),
                number(lag.microbatches),
                f"{lag.mean_abs_log_ratio:.2g}",
                f"{lag.max_abs_log_ratio:.2g}",
                clipped,
            )
        parts += [table, Text()]
    for finding in report.findings:
        parts += [finding_lines(finding), Text()]
    parts += _not_evaluated_lines(report)
    return Group(*parts)


def _not_evaluated_lines(report: Report) -> list[RenderableType]:
    """What could not be observed, each with its reason; rules that merely had nothing to compare in one line."""
    idle = [rule.code for rule in report.rules if rule.verdict == "NOT_EVALUATED" and rule.idle]
    unseen = {name: reason for name, reason in report.not_evaluated.items() if name not in idle}
    lines: list[RenderableType] = []
    if unseen:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="yellow", no_wrap=True)
        table.add_column()
        for name, reason in unseen.items():
            table.add_row(f"  {name}", escape(reason))
        lines += [Text("not evaluated", style="yellow"), table]
    if idle:
        lines.append(Text(f"nothing to compare in this run for {', '.join(idle)}", style="dim"))
    return lines


class ConsoleListener:
    """Prints the plan when training begins, what cannot be evaluated when it turns up, and the verdict at the end."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)

    def heard(self, event: AnyEvent, judge: Judge | ControlledRun) -> None:
        """Print plan and warnings."""
        if isinstance(event, RunStarted) and event.schedule is not None:
            self._console.print(plan_table(event.schedule))
        elif isinstance(event, Unobserved):
            self._console.print(Text(f"rlstep: not evaluated ({event.what}): {event.why}", style="yellow"))

    def finished(self, report: Report) -> None:
        """Print the verdict, unless `rlstep run` will."""
        if PARENT not in os.environ:
            self._console.print(verdict_block(report))


class LiveListener:
    """One line that follows the run: rewritten in place on a terminal, one plain line for each rollout elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lag = 0
        self._largest = 0.0
        self._status = console.status("") if console.is_terminal else None

    def heard(self, event: AnyEvent, judge: Judge | ControlledRun) -> None:
        """Update the line."""
        if isinstance(event, RunStarted) and self._status is not None:
            self._status.start()
        if isinstance(event, MicroBatch):
            origin = event.old_version if event.old_version is not None else event.sampled_version
            self._lag = event.policy_version - origin if origin is not None else 0
        elif isinstance(event, Measured):
            self._largest = max([self._largest, *(m.max_abs_log_ratio or 0.0 for m in event.microbatches)])
        elif isinstance(event, Update) and self._status is not None:
            self._status.update(self._line(judge))
        elif isinstance(event, Rollout) and self._status is None and event.purpose == "training":
            self._console.print(self._line(judge), highlight=False)

    def _line(self, judge: Judge | ControlledRun) -> str:
        counts = judge.counts
        schedule = judge.run.schedule if judge.run is not None else None
        rollouts = number(schedule.rollouts) if schedule is not None and schedule.rollouts is not None else "?"
        updates = number(schedule.updates) if schedule is not None and schedule.updates is not None else "?"
        return (
            f"rollout {counts.rollouts} of {rollouts} · update {counts.updates} of {updates} · lag {self._lag} · "
            f"|log ratio| up to {self._largest:.2g} · {'FAIL' if judge.failed else 'PASS'} so far"
        )

    def finished(self, report: Report) -> None:
        """Take the line away."""
        if self._status is not None:
            self._status.stop()
