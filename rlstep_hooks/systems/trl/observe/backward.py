"""What arrives at a loss and at its log-probs in the backward pass.

The gradient that arrives at a loss is the product of all that it was multiplied by after the trainer's loss method. transformers
divides by the micro-batches of the window where the trainer has not done it (trainer.py 4.50 to 5.x, `training_step`); nothing else
belongs there. The gradient at the log-probs, over the one at the loss, is what the loss method itself teaches each token.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.systems.deepspeed_engine.follower import has_loss_scale
from rlstep_hooks.systems.trl.observe.engine_steps import engine_of


class Backward(msgspec.Struct, gc=False):
    """One loss in its backward pass: empty until it is over, and where it was not followed."""

    followed: bool = False
    """Whether the loss is one that a gradient arrives at."""
    over: bool = False
    """Whether the training step has ended: what has not arrived does not come."""
    divisor: int | None = None
    """What the documented factor of the loss is divided by; None where a gradient scaler multiplies it by its own."""
    at_loss: Tensor | None = None
    """(), what arrived at the loss."""
    at_log_probs: Tensor | None = None
    """(B, T), what arrived at the log-probs."""
    version: int = 0
    """Writes to `at_log_probs` that torch had counted when it arrived."""

    def kind(self) -> tuple[bool, bool]:
        """Equal for losses of which the same is known."""
        return self.factor() is None, self.gradient() is None

    def factor(self) -> Tensor | None:
        """The factor of the loss over the documented one, (); 0 where no backward pass came; None where it is not known."""
        if self.at_loss is None:
            return torch.zeros(()) if self.followed and self.over else None
        return None if self.divisor is None else self.at_loss * self.divisor

    def gradient(self) -> Tensor | None:
        """(B, T), that of the loss which the trainer returned, at its log-probs; None where it is not known, or was written to."""
        if self.at_loss is None or self.at_log_probs is None or self.at_log_probs._version != self.version:
            return None
        return self.at_log_probs / self.at_loss.to(self.at_log_probs.dtype)


class BackwardWatch:
    """Follows losses into their backward pass.

    Args:
        trainer: A GRPOTrainer or RLOOTrainer.
        divided_before: Whether the loss method has divided by the accumulation itself.
    """

    def __init__(self, trainer: Any, *, divided_before: bool) -> None:
        self._trainer = trainer
        self._divided_before = divided_before
        scaler = getattr(trainer.accelerator, "scaler", None)
        # Else DeepSpeed is told not to divide (`scale_wrt_gas=False`, transformers 4.49 to 5.23 `training_step`), and has no factor.
        self._scaled = scaler is not None or has_loss_scale(engine_of(trainer))
        """Whether a gradient scaler, or DeepSpeed's own, multiplies each loss by factors of its own."""

    def follow(self, loss: Any, log_probs: Tensor) -> Backward:
        """Note what will arrive at a loss, and at the log-probs that it was computed from, (B, T)."""
        arrived = Backward()
        if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
            return arrived
        arrived.followed = True
        if not self._scaled:
            window = getattr(
                self._trainer, "current_gradient_accumulation_steps", self._trainer.args.gradient_accumulation_steps
            )
            arrived.divisor = 1 if self._divided_before else window

        def note_loss(gradient: Tensor) -> None:
            arrived.at_loss = gradient.detach()

        def note_log_probs(gradient: Tensor) -> None:
            arrived.at_log_probs, arrived.version = gradient.detach(), gradient._version

        loss.register_hook(note_loss)
        log_probs.register_hook(note_log_probs)
        return arrived
