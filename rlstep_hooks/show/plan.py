"""A plan as text: the one-screen table, the readings of "step", formulas, notes and findings; for a terminal or as Markdown.

It does without rich, which would take a third of the 150 ms that `rlstep plan` may take.
"""

from __future__ import annotations

import re
import textwrap
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rlstep_hooks.judge.rules.plan_checks import REFUSED, REPORTS
from rlstep_hooks.planning.steps import all_readings
from rlstep_hooks.planning.words import approximate, number, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.planning.launched import Plan
    from rlstep_hooks.planning.reading import Formula
    from rlstep_hooks.planning.schedule import Schedule


def report_of(code: str, framework: str) -> str:
    """The public report that taught a rule; one on a refusal says nothing to users of another framework than its own."""
    report = REPORTS.get(code, "")
    return "" if code == REFUSED and f"/{framework}/" not in report else report


Row = tuple[str, str, str]

_UNITS = {
    "rollout": "rollouts",
    "update": "updates",
    "microbatch": "micro-batches",
    "sample": "samples",
    "prompt": "prompts",
    "timestep": "timesteps",
    "epoch": "passes",
}

_WHICH_ROWS = {
    True: "a different set each pass",
    False: "always the same",
    None: "not known whether the same each pass",
}
"""Which rows are dropped, by `Schedule.rows_reshuffled`."""


def headline(schedule: Schedule, *, whence: str = "", fork: bool = False) -> str:
    """Framework, release, algorithm, processes, and where it was read.

    Args:
        schedule: The schedule.
        whence: Where it was read.
        fork: Whether the launch is one of a fork of it.
    """
    release = f"{schedule.framework} {schedule.version}".rstrip()
    parts = [f"a fork, planned as {release}" if fork else release, schedule.algorithm]
    if schedule.world_size > 1:
        parts.append(f"{schedule.world_size} processes")
    return " · ".join([*parts, *([whence] if whence else [])])


def plan_headline(plan: Plan) -> str:
    """The headline of a launch's plan."""
    assert plan.shown is not None
    whence = f"from {plan.source}" + (" · refused, see below" if plan.schedule is None else "")
    return headline(plan.shown, whence=whence, fork=bool(plan.foreign))


def plan_rows(schedule: Schedule) -> list[Row]:
    """Name, explanation and value of everything the table shows."""
    rows: list[Row] = [_rollout_row(schedule), _update_row(schedule), _rate_row(schedule)]
    if schedule.critic is not None:
        rows.append(
            (
                "critic",
                f"{number(schedule.critic.samples_per_update, 'samples')} an update",
                number(schedule.critic.updates_per_rollout, "updates") + " a rollout",
            )
        )
    rows.append(("old log-probs", _source_words(schedule), _lag_words(schedule)))
    rows.append(('"step"', "in this framework's logs", schedule.step_means.removeprefix("1 step = ")))
    rows.append(
        (
            "run",
            f"{number(schedule.rollouts, 'rollouts')} · {_bounded(number(schedule.updates, 'updates'), schedule)}",
            _epoch_words(schedule),
        )
    )
    if schedule.rows_dropped_per_epoch:
        rows.append(
            (
                "rows",
                f"{number(schedule.rows_dropped_per_epoch)} of {number(schedule.rows)} dropped in each pass",
                _WHICH_ROWS[schedule.rows_reshuffled],
            )
        )
    rows += _remainder_rows(schedule)
    if schedule.lr_horizon is not None and schedule.lr_horizon != schedule.lr_ticks:
        rows.append(
            (
                "learning rate",
                f"schedule of {number(schedule.lr_horizon, 'ticks')}",
                f"the run takes {number(schedule.lr_ticks)}"
                if schedule.lr_ticks is not None
                else "how many the run takes is not known",
            )
        )
    elif schedule.lr_clock != "update":
        rows.append(("learning rate", "ticks", f"once a {schedule.lr_clock}"))
    return rows


def _rollout_row(schedule: Schedule) -> Row:
    if schedule.step_unit == "timestep":
        each = f"{number(schedule.prompts_per_rollout, 'environments')} x {number(schedule.samples_per_prompt, 'timesteps')}"
        return ("rollout", each, number(schedule.samples_per_rollout, "timesteps"))
    each = f"{number(schedule.prompts_per_rollout, 'prompts')} x {number(schedule.samples_per_prompt, 'samples')}"
    return ("rollout", each, number(schedule.samples_per_rollout, "samples"))


