"""By what a loss is multiplied between the trainer's loss method and the backward pass.

The gradient that arrives at a loss is that factor, wherever it was multiplied. transformers divides by the micro-batches of the window
where the trainer has not done it (trainer.py 4.50 to 5.x, `training_step`); nothing else belongs there.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


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
        self._scaled = scaler is not None or getattr(trainer, "is_deepspeed_enabled", False)
        """Whether a gradient scaler or DeepSpeed multiplies each loss by factors of its own."""

    def follow(self, loss: Any) -> list[Tensor]:
        """A list that holds, once the backward pass is over, the factor of the loss over the documented one: a number on the device."""
        arrived: list[Tensor] = []
        if self._scaled or not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
            return arrived
        window = getattr(
            self._trainer, "current_gradient_accumulation_steps", self._trainer.args.gradient_accumulation_steps
        )
        divisor = 1 if self._divided_before else window

        def note(gradient: Tensor) -> None:
            arrived.append(gradient.detach() * divisor)

        loss.register_hook(note)
        return arrived
