"""A probe of the reference model's weights: nothing may write to them, unless `sync_ref_model` says so, and then at its updates.

`ref_model`, `sync_ref_model`, `ref_model_sync_steps` and `ref_model_mixup_alpha` have these names in 0.16 to 1.16.0, where
`SyncRefModelCallback.on_step_end` mixes the policy into the reference whenever `global_step` is a multiple of the period.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.weight_probe import WeightProbe

if TYPE_CHECKING:
    from rlstep_hooks.session.recorder import Recorder

SEEN_ROUNDINGS = 16
"""Roundings of a weight that a mix must move it by for the change to be certain."""


class ReferenceLook(msgspec.Struct, frozen=True):
    """The probed weights of the reference at one rollout."""

    now: Tensor
    known: Tensor
    """What they were: when training began, or, where they are synced, at the look before."""
    shared: bool
    """Whether they are the policy's own tensors."""
    policy: Tensor | None = None
    """The policy's weights in the same places at the look before, if a sync was due since then."""
    share: float = 0.0
    """Of the policy in each sync."""

    def numbers(self) -> dict[str, Tensor]:
        """How many weights changed; and how many had to, if a sync was due."""
        numbers = {"reference_changed": (self.now != self.known).count_nonzero()}
        if self.policy is not None:
            move = self.share * (self.policy.double() - self.now.double()).abs()
            least = SEEN_ROUNDINGS * torch.finfo(self.now.dtype).eps * self.now.double().abs()
            numbers["reference_due"] = (move > least).count_nonzero()
        return numbers


class ReferenceWatch:
    """Looks at the reference of one trainer.

    Args:
        trainer: A GRPOTrainer or RLOOTrainer whose training begins.
    """

    def __init__(self, trainer: Any, recorder: Recorder) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._synced = bool(getattr(trainer.args, "sync_ref_model", False))
        self._why_not = self._hidden()
        self._model = getattr(trainer, "ref_model", None)
        self._probe = (
            None if self._why_not or self._model is None else WeightProbe(self._model.parameters(), frozen=True)
        )
        self._known = self._probe.weights() if self._probe is not None and self._probe.size else None
        self._policy = WeightProbe(trainer.model.parameters(), frozen=True) if self._synced and self._probe else None
        self._step = int(trainer.state.global_step)
        self._left = self._policy.weights() if self._policy is not None else None
        """The policy's weights at the latest look."""

    def attach(self) -> None:
        """Say why the reference is not looked at."""
        if self._why_not:
            self._recorder.cannot("reference", self._why_not)

    def _hidden(self) -> str:
        trainer = self._trainer
        if getattr(trainer, "is_fsdp_enabled", False) or getattr(trainer, "is_deepspeed_enabled", False):
            return "the weights of the reference are sharded"
        if getattr(trainer, "ref_model", None) is None and bool(trainer.beta) and hasattr(trainer.model, "peft_config"):
            return "the reference is the policy with its adapters switched off"
        return ""

    def look(self) -> ReferenceLook | None:
        """The reference at this rollout; None where there is none to look at."""
        model, step = getattr(self._trainer, "ref_model", None), int(self._trainer.state.global_step)
        if self._probe is None or self._known is None or model is None:
            return None
        if model is not self._model:  # another object took its place
            self._model, self._probe = model, WeightProbe(model.parameters(), frozen=True)
        now = self._probe.weights()
        if now.device != self._known.device or now.shape != self._known.shape:
            return None
        due = self._synced and self._sync_due(step)
        policy = self._left if due else None
        share = float(getattr(self._trainer.args, "ref_model_mixup_alpha", 0.0))
        look = ReferenceLook(now, self._known, self._shares(), policy, share)
        if self._synced:
            self._known, self._step = now, step
            self._left = self._policy.weights() if self._policy is not None else None
        return look

    def _sync_due(self, step: int) -> bool:
        period = int(self._trainer.args.ref_model_sync_steps)
        return period > 0 and step // period > self._step // period

    def _shares(self) -> bool:
        own = {parameter.data_ptr() for parameter in self._trainer.model.parameters()}
        assert self._probe is not None
        return any(tensor.data_ptr() in own for tensor, _, _ in self._probe.probed)
