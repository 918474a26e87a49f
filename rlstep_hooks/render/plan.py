"""A plan as text: the one-screen table, the readings of "step", formulas, notes and findings; for a terminal or as Markdown."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from rlstep_hooks.render.words import approximate, number
from rlstep_hooks.steps import all_readings

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rlstep_hooks.readers.base import Formula
    from rlstep_hooks.readers.launch_plan import Plan
    from rlstep_hooks.schedule import Schedule

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


def plan_table(schedule: Schedule, *, whence: str = "") -> RenderableType:
    """The plan on one screen.

    Args:
        schedule: The plan.
        whence: Where it was read, for example "from run.sh"; empty for a live configuration.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_column(justify="right")
    for row in plan_rows(schedule):
        table.add_row(*row)
    return Group(Text(headline(schedule, whence=whence), style="bold"), Text(), table)


def headline(schedule: Schedule, *, whence: str = "") -> str:
    """Framework, release, algorithm, processes, and where it was read."""
    parts = [f"{schedule.framework} {schedule.version}", schedule.algorithm]
    if schedule.world_size > 1:
        parts.append(f"{schedule.world_size} processes")
    return " · ".join([*parts, *([whence] if whence else [])])


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
            f"{number(schedule.rollouts, 'rollouts')} · {number(schedule.updates, 'updates')}",
            _epoch_words(schedule),
        )
    )
    if schedule.rows_dropped_per_epoch:
        rows.append(
            (
                "rows",
                f"{number(schedule.rows_dropped_per_epoch)} of {number(schedule.rows)} dropped in each pass",
                "others each time" if schedule.rows_reshuffled else "always the same",
            )
        )
    rows += _remainder_rows(schedule)
    if schedule.lr_horizon is not None and schedule.lr_horizon != schedule.lr_ticks:
        rows.append(
            (
                "learning rate",
                f"schedule of {number(schedule.lr_horizon, 'ticks')}",
                f"the run takes {number(schedule.lr_ticks)}",
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
    elif schedule.samples_per_prompt > 1 and schedule.samples_per_update % schedule.samples_per_prompt == 0:
        prompts = schedule.samples_per_update // schedule.samples_per_prompt
        each = f"{number(prompts, 'prompts')} x {number(schedule.samples_per_prompt, 'samples')}"
    else:
        each = number(schedule.samples_per_update, unit)
    return ("update", each, f"{number(schedule.samples_per_update, unit)}, {passes}")


def _rate_row(schedule: Schedule) -> Row:
    made = number(schedule.updates_per_rollout)
    made = {"exact": made, "upper": f"at most {made}", "data_dependent": f"about {made}"}[schedule.updates_bound]
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
    if schedule.frozen_rollouts:
        rows.append(("frozen", f"the first {number(schedule.frozen_rollouts, 'rollouts')}", "no update of the policy"))
    if schedule.max_age:
        rows.append(("age", f"samples up to {number(schedule.max_age, 'rollouts')} behind the policy", "asynchronous"))
    return rows


def _source_words(schedule: Schedule) -> str:
    return {
        "at_rollout": "computed with the rollout",
        "recompute": "recomputed before update 1",
        "engine": "taken from the engine",
        "detach": "the current forward itself",
    }[schedule.old_logprob_source]


def _lag_words(schedule: Schedule) -> str:
    lags = " ".join(str(lag) for lag in schedule.lags[:12]) + (" …" if len(schedule.lags) > 12 else "")
    if schedule.old_logprob_source == "engine":
        return f"lag {lags} · the ratio is never exactly 1"
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
    words = f"{approximate(schedule.data_epochs)} data epochs"
    if schedule.loader_epochs is None or schedule.loader_epochs == schedule.data_epochs:
        return words
    return (
        f"{words} ({approximate(schedule.loader_epochs)} loader {'pass' if schedule.loader_epochs == 1 else 'passes'})"
    )


# The readings of "step".


def steps_rows(schedule: Schedule, steps: int) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table that reads a number of steps in every way."""
    head = [f"{number(steps)} steps as", "rollouts", "updates", "micro-batches", "samples", "data epochs"]
    rows = [
        [
            ("* " if reading.logged else "  ") + _UNITS[reading.unit],
            approximate(reading.rollouts),
            approximate(reading.updates),
            approximate(reading.microbatches) if reading.microbatches is not None else "-",
            approximate(reading.samples),
            approximate(reading.data_epochs) if reading.data_epochs is not None else "-",
        ]
        for reading in all_readings(schedule, steps)
    ]
    return head, rows


def steps_table(schedule: Schedule, steps: int) -> RenderableType:
    """A number of steps under every reading of the word."""
    head, rows = steps_rows(schedule, steps)
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for index, name in enumerate(head):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row, style="bold" if row[0].startswith("*") else None)
    return Group(
        table, Text("  * what this framework's logs count; micro-batches are those of one process", style="dim")
    )


# Formulas.

_NAME = re.compile(r"[A-Za-z_][\w.]*")
_FUNCTIONS = frozenset({"floor", "ceil", "min", "max", "lcm"})


def with_numbers(formula: Formula, schedule: Schedule) -> str:
    """A formula with its names replaced by the numbers of this launch."""

    def value(match: re.Match[str]) -> str:
        name = match.group(0)
        if name in _FUNCTIONS:
            return name
        found = schedule.settings[name] if name in schedule.settings else quantity(schedule, name)
        return number(found) if isinstance(found, int | Fraction) else str(found)

    return _NAME.sub(value, formula.text)


def quantity(schedule: Schedule, name: str) -> Any:
    """A field of a Schedule, or of its critic ("critic.updates_per_rollout")."""
    of, _, field = name.rpartition(".")
    return getattr(schedule.critic if of == "critic" else schedule, field or name, None)


def formula_lines(plan: Plan) -> list[tuple[str, str]]:
    """Each formula in three steps, with its source."""
    assert plan.schedule is not None
    lines = []
    for formula in plan.formulas:
        result = quantity(plan.schedule, formula.quantity)
        shown = number(result) if isinstance(result, int | Fraction) or result is None else str(result)
        lines.append(
            (f"{formula.quantity} = {formula.text} = {with_numbers(formula, plan.schedule)} = {shown}", formula.source)
        )
    return lines


def markdown(plan: Plan, steps: int | None) -> str:
    """The plan as Markdown, for an issue or a pull request."""
    if plan.schedule is None:
        return "\n".join(f"**{f.severity} {f.code}** {f.observed}. {f.why}. Fix: {f.fix}" for f in plan.findings)
    lines = [f"**{headline(plan.schedule, whence=f'from {plan.source}')}**", "", "| | | |", "|---|---|---|"]
    lines += [f"| {name} | {middle} | {right} |" for name, middle, right in plan_rows(plan.schedule)]
    if steps:
        head, rows = steps_rows(plan.schedule, steps)
        lines += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        lines += [f"| {' | '.join(cell.strip() for cell in row)} |" for row in rows]
    lines += [""] + [f"- {note.kind}: {note.text}" for note in plan.notes]
    lines += [f"- **{f.severity} {f.code}** {f.title}: {f.observed}. {f.why}. Fix: {f.fix}" for f in plan.findings]
    return "\n".join(lines)
