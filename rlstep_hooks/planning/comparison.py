"""Compares two plans: which quantities differ, and which settings cause it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rlstep_hooks.planning.launched import Plan
    from rlstep_hooks.planning.reading import Formula
    from rlstep_hooks.planning.schedule import Schedule

QUANTITIES = (
    "algorithm", "world_size", "prompts_per_rollout", "samples_per_prompt", "samples_per_rollout", "reuse_epochs",
    "parts_per_rollout", "samples_per_update", "microbatches_per_update", "samples_per_microbatch", "updates_per_rollout",
    "minibatches", "remainder",
    "samples_added_per_rollout", "samples_dropped_per_rollout", "frozen_rollouts", "max_age", "max_age_updates", "correction",
    "old_logprob_source", "lags",
    "ratio_one_updates", "reference_source", "rows", "rows_dropped_per_epoch", "rows_reshuffled", "rollouts_per_epoch",
    "rollouts", "updates", "data_epochs", "loader_epochs", "lr_clock", "lr_ticks", "lr_horizon", "step_unit",
)  # fmt: skip
"""Compared fields of Schedule, in the order of the table."""

_NAME = re.compile(r"[A-Za-z_][\w.]*")


class Side(msgspec.Struct, frozen=True):
    """One plan's side of a difference."""

    value: Any
    formula: str
    """The framework's formula; empty if none is shown."""
    settings: dict[str, Any]
    """The settings that the quantity depends on."""


class QuantityDifference(msgspec.Struct, frozen=True):
    """One quantity that differs between two plans."""

    quantity: str
    a: Side
    b: Side
    causes: tuple[str, ...]
    """The settings that differ, if both plans are of the same framework; otherwise the settings of both sides."""


def compare(a: Plan, b: Plan) -> list[QuantityDifference]:
    """All quantities that differ between two plans; a critic's are named "critic.updates_per_rollout" and so on."""
    assert a.schedule is not None
    assert b.schedule is not None
    found = _compare(a, b, a.schedule, b.schedule, "")
    if (a.schedule.critic is None) != (b.schedule.critic is None):
        found.append(
            QuantityDifference(
                "critic", Side(a.schedule.critic is not None, "", {}), Side(b.schedule.critic is not None, "", {}), ()
            )
        )
    elif a.schedule.critic is not None and b.schedule.critic is not None:
        found += _compare(a, b, a.schedule.critic, b.schedule.critic, "critic.")
    return found


def _compare(a: Plan, b: Plan, one: Schedule, other: Schedule, prefix: str) -> list[QuantityDifference]:
    differences = []
    for name in QUANTITIES:
        values = getattr(one, name), getattr(other, name)
        if values[0] == values[1] or None in values:  # a value that one plan does not know does not differ
            continue
        # A plan of a recorded run has no formulas; the other side's formulas name the settings then.
        names = settings_behind(a, prefix + name), settings_behind(b, prefix + name)
        sides = (
            _side(a, prefix + name, values[0], names[0] or names[1]),
            _side(b, prefix + name, values[1], names[1] or names[0]),
        )
        if a.title == b.title:
            both = dict.fromkeys([*sides[0].settings, *sides[1].settings])
            causes = tuple(n for n in both if sides[0].settings.get(n) != sides[1].settings.get(n))
        else:
            causes = tuple(dict.fromkeys([*sides[0].settings, *sides[1].settings]))
        differences.append(QuantityDifference(prefix + name, *sides, causes))
    return differences


def _side(plan: Plan, quantity: str, value: Any, names: list[str]) -> Side:
    assert plan.schedule is not None
    formula = next((formula for formula in plan.formulas if formula.quantity == quantity), None)
    settings = {name: plan.schedule.settings[name] for name in names if name in plan.schedule.settings}
    return Side(value, formula.text if formula else "", settings)


def settings_behind(plan: Plan, quantity: str) -> list[str]:
    """Settings in a quantity's formula, directly or through other quantities; none if there is no formula."""
    assert plan.schedule is not None
    return _settings_behind(quantity, {formula.quantity: formula for formula in plan.formulas}, plan.schedule, set())


def _settings_behind(quantity: str, formulas: dict[str, Formula], schedule: Schedule, seen: set[str]) -> list[str]:
    if quantity in seen or quantity not in formulas:
        return []
    seen.add(quantity)
    found: dict[str, None] = {}
    for name in _NAME.findall(formulas[quantity].text):
        if name in schedule.settings:
            found[name] = None
        else:
            found.update(dict.fromkeys(_settings_behind(name, formulas, schedule, seen)))
    return list(found)