def _update_row(schedule: Schedule) -> Row:
    unit = "timesteps" if schedule.step_unit == "timestep" else "samples"
    passes = number(schedule.reuse_epochs, "passes")
    if schedule.samples_per_update is None:
        each = "as the data decides"
    elif schedule.microbatches_per_update is not None and schedule.samples_per_microbatch is not None:
        each = f"{number(schedule.microbatches_per_update, 'micro-batches')} x {number(schedule.samples_per_microbatch, unit)}"
    elif (
        unit == "samples"
        and schedule.samples_per_prompt > 1
        and not schedule.samples_per_update % schedule.samples_per_prompt
    ):
        prompts = schedule.samples_per_update // schedule.samples_per_prompt
        each = f"{number(prompts, 'prompts')} x {number(schedule.samples_per_prompt, 'samples')}"
    else:
        each = number(schedule.samples_per_update, unit)
    return ("update", each, f"{number(schedule.samples_per_update, unit)}, {passes}")


def _bounded(updates: str, schedule: Schedule) -> str:
    """A number of updates, as a bound where it is one."""
    of = {"exact": "", "upper": "at most ", "data_dependent": "about "}[schedule.updates_bound]
    return updates if updates.startswith(("?", "not known")) else f"{of}{updates}"


def _rate_row(schedule: Schedule) -> Row:
    made = _bounded(number(schedule.updates_per_rollout), schedule)
    if schedule.updates_from:
        most = f"to {number(schedule.updates_to)}" if schedule.updates_to else "or more"
        made = f"{number(schedule.updates_from)} {most}, as the data decides"
    if schedule.loop == "phases":
        sizes = dict.fromkeys(schedule.minibatches)
        if len(sizes) > 1:
            one = f"{len(schedule.minibatches)} of {' and '.join(number(size) for size in sizes)} samples"
        else:
            one = f"{number(schedule.samples_trained_per_rollout)} / {number(schedule.samples_per_update)}"
        return ("updates/rollout", f"{number(schedule.reuse_epochs)} x {one}", made)
    passes = (
        f"{number(schedule.microbatches_per_rollout, 'micro-batches')} / {number(schedule.microbatches_per_update)}"
    )
    return ("updates/rollout", passes, made)


def _remainder_rows(schedule: Schedule) -> list[Row]:
    rows: list[Row] = []
    if schedule.samples_dropped_per_rollout:
        rows.append(
            ("left out", f"{number(schedule.samples_dropped_per_rollout, 'samples')} of each rollout", "never trained")
        )
    if schedule.samples_added_per_rollout:
        rows.append(
            (
                "padding",
                f"{number(schedule.samples_added_per_rollout, 'samples')} added to each rollout",
                "so that it divides",
            )
        )
    flushed = schedule.updates_of_flushed_rollout
    if flushed is not None:
        rows.append(
            ("last rollout", "of a data epoch: each micro-batch is an update", number(flushed, "updates on it"))
        )
    if schedule.frozen_rollouts:
        rows.append(("frozen", f"the first {number(schedule.frozen_rollouts, 'rollouts')}", "no update of the policy"))
    if schedule.parts_per_rollout > 1:
        rows.append(
            (
                "parts",
                f"{schedule.parts_per_rollout} parts of a rollout, each trained before the next is taken",
                "old log-probs of the weights before the first",
            )
        )
    if schedule.max_age:
        rows.append(
            ("age", f"samples up to {number(schedule.max_age, 'rollouts')} behind the policy", _age_words(schedule))
        )
    if schedule.correction and (schedule.max_age != 0 or schedule.correction != "none"):
        inert, biased = schedule.correction_inert, schedule.correction_biased
        acts = f"it cannot act: {inert}" if inert else f"biased: {biased}" if biased else ""
        rows.append(("correction", schedule.correction, acts))
    return rows


def _age_words(schedule: Schedule) -> str:
    """The age in updates, and with the lag that later updates on a rollout add to it."""
    updates, lag = schedule.max_age_updates, max(schedule.lags, default=0)
    if updates is None:
        return "asynchronous"
    kept = schedule.old_logprob_source == "at_rollout"  # whose lags count from the sampler's weights already
    more = "" if kept or not lag else f", {number(updates + lag)} with the lag"
    return f"asynchronous · {number(updates, 'updates')}{more}"


def _source_words(schedule: Schedule) -> str:
    return {
        "at_rollout": "computed with the rollout",
        "recompute": "recomputed before update 1",
        "engine": "taken from the engine",
        "detach": "the current forward itself",
        "none": "the loss has no ratio",
    }[schedule.old_logprob_source]


