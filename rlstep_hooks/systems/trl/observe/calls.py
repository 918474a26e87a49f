"""What hooks on one trainer have seen so far, between the beginning and the end of one of its calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.record.events import Purpose


class LogProbCall:
    """One call of the trainer's log-prob method."""

    __slots__ = ("grad", "log_probs", "model", "others", "version")

    def __init__(self, model: Any, log_probs: Tensor, others: tuple[Any, ...], version: int, grad: bool) -> None:
        self.model = model
        self.log_probs = log_probs
        self.others = others
        """What the method returned besides: entropies (0.20 and later), the auxiliary loss (1.7 and later)."""
        self.version = version
        self.grad = grad


class Activity:
    """What the trainer is doing while a hook runs: the calls seen since it began."""

    __slots__ = ("calls", "loss", "loss_inputs", "purpose")

    def __init__(self, purpose: Purpose) -> None:
        self.purpose = purpose
        self.loss_inputs: dict[str, Any] | None = None
        self.calls: list[LogProbCall] = []
        self.loss: Tensor | None = None
