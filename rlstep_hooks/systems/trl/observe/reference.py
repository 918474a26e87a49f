"""A probe of the reference model's weights: nothing may write to them, unless `sync_ref_model` says so, and then by its formula.

`ref_model`, `sync_ref_model`, `ref_model_sync_steps` and `ref_model_mixup_alpha` have these names in 0.16 to 1.16.0, where
`SyncRefModelCallback.on_step_end` (trl/trainer/callbacks.py: 126 in 0.16.1, 148 in 1.16.0) makes each weight
`(1 - ref_model_mixup_alpha) * reference + ref_model_mixup_alpha * policy` whenever `global_step` is a multiple of
`ref_model_sync_steps`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.shards import local_shards
from rlstep_hooks.observe.weight_probe import WeightProbe
from rlstep_hooks.record.events import UpdateValues
from rlstep_hooks.systems.trl.observe.measure import version_of

if TYPE_CHECKING:
    from rlstep_hooks.session.recorder import Recorder

ROUNDINGS = 4
"""Roundings, of the sizes of both weights, that a mix in the reference's own dtype explains."""

OTHER_MIXES = (
    "was not synced",
    "was synced twice",
    "took the two shares the other way round",
    "is a copy of the policy",
)
"""What a reference that is not the documented mix may be instead, in words that follow "it"."""


class ReferenceLook(msgspec.Struct, frozen=True):
    """The probed weights of the reference at one rollout."""

    now: Tensor
    known: Tensor
    """The probed weights of the reference when training began, or after the latest sync."""
    shared: bool
    """Whether the reference's tensors are the policy's own."""
    written: int | None
    """Probed tensors that torch saw written to in place since the look before; None where that is not known."""

    def numbers(self) -> dict[str, Tensor]:
        """How many weights changed."""
        return {"reference_changed": (self.now != self.known).count_nonzero()}


class SyncSource(msgspec.Struct, frozen=True):
    """What a vector means: the probed weights that are not the documented mix, then those that are not each of `OTHER_MIXES`."""

    of: ClassVar = UpdateValues
    update: int
    """The update after which the sync was due."""

    def values(self, numbers: list[float]) -> dict[int, dict[str, Any]]:
        """The vector's numbers, as fields of `UpdateValues`."""
        off, *others = numbers
        like = next((words for words, count in zip(OTHER_MIXES, others, strict=True) if not count), "") if off else ""
        return {self.update: {"reference_off": int(off), "reference_like": like}}


class _Sync(msgspec.Struct, frozen=True, gc=False):
    """One sync that was due, and the probed weights around it."""

    update: int
    known: Tensor
    """Probed weights of the reference before the sync."""
    now: Tensor
    policy: Tensor
    share: float
    """The share of the policy in the mix."""

    def compare(self) -> Tensor:
        """Give the vector that `SyncSource` describes, float32."""
        known, now, policy = (of.double() for of in (self.known, self.now, self.policy))
        once = torch.lerp(known, policy, self.share)
        mixes = once, known, torch.lerp(once, policy, self.share), torch.lerp(policy, known, self.share), policy
        allowed = ROUNDINGS * torch.finfo(self.now.dtype).eps * (known.abs() + policy.abs())
        return torch.stack([((now - mix).abs() > allowed).count_nonzero() for mix in mixes]).float()