def _lag_words(schedule: Schedule) -> str:
    if not schedule.lags and schedule.updates == 0:
        return "nothing is trained"
    if not schedule.lags:
        return "lags as the data decides"
    lags = " ".join(str(lag) for lag in schedule.lags[:12]) + (" …" if len(schedule.lags) > 12 else "")
    if schedule.old_logprob_source == "engine":
        return f"lag {lags} · the ratio is never exactly 1"
    if schedule.old_logprob_source == "none":
        return f"lag {lags}"
    if schedule.lags == (0,):
        return "lag 0 · ratio is 1 by construction"
    if schedule.ratio_one_updates:
        which = ", ".join(str(u) for u in schedule.ratio_one_updates[:6])
        more = ", …" if len(schedule.ratio_one_updates) > 6 else ""
        return f"lag {lags} · ratio is 1 on update {which}{more} only"
    return f"lag {lags} · no update has ratio 1 throughout"


def _epoch_words(schedule: Schedule) -> str:
    if schedule.data_epochs is None and schedule.step_unit == "timestep" and schedule.rollouts is not None:
        return number(schedule.rollouts * schedule.samples_per_rollout, "timesteps")
    words = f"{approximate(schedule.data_epochs)} data epoch" + ("" if schedule.data_epochs == 1 else "s")
    if schedule.loader_epochs is None or schedule.loader_epochs == schedule.data_epochs:
        return words
    return (
        f"{words} ({approximate(schedule.loader_epochs)} loader {'pass' if schedule.loader_epochs == 1 else 'passes'})"
    )


# The readings of "step".


