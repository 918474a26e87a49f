"""Rows of one micro-batch of old log-probs, scored again alone (`clean_forward`), beside what the policy of OpenRLHF computed.

`Actor.forward` scores padded rows through the engine of DeepSpeed (models/actor.py 0.11.2:221). A row is scored by another call of the
engine, within the hook on the first: in evaluation mode, and with the same weights.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.judge.rules.precision import precision_class
from rlstep_hooks.judge.rules.ratio.values import MEAN_TOLERANCE
from rlstep_hooks.observe.clean_forward import CleanForward, Row, WholeModel, hooked_by_others, why_not_at_all
from rlstep_hooks.observe.scored_rows import OLD, ScoredRows

if TYPE_CHECKING:
    from rlstep_hooks.observe.hooks import Call


def look(scored: ScoredRows, call: Call, *, temperature: float, dtype: str) -> None:
    """A forward of old log-probs was made of a model that this process holds whole: score rows of it again, if it is the one that is
    looked at.

    Args:
        scored: Says so, and compares.
        call: Of `Actor.forward`; its result is (B, L - 1), log-probs of the tokens that count, 0 elsewhere.
        temperature: By which logits are to be divided, as it is configured.
        dtype: In which it computes, as torch names it.
    """
    if not scored.wants():
        return
    given = call.named("sequences", "action_mask", "attention_mask")
    batch = Scored(given["sequences"], given["attention_mask"], given["action_mask"], call.result)
    compare(scored, call.owner, batch, temperature=temperature, dtype=dtype)


class Scored(msgspec.Struct, frozen=True):
    """One micro-batch that a model scored."""

    sequences: Tensor
    """(B, L), padded on the right."""
    attention: Tensor
    """(B, L), 1 on real tokens."""
    counted: Tensor
    """(B, L - 1), 1 where the token after a position is one of an answer."""
    log_probs: Tensor
    """(B, L - 1), of the token after each position."""


def compare(scored: ScoredRows, actor: Any, batch: Scored, *, temperature: float, dtype: str, of: str = OLD) -> None:
    """Score two rows of a micro-batch again, each alone, by a model that this process holds whole.

    Args:
        scored: Compares.
        actor: OpenRLHF's `Actor`, which scored the micro-batch.
        batch: The micro-batch.
        temperature: By which logits are to be divided, as it is configured.
        dtype: In which the model computes, as torch names it.
        of: What its log-probs are.
    """
    if why := _why_not(actor):
        scored.cannot(why)
        return
    rows = rows_of(batch.sequences, batch.attention, batch.counted)
    observed = [of_answer(row, log_probs) for row, log_probs in zip(rows, batch.log_probs, strict=True)]
    clean = CleanForward(WholeModel(actor.model, nullcontext, packs=False), temperature)
    scored.compare(clean, rows, observed, tolerance_of(dtype), of)


def tolerance_of(dtype: str) -> float:
    """The mean distance that rounding explains in a dtype, as torch names it."""
    return MEAN_TOLERANCE[precision_class(dtype)]


def rows_of(sequences: Tensor, attention: Tensor, counted: Tensor) -> list[Row]:
    """The rows of a micro-batch, each up to the end of its last answer; tensors as in `Scored`."""
    return [_row(*of) for of in zip(sequences, attention, counted, strict=True)]


def of_answer(row: Row, log_probs: Tensor) -> Tensor:
    """(C,), the log-probs of a row's last answer, of (L - 1,) for the token after each position."""
    return log_probs[row.prompt - 1 : row.prompt - 1 + row.length]


def _row(tokens: Tensor, attention: Tensor, counted: Tensor) -> Row:
    """A row up to the end of its last answer.

    Args:
        tokens: (L,), with padding.
        attention: (L,), 1 on real tokens.
        counted: (L - 1,), 1 where the token after a position is one of an answer.
    """
    places = counted.bool().nonzero().squeeze(1)
    if not places.numel():
        return Row(tokens, attention.bool().nonzero().squeeze(1), 0, int(tokens.numel()))
    last = int(places[-1])
    gaps = (places.diff() > 1).nonzero()
    first = int(places[int(gaps[-1]) + 1]) if gaps.numel() else int(places[0])
    real = attention[: last + 2].bool().nonzero().squeeze(1)
    return Row(tokens[: last + 2], real, last - first + 1, first + 1)


def _why_not(actor: Any) -> str:
    """Why no row can be scored alone; empty where rows can."""
    if why := why_not_of_rows(actor):
        return why
    inner = getattr(actor.model, "module", actor.model)
    if hooked_by_others(inner):
        return "somebody's own hooks of the model's modules would see forwards that training does not make"
    return why_not_at_all(inner)


def why_not_of_rows(actor: Any) -> str:
    """Why rows of a micro-batch cannot be taken out of it and scored; empty where they can."""
    if actor.packing_samples:
        return "rows are packed, and whether one alone is scored as it is in a pack was not tried"
    return "rows with images are not scored alone" if getattr(actor, "is_vlm", False) else ""


def is_refresh(call: Call) -> bool:
    """Whether a forward is one of those without a gradient that return log-probs alone."""
    return not torch.is_grad_enabled() and not call.kwargs.get("return_output")
