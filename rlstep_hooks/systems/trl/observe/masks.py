"""The documented mask of completions: which tokens a loss counts. B samples, T completion tokens.

Source: `_generate_and_score_completions` of grpo_trainer.py 0.16.1 (line 729), 0.24.0 (1301, 1391) and 1.16.0 (1881, 2487), and TRL's
documentation of `mask_truncated_completions`.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import msgspec
import torch

if TYPE_CHECKING:
    from torch import Tensor

_OTHER_ENDS = ("eos_token_id", "ignore_eos", "stop", "stop_strings", "stop_token_ids", "include_stop_str_in_output")
"""Settings of the generation with which a completion may end, or go on, in another way."""


class MaskRule(msgspec.Struct, frozen=True):
    """What decides which tokens of a completion are counted."""

    ends: tuple[int, ...]
    """Tokens that end a completion."""
    pad: int | None
    masks_truncated: bool
    """Whether a completion without an end is left out (`mask_truncated_completions`)."""
    longest: int | None = None
    """Tokens that a completion can have (`max_completion_length`); what comes after them is padding. None where there is no limit."""

    def wrong(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """How many samples of each rollout have a mask that is not the documented one: (..., B, T) -> (...).

        With an end, the tokens through the first end are counted. Without one, all are, or none where truncated completions are left
        out. Padding behind a completion without an end may be counted or not: releases and engines differ there.
        """
        counted = mask.bool()
        ends = functools.reduce(operator.or_, [tokens == end for end in self.ends])
        last = tokens.shape[-1] if self.longest is None else min(self.longest, tokens.shape[-1])
        # A tokenizer may pad with its end, and `pad_to_multiple_of` pads beyond the longest completion: that padding ends nothing.
        ends[..., last:] = False
        through_end = ends.cumsum(-1) - ends.int() == 0
        padding = tokens == self.pad if self.pad is not None else torch.zeros_like(counted)
        without_end = (
            counted.any(-1) & ~padding[..., last - 1] if self.masks_truncated else (~counted & ~padding).any(-1)
        )
        return torch.where(ends.any(-1), (counted != through_end).any(-1), without_end).sum(-1)


def read_mask_rule(trainer: Any) -> MaskRule | None:
    """The rule of a live GRPOTrainer or RLOOTrainer; None where completions consist of several turns, or may end in other ways."""
    # What an environment says first is part of the prompt; another turn is asked for only where a tool was called.
    several_turns = any(getattr(trainer, name, None) for name in ("tools", "rollout_func"))
    generation = getattr(trainer.args, "generation_kwargs", None) or {}
    if several_turns or any(name in generation for name in _OTHER_ENDS):
        return None
    ends, pad = ends_of(trainer)
    if any(end is None for end in ends):
        return None
    return MaskRule(
        ends=ends,
        pad=pad,
        masks_truncated=bool(getattr(trainer, "mask_truncated_completions", False)),
        longest=getattr(trainer, "max_completion_length", None),
    )


def ends_of(trainer: Any) -> tuple[tuple[int, ...], int | None]:
    """The tokens that end a completion, and the one that pads it."""
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    ends = getattr(trainer, "eos_token_ids", None) or [getattr(trainer, "eos_token_id", tokenizer.eos_token_id)]
    return tuple(ends), tokenizer.pad_token_id
