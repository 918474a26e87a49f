"""Notes that several systems have: what the KL term compares with, and why a ratio at lag 0 is not exactly 1."""

from __future__ import annotations

import re
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


_CONFIGURED = ("peft_config", "GRPOTrainer.peft_config", "RLOOTrainer.peft_config", "PPOTrainer.peft_config")
_ASKED = "use_peft"
_YES = ("true", "yes", "t", "y", "1")
_WRITTEN_OUT = re.compile(r"(?:\w+\.)*\w*Config\(")
"""A configuration of PEFT that is made where it is given: `LoraConfig(r=8)`."""

ADAPTER_OFF = Note("reference", BASE_MODEL, "reference_source != 'none' and has_adapter(launch)")
"""A note for frameworks on PEFT: with an adapter the reference is the model below it. `has_adapter` is one of the functions."""


def has_adapter(launch: Request) -> bool:
    """Whether a launch on PEFT is known to train an adapter: a configuration written out in a file of Python, or the flag.

    TRL's own `get_peft_config(model_args)` is no adapter by itself: it is None unless `use_peft` is set (trl 0.16.1
    trl/trainer/utils.py:906, 1.16.0 trl/trainer/utils.py:281).
    """
    given = launch.settings.launched
    launch.settings.is_given(*_CONFIGURED, _ASKED)  # marks them as read
    configured = (given[name] for name in _CONFIGURED if name in given)
    asked = given.get(_ASKED)
    return any(_WRITTEN_OUT.match(str(each.value)) for each in configured) or (
        asked is not None and not asked.unknown and str(asked.value).lower() in _YES
    )


def other_shapes(before: str, after: str, when: str = "True") -> Note:
    """Old log-probs are computed in other micro-batches than the updates.

    Args:
        before: Samples of a micro-batch of the one, as an expression.
        after: Samples of a micro-batch of the other, as an expression.
        when: The condition under which both are sizes in samples.
    """
    text = SHAPES.replace("{before}", f"{{{before}}}").replace("{after}", f"{{{after}}}")
    return Note("ratio", text, f"({when}) and ({before}) and ({after}) and ({before}) != ({after})")
