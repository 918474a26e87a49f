"""A probe of the reference model's weights: nothing may write to them, unless `sync_ref_model` says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.weight_probe import WeightProbe

if TYPE_CHECKING:
    from torch import Tensor


class ReferenceWatch:
    """Looks at the reference of one trainer.

    Args:
        trainer: A GRPOTrainer or RLOOTrainer whose training begins.
    """

    def __init__(self, trainer: Any) -> None:
        reference = getattr(trainer, "ref_model", None)
        synced = getattr(trainer.args, "sync_ref_model", False)
        sharded = getattr(trainer, "is_fsdp_enabled", False) or getattr(trainer, "is_deepspeed_enabled", False)
        self._probe = (
            None if reference is None or synced or sharded else WeightProbe(reference.parameters(), frozen=True)
        )
        self._first = self._probe.weights() if self._probe is not None and self._probe.size else None

    def look(self) -> tuple[Tensor, Tensor] | None:
        """The probed weights of now and those that training began with; None where there is no reference to look at."""
        if self._probe is None or self._first is None:
            return None
        now = self._probe.weights()
        return (now, self._first) if now.device == self._first.device else None
