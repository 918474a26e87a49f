"""Shared by systems whose trainers use transformers' TrainingArguments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlstep_hooks.launch.settings import Settings


def learning_rate_facts(settings: Settings, horizon: int | None) -> dict[str, Any]:
    """`lr_constant` and `lr_warmup` of a Reading's facts, from lr_scheduler_type, warmup_steps and warmup_ratio.

    Args:
        settings: The settings.
        horizon: Ticks of the learning-rate schedule; None if not known.
    """
    warmup = settings.number("warmup_steps")
    if not warmup and horizon is not None:
        warmup = settings.number("warmup_ratio") * horizon
    elif 0 < warmup < 1 and horizon is not None:  # transformers 5: a share of the run; 4 refuses it
        warmup = warmup * horizon
    return {
        "lr_constant": (settings.text("lr_scheduler_type") or "").startswith("constant"),
        "lr_warmup": math.ceil(warmup),
    }
