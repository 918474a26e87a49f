"""Events of gradients on their way over several processes: what each process gave to a reduction, and what it got of it."""

from __future__ import annotations

import msgspec

from rlstep_hooks.record.event_base import Event
from rlstep_hooks.record.values import Role


class TensorParts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A few elements of one tensor's gradient in one update. Numbers are float32, each as the integer of its bits (`Probe.bits`)."""

    name: str
    """The tensor's name in the unwrapped model; the same on all ranks."""
    elements: tuple[int, ...]
    """Flat indices in the whole tensor; the same on all ranks."""
    dtype: str
    """The dtype of the local gradient, as torch names it; empty where none arrived."""
    local: tuple[tuple[int, ...], ...]
    """This rank's own gradient of each backward pass that reached the tensor, of that pass alone, at the elements."""
    owned: tuple[int, ...]
    """Positions in `elements` of the elements that this rank's optimizer holds."""
    reduced: tuple[int, ...] | None = None
    """The gradient at these positions after the reduction and before a clip; None where there was none."""
    used: tuple[int, ...] | None = None
    """The gradient at these positions that the optimizer was about to use; None where there was none."""
    used_dtype: str = ""
    """The dtype of the gradient that the optimizer was about to use."""


class GradientParts(Event, frozen=True, kw_only=True, gc=False, tag="gradient_parts"):
    """This rank's part in the gradient of one update: what its backward passes gave, and what its optimizer got.

    Each rank records the same elements of the same tensors, so that a judge who has all records can say whether what was got is the
    mean of what was given. Nothing is sent for it.
    """

    update: int
    """Index of the update."""
    role: Role = "policy"
    tensors: tuple[TensorParts, ...] = ()
    reduced_in: str = ""
    """The dtype in which ranks add up gradients, as torch names it; empty where it is that of the local gradients."""
    approximate: bool = False
    """Whether the reduction is one of the user's own, or a known one that rounds more than any dtype does."""
    before_clip: bool = False
    """Whether `reduced` was read before the gradients were clipped; else it is what the optimizer used."""
    norm: float | None = None
    """Norm of all gradients that the clip takes together, as far as this rank holds them, when the optimizer steps; None if it was not
    computed."""
    limit: float | None = None
    """The configured limit of the norm over all ranks; None if nothing clips, or that is not known."""
    scale: float | None = 1.0
    """What the optimizer's gradients are divided by besides the clip, which a gradient scaler decides; None where it is not
    known."""
    seeds: tuple[float, ...] = ()
    """What arrived at the loss of each micro-batch in its backward pass; empty where that was not followed."""
