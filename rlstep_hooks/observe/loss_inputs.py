"""What a loss takes besides what the model gives it: read from a batch, and put into it, whatever a framework calls it.

Shapes: N micro-batches, or nothing in that place, as `...`; B samples, T tokens. What is read is (..., B, T), or (..., B, 1) where a
sample has one number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from rlstep_hooks.observe.losses import LossBatch

Kind = Literal["advantages", "log-probs", "weights", "values"]
"""What an input is; it says which mistakes are known of it."""


@dataclass(frozen=True)
class Input:
    """An input of a loss.

    Attributes:
        noun: What it is called, in the plural.
        kind: What it is.
        read: Gives it from a batch; None where the batch has none.
        put: Gives the batch with other ones.
    """

    noun: str
    kind: Kind
    read: Callable[[LossBatch], Tensor | None]
    put: Callable[[LossBatch, Tensor], LossBatch]


def _named(noun: str, kind: Kind, name: str, *, beside: str = "", without: str = "") -> Input:
    """An input that batches hold by a name, where they have one tensor beside it and have not another."""

    def read(batch: LossBatch) -> Tensor | None:
        given = batch.tensors
        return given.get(name) if (not beside or beside in given) and without not in given else None

    return Input(noun, kind, read, lambda batch, tensor: batch.with_tensors(**{name: tensor}))


def _old_behind_ratios(batch: LossBatch) -> Tensor | None:
    """Old log-probs of a batch that holds how far the current ones are from them: for each token, or each sequence."""
    log_ratio = batch.tensors.get("log_ratio")
    if log_ratio is None:
        return None
    current = _current(batch, log_ratio)
    return (current.double() - log_ratio.double()).view(*log_ratio.shape, *[1] * (batch.mask.dim() - log_ratio.dim()))


def _with_other_ratios(batch: LossBatch, old: Tensor) -> LossBatch:
    log_ratio = batch.tensors["log_ratio"]
    changed = _current(batch, log_ratio).double() - old.reshape(log_ratio.shape)
    return batch.with_tensors(log_ratio=changed * batch.mask if log_ratio.dim() == batch.mask.dim() else changed)


def _current(batch: LossBatch, log_ratio: Tensor) -> Tensor:
    log_probs = batch.tensors["log_probs"]
    return log_probs if log_ratio.dim() == log_probs.dim() else (log_probs * batch.mask).sum(-1)


ADVANTAGES = _named("advantages", "advantages", "advantages")
OLD = _named("old log-probs", "log-probs", "old", beside="log_probs")
OLD_BEHIND_RATIOS = Input("old log-probs", "log-probs", _old_behind_ratios, _with_other_ratios)
REFERENCE = _named("reference log-probs", "log-probs", "reference")
ENGINE = _named("engine's log-probs", "log-probs", "engine")
WEIGHTS = _named("importance weights", "weights", "weights")
CORRECTION = _named("importance weights", "weights", "correction")
RETURNS = _named("returns", "values", "returns")
TARGETS = _named("returns", "values", "targets")
OLD_VALUES = _named("old values", "values", "old_values")
OLD_OF_A_CRITIC = _named("old values", "values", "old", beside="values", without="log_probs")

INPUTS = (
    ADVANTAGES, OLD, OLD_BEHIND_RATIOS, REFERENCE, ENGINE, WEIGHTS, CORRECTION, RETURNS, TARGETS, OLD_VALUES, OLD_OF_A_CRITIC,
)  # fmt: skip


def inputs_of(batch: LossBatch) -> tuple[Input, ...]:
    """The inputs that a batch has."""
    return tuple(each for each in INPUTS if each.read(batch) is not None)