class ReferenceWatch:
    """Looks at the reference of one trainer.

    Args:
        trainer: A GRPOTrainer or RLOOTrainer whose training begins.
    """

    def __init__(self, trainer: Any, recorder: Recorder) -> None:
        self._trainer = trainer
        self.recorder = recorder
        """The recorder that events go to."""
        self._synced = bool(getattr(trainer.args, "sync_ref_model", False))
        self._why_not = self._hidden()
        self._model = getattr(trainer, "ref_model", None)
        self._probe = None if self._why_not or self._model is None else _probe_of(self._model)
        self._known = self._probe.weights() if self._probe is not None and self._probe.size else None
        """None where there is nothing to compare with: no reference, or a sync that was not looked at."""
        self._policy = _probe_of(trainer.model) if self._synced and self._probe else None
        self._step = int(trainer.state.global_step)
        self._syncs = 0
        """Syncs that were due so far."""
        self._writes = self._writes_so_far()
        self._held: list[_Sync] = []

    def attach(self) -> None:
        """Say why the reference is not looked at."""
        if self._why_not:
            self.recorder.cannot("reference", self._why_not)

    def _hidden(self) -> str:
        trainer = self._trainer
        reference = getattr(trainer, "ref_model", None)
        if reference is not None and any(_is_elsewhere(parameter) for parameter in reference.parameters()):
            return "the weights of the reference are in memory only while they are used"
        if reference is None and bool(trainer.beta) and hasattr(trainer.model, "peft_config"):
            return "the reference is the policy with its adapters switched off"
        return ""

    # Syncs

    def goes_on(self, update: int) -> None:
        """A window or an evaluation begins, so whatever was to follow the update before it is done: look at a sync that was due.

        Args:
            update: The update before it.
        """
        step = int(self._trainer.state.global_step)
        if not self._synced or step == self._step:
            return
        self._step = step
        self._look_at_sync(step, update)

    @contained("reference")
    def _look_at_sync(self, step: int, update: int) -> None:
        if step % int(self._trainer.args.ref_model_sync_steps) != 0:
            return
        known, self._known = self._known, None
        self._syncs += 1
        probe, policy = self._probe_now(), self._policy
        if not is_compared(self._syncs - 1) or probe is None or policy is None:
            return
        now = self._known = probe.weights()
        if known is None or not _alike(known, now) or _places(probe) != _places(policy):
            return
        of_policy = policy.weights()
        if of_policy.device == now.device:
            share = float(self._trainer.args.ref_model_mixup_alpha)
            self._held.append(_Sync(update, known, now, of_policy, share))

    def work_up(self) -> list[tuple[SyncSource, Tensor]]:
        """The numbers of all syncs since the last call."""
        held, self._held = self._held, []
        return [(SyncSource(sync.update), sync.compare()) for sync in held]

    # Rollouts

    def look(self) -> ReferenceLook | None:
        """The reference at this rollout; None where there is none to look at."""
        probe, known = self._probe_now(), self._known
        if probe is None:
            return None
        now = probe.weights()
        if known is None or not _alike(known, now):
            self._known = now if probe.size else None
            return None
        look = ReferenceLook(now, known, self._shares(probe), self._written())
        if self._synced:
            self._known = now
        return look

    def _probe_now(self) -> WeightProbe | None:
        """The probe of the model that is the reference now; None without one."""
        model = getattr(self._trainer, "ref_model", None)
        if self._probe is None or model is None:
            return None
        if model is not self._model:  # another object took its place
            self._model, self._probe = model, _probe_of(model)
            self._writes = None
        return self._probe

    def _writes_so_far(self) -> list[int] | None:
        return None if self._probe is None else [version_of(tensor) for tensor, _, _ in self._probe.probed]

    def _written(self) -> int | None:
        before, now = self._writes, self._writes_so_far()
        self._writes = now
        if before is None or now is None:
            return None
        return sum(earlier != later for earlier, later in zip(before, now, strict=True))

    def _shares(self, probe: WeightProbe) -> bool:
        own = {shard.data_ptr() for shard in local_shards(self._trainer.model.parameters())}
        return any(tensor.data_ptr() in own for tensor, _, _ in probe.probed)


def _probe_of(model: Any) -> WeightProbe:
    """A probe of this process's part of a model: FSDP2, FSDP1 and ZeRO-3 cut reference and policy alike. With the other stages of ZeRO
    each process holds the whole reference (trl/models/utils.py 1.16.0:292, 246)."""
    return WeightProbe(local_shards(model.parameters()), frozen=True)


def _is_elsewhere(parameter: Any) -> bool:
    """Whether ZeRO-3 keeps a parameter on a disk (runtime/zero/partition_parameters.py 0.19.8:1820), or as whole numbers (:1838)."""
    part = getattr(parameter, "ds_tensor", None)
    return part is not None and (part.final_location is not None or hasattr(part, "ds_quant_scale"))


def _places(probe: WeightProbe) -> list[tuple[int, int]]:
    """How many weights of each probed tensor are probed, and their distance."""
    return [(count, distance) for _, count, distance in probe.probed]


def _alike(one: Tensor, other: Tensor) -> bool:
    return (one.device, one.shape, one.dtype) == (other.device, other.shape, other.dtype)
