"""The settings of a run by what they do: judges know no framework, and so none of their names."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.planning.schedule import Schedule

Knob = Literal[
    "learning_rate",
    "rate_schedule",
    "warmup",
    "gradient_limit",
    "kl_coefficient",
    "clip",
    "passes",
    "updates",
    "early_stop",
    "group",
    "temperature",
    "entropy_bonus",
    "length",
    "age",
    "correction",
]
"""What people turn when a run goes wrong."""

MOST = 40
"""Letters of a setting that are shown."""

WORDS: dict[Knob, str] = {
    "learning_rate": "the learning rate",
    "rate_schedule": "the learning-rate schedule",
    "warmup": "the warm-up",
    "gradient_limit": "the limit of the gradient norm",
    "kl_coefficient": "the coefficient of the KL",
    "clip": "the clip range",
    "passes": "the passes over a rollout",
    "updates": "the samples of an update",
    "early_stop": "the limit of the KL from the old policy",
    "group": "the samples of a prompt",
    "temperature": "the sampling temperature",
    "entropy_bonus": "the entropy bonus",
    "length": "the length of training",
    "age": "the age that samples may have",
    "correction": "the correction of the engine's log-probs",
}
"""Each in plain words, for frameworks without a setting of it."""


class RunSettings:
    """The settings of one run.

    Args:
        schedule: The plan of the run; None if it has none.
        knobs: What each is called in its framework; without what the framework does not have.
    """

    def __init__(self, schedule: Schedule | None, knobs: Mapping[Knob, str]) -> None:
        self._written = schedule.settings if schedule is not None else {}
        self._knobs = knobs

    def has(self, knob: Knob) -> bool:
        """Whether the framework has such a setting."""
        return knob in self._knobs

    def name(self, knob: Knob) -> str:
        """What the setting is called in the framework, or what it is."""
        return self._knobs.get(knob, WORDS[knob])

    def text(self, knob: Knob) -> str:
        """The word that the user wrote; empty where the record does not hold one."""
        value = self._value(knob)
        return value[:MOST] if isinstance(value, str) else ""

    def number(self, knob: Knob) -> float | None:
        """The number that the user wrote; None where the record holds no finite one: it may hold anything."""
        value = self._value(knob)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        try:
            return float(value) if isfinite(value) else None
        except OverflowError:  # a whole number beyond all floats
            return None

    def _value(self, knob: Knob) -> Any:
        return self._written.get(self._knobs.get(knob, ""))

    def written(self, knob: Knob) -> str:
        """The setting with its number: " (beta = 0.04)"; empty where the record does not hold it."""
        value = self.number(knob)
        return "" if value is None else f" ({self.name(knob)} = {value:g})"