def steps_rows(schedule: Schedule, steps: int) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table with every meaning that a number of steps can have."""
    head = [f"{number(steps)} steps as", "rollouts", "updates", "micro-batches", "samples", "data epochs"]
    rows = [
        [
            ("* " if reading.logged else "  ") + _UNITS[reading.unit],
            approximate(reading.rollouts),
            approximate(reading.updates) if reading.updates is not None else "-",
            approximate(reading.microbatches) if reading.microbatches is not None else "-",
            approximate(reading.samples),
            approximate(reading.data_epochs) if reading.data_epochs is not None else "-",
        ]
        for reading in all_readings(schedule, steps)
    ]
    return head, rows


# Formulas.

_NAME = re.compile(r"[A-Za-z_][\w.]*")
_FUNCTIONS = frozenset({"floor", "ceil", "min", "max", "lcm"})


def with_numbers(formula: Formula, schedule: Schedule) -> str:
    """A formula with its names replaced by the numbers of this launch."""

    def value(match: re.Match[str]) -> str:
        name = match.group(0)
        if name in _FUNCTIONS:
            return name
        found = formula.inputs.get(name, name)
        if not formula.inputs and not formula.text.startswith("'"):
            found = schedule.settings[name] if name in schedule.settings else quantity(schedule, name)
        return number(found) if isinstance(found, int | Fraction) else str(found)

    return _NAME.sub(value, formula.text)


def quantity(schedule: Schedule, name: str) -> Any:
    """A field of a Schedule, or of its critic ("critic.updates_per_rollout")."""
    of, _, field = name.rpartition(".")
    return getattr(schedule.critic if of == "critic" else schedule, field or name, None)


def formula_lines(plan: Plan) -> list[tuple[str, str]]:
    """Each formula, what went in and what came out, with its source."""
    assert plan.shown is not None
    lines = []
    for formula in plan.formulas:
        result = quantity(plan.shown, formula.quantity)
        shown = number(result) if isinstance(result, int | Fraction) or result is None else str(result)
        numbers = with_numbers(formula, plan.shown)
        parts = dict.fromkeys((formula.quantity, formula.text, numbers, shown))
        lines.append((" = ".join(parts), formula.source))
    return lines


# For a terminal.

_STYLES = {"bold": "1", "dim": "2", "error": "1;31", "warning": "33", "info": "36"}
_MOST_NAMES = 12
_GAP = re.compile(r"(?<=\d) (?=\d{3})")


class TextPage:
    """Lines of one width, styled where the terminal can."""

    def __init__(self, width: int, *, coloured: bool) -> None:
        self.lines: list[str] = []
        self._width = max(width, 40)
        self._coloured = coloured

    def styled(self, text: str, style: str) -> str:
        """Text in a style."""
        shown = printable(text)
        return f"\x1b[{_STYLES[style]}m{shown}\x1b[0m" if self._coloured and shown else shown

    def text(self, text: str, *, style: str = "", indent: int = 0) -> None:
        """A paragraph, wrapped; its second line and those after it are indented."""
        for line in self._wrapped(text, self._width, indent):
            self.lines.append(self.styled(line, style) if style else line)

    def table(self, rows: Iterable[tuple[str, ...]], *, head: tuple[str, ...] = (), right: bool = False) -> None:
        """Add aligned columns. The first is dim and the last one wraps; with `right`, all but the first are aligned to the right."""
        everything = [tuple(map(printable, row)) for row in (*([head] if head else []), *rows)]
        widths = [max(len(row[column]) for row in everything) for column in range(len(everything[0]))]
        for index, row in enumerate(everything):
            if right:
                style = "dim" if head and not index else "bold" if row[0].startswith("*") else ""
                cells = [
                    row[0].ljust(widths[0]),
                    *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
                ]
                line = "  ".join(cells).rstrip()
                self.lines.append(self.styled(line, style) if style else line)
                continue
            before = "".join(f"{cell:{width}}  " for cell, width in zip(row[1:-1], widths[1:-1], strict=True))
            indent = widths[0] + 2 + len(before)
            last = self._wrapped(row[-1], max(self._width - indent, 20))
            self.lines.append(f"{self.styled(row[0].ljust(widths[0]), 'dim')}  {before}{last[0]}".rstrip())
            self.lines += [" " * indent + line for line in last[1:]]

    @staticmethod
    def _wrapped(text: str, width: int, indent: int = 0) -> list[str]:
        """The lines of a wrapped paragraph. A number such as 1 024 is not split."""
        held = _GAP.sub("\u00a0", printable(text))
        lines = textwrap.wrap(
            held, width, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False
        )
        return [line.replace("\u00a0", " ") for line in lines] or [""]


def plan_text(plan: Plan, steps: int | None, *, explain: bool, width: int, coloured: bool) -> str:
    """The plan for a terminal.

    Args:
        plan: The plan.
        steps: A number of steps whose possible meanings are shown; None to show none.
        explain: Whether to show formulas and everything that was given.
        width: Columns of the terminal.
        coloured: Whether it shows colours.
    """
    page = TextPage(width, coloured=coloured)
    schedule = plan.shown
    if schedule is not None:
        page.lines += [page.styled(plan_headline(plan), "bold"), ""]
        page.table(plan_rows(schedule))
        page.lines.append("")
        if steps:
            head, rows = steps_rows(schedule, steps)
            page.table([tuple(row) for row in rows], head=tuple(head), right=True)
            page.text("* what this framework's logs count; micro-batches are those of one process", style="dim")
            page.lines.append("")
        if explain:
            for formula, source in formula_lines(plan):
                page.text(formula, indent=4)
                page.text(f"    {source}", style="dim", indent=4)
            page.lines.append("")
    else:
        page.lines += [page.styled(f"{plan.title} {plan.version} · from {plan.source}", "bold"), ""]
    for kind, words in _remarks(plan, everything=explain):
        page.table([(f"{kind:9}", words)])
    for finding in plan.findings:
        page.lines.append("")
        head_ = page.styled(f"{finding.severity.upper()} {finding.code}", finding.severity)
        page.lines.append(f"{head_} {finding.title}")
        lines = [
            ("observed", finding.observed),
            ("why", finding.why),
            ("fix", finding.fix),
        ]
        if report := report_of(finding.code, plan.framework):
            lines.append(("report", report))
        if finding.severity != "info":
            lines.insert(0, ("expected", finding.expected))
        page.table([(f"  {name:8}", words) for name, words in lines])
    return "\n".join(page.lines).rstrip()


def _remarks(plan: Plan, *, everything: bool) -> list[tuple[str, str]]:
    """Notes, what is not known, and what the schedule does not depend on."""
    remarks: list[tuple[str, str]] = [(note.kind, note.text) for note in plan.notes]
    if plan.shown is not None:
        reasons: dict[str, list[str]] = {}
        for name, reason in plan.shown.not_evaluated.items():
            reasons.setdefault(reason, []).append(name)
        remarks += [("not known", f"{', '.join(names)}: {reason}") for reason, names in reasons.items()]
    without_effect = [str(setting) for setting in plan.unused if setting.name in plan.no_effect]
    said = {*plan.no_effect, *plan.foreign}  # what a fork has is said in its finding
    others = [str(setting) for setting in plan.unused if setting.name not in said]
    for kind, names, says in (
        ("not read", others, "this plan does not look at"),
        ("no effect", without_effect, "the schedule does not depend on"),
    ):
        if names:
            shown = names if everything else names[:_MOST_NAMES]
            more = f" and {len(names) - len(shown)} more (--explain names them)" if len(shown) < len(names) else ""
            remarks.append((kind, f"{', '.join(shown)}{more}: {says} {'it' if len(names) == 1 else 'them'}"))
    return remarks
