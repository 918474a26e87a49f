"""Notes that several systems have: what the KL term compares with, and why a ratio at lag 0 is not exactly 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.planning.reading import Note

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.request import Request

BASE_MODEL = (
    "the base model: reference log-probs are computed with the LoRA adapter switched off, and no second model is loaded"
)
SHAPES = (
    "old log-probs are computed in micro-batches of {before} samples, updates make their own of {after}: other shapes round "
    "differently, so that the ratio at lag 0 is near 1 and not exactly 1 (RLS301 measures it)"
)


ADAPTER_OFF = Note("reference", BASE_MODEL, "reference_source != 'none' and has_adapter(launch)")
"""A note for frameworks on PEFT: with an adapter the reference is the model below it. `has_adapter` is one of the functions."""


def has_adapter(launch: Request) -> bool:
    """Whether a launch on PEFT trains an adapter, by a flag or by `peft_config=...` in a file of Python."""
    settings = launch.settings
    return settings.is_given(
        "peft_config", "GRPOTrainer.peft_config", "RLOOTrainer.peft_config", "PPOTrainer.peft_config"
    ) or (settings.is_given("use_peft") and settings.value("use_peft") not in (False, "False", "false"))


def other_shapes(before: str, after: str, when: str = "True") -> Note:
    """Old log-probs are computed in other micro-batches than the updates.

    Args:
        before: Samples of a micro-batch of the one, as an expression.
        after: Samples of a micro-batch of the other, as an expression.
        when: The condition under which both are sizes in samples.
    """
    text = SHAPES.replace("{before}", f"{{{before}}}").replace("{after}", f"{{{after}}}")
    return Note("ratio", text, f"({when}) and ({before}) and ({after}) and ({before}) != ({after})")
