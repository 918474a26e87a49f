"""What DeepSpeed's optimizer does within one update, whichever framework drives its engine.

It gives gradients that the owner of an element gets, and steps on weights of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.guard import Guard, contained
from rlstep_hooks.observe.hooks import Hooks
from rlstep_hooks.observe.norms import norm_of_gradients, parameters_of
from rlstep_hooks.observe.optimizer_tensors import optimizer_tensors_of
from rlstep_hooks.observe.reduction import ReductionWatch
from rlstep_hooks.observe.sharding.zero import (
    held_parameters,
    stepped_tensors,
    why_no_places,
    wrapped_optimizer,
    zero_reduction,
)
from rlstep_hooks.observe.shards import local_shards
from rlstep_hooks.observe.stepped_parts import SteppedParts
from rlstep_hooks.observe.weight_probe import WeightProbe

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.observe.guard import GapRecorder
    from rlstep_hooks.observe.hooks import Call
    from rlstep_hooks.observe.patches import Patches
    from rlstep_hooks.observe.steps import StepFollower

TOPICS = ("weights", "optimizer", "gradient", "reduction")


def has_loss_scale(engine: Any) -> bool:
    """Whether an engine multiplies losses by a scale, and divides gradients by it before the step.

    It does in fp16. Without ZeRO 0.18.2 does in bf16 too: its scale begins at 65536 (runtime/fp16/unfused_optimizer.py; not in 0.18.9).
    """
    return engine is not None and (engine.fp16_enabled() or getattr(engine.optimizer, "loss_scale", 1.0) != 1.0)


class EngineFollower:
    """Follows the inner torch optimizer of one engine from the beginning of `engine.step` to its end.

    Args:
        engine: `deepspeed.DeepSpeedEngine`.
        steps: Gets what is read.
        recorder: Is told what cannot be looked at.
        passes: Micro-batches of a usual window.
        limit: The configured limit of the gradients' norm; that of the engine where it is left out.
        reduces: Whether to record what this rank gives to the gradients of others, and what it gets.
        patches: What takes the hooks off, where somebody else does so.
    """

    def __init__(
        self,
        engine: Any,
        steps: StepFollower,
        recorder: GapRecorder,
        *,
        passes: int,
        limit: float | None = None,
        reduces: bool = True,
        patches: Patches | None = None,
    ) -> None:
        self.optimizer_tensors: dict[str, Any] | None = None
        """What the optimizer holds of the model, as the fact of this name; None where nothing is followed."""
        self._engine = engine
        self._steps = steps
        self.recorder = recorder
        """Is told what cannot be looked at."""
        self._passes = passes
        self._limit = limit
        self._reduces = reduces
        self._hooks = Hooks(recorder, patches)
        self._parts: SteppedParts | None = None
        self._model: WeightProbe | None = None
        """The probe of the weights that forwards read."""
        self._left: Tensor | None = None
        """The weights that forwards read, right after the latest update; None where they were not read there."""
        self._norms: list[Tensor] = []
        self._whole = False
        self._stepping = False
        """Whether `engine.step` is under way."""

    @contained(*TOPICS)
    def attach(self) -> None:
        """Place the hooks, or say why they cannot be."""
        inner = wrapped_optimizer(self._engine)
        hidden = why_no_places(self._engine)
        if not hidden and not hasattr(inner, "register_step_pre_hook"):
            hidden = f"{type(inner).__name__} is no torch optimizer with step hooks"
        if hidden:
            for topic in TOPICS:
                self.recorder.cannot(topic, hidden)
            return
        held = held_parameters(self._engine)
        self.optimizer_tensors = optimizer_tensors_of(self._engine.module.parameters(), held)
        self._parts = SteppedParts(inner, stepped_tensors(self._engine))
        self._steps.in_parts = True
        self._steps.watch_weights(self._parts.tensors)
        self._steps.watch_steps(self._parts)
        # What forwards read are other tensors, which the engine writes at the end of its step and nobody else until the next one.
        self._model = WeightProbe(local_shards(self._engine.module.parameters()))
        self._steps.watch_model(self._of_model_and_optimizer())
        self._steps.watch_moments(inner)
        self._steps.watch_kept(self._engine.module)
        trained = [(name, p) for name, p in self._engine.module.named_parameters() if p.requires_grad]
        self._steps.watch_reached((name, p, len(getattr(p, "ds_shape", p.shape))) for name, p in trained)
        # The inner optimizer's step: once for each group (ZeRO-1, 2), each sub-group (ZeRO-3), or once. It gives what the owner of
        # an element gets, and weights and moments before its step. Verified with DeepSpeed 0.18.2, 0.18.9 and 0.19.8.
        self._hooks.steps(inner, before=self._before_part, topics=TOPICS)
        if self._reduces:
            self._watch_reduction()

    def _of_model_and_optimizer(self) -> list[Any]:
        """The weights that forwards read, and those that the optimizer steps where these are on the same device."""
        own = list(local_shards(self._engine.module.parameters()))
        known, devices = {id(tensor) for tensor in own}, {tensor.device for tensor in own}
        stepped = [tensor for tensor, _ in stepped_tensors(self._engine)]
        return [*own, *(tensor for tensor in stepped if id(tensor) not in known and {tensor.device} == devices)]

    def _watch_reduction(self) -> None:
        found = zero_reduction(self._engine)
        guard = Guard(self.recorder, ("reduction",))
        watch = ReductionWatch(
            found.places,
            guard,
            passes=self._passes,
            role=self._steps.role,
            reduced_in=found.reduced_in,
            approximate=found.approximate,
        )
        self._steps.watch_reduction(watch)
        # Both clip what was reduced, and the first divides it by the loss scale too: ZeRO's optimizers and that of 16 bits without ZeRO
        # (runtime/zero/stage_1_and_2.py 0.19.8:3193, stage3.py:2979, fp16/unfused_optimizer.py:242), and the engine itself in float32
        # without ZeRO (runtime/engine.py:3510). They give reduced gradients before the clip. Verified with DeepSpeed 0.19.8.
        for owner, name in ((self._engine.optimizer, "unscale_and_clip_grads"), (self._engine, "clip_fp32_gradients")):
            if hasattr(owner, name):
                self._hooks.wrap(owner, name, before=self._before_clip, topics=("reduction",))

    def detach(self) -> None:
        """Take the hooks off."""
        self._hooks.take_off()

    # Within one call of engine.step

    def begin(self, update: int, *, whole: bool) -> None:
        """`engine.step` is called.

        Args:
            update: The update that it should make.
            whole: Whether numbers of the whole model are computed for this update.
        """
        self._norms, self._whole, self._stepping = [], whole, True
        if self._parts is not None:
            self._parts.begin()
            self._steps.before_parts(update, whole=whole)
        # A scaler changes its scale within the step, before or after it is used.
        self._steps.gradient_scale = None if has_loss_scale(self._engine) else 1.0

    def _before_clip(self, call: Call) -> None:
        if self._stepping:
            self._steps.gradients_reduced()

    def _before_part(self, call: Call) -> None:
        if self._stepping and self._parts is not None:
            self._see_part(self._parts, call.owner)
            self._steps.before_part(call.owner)

    @contained(*TOPICS)
    def _see_part(self, parts: SteppedParts, optimizer: Any) -> None:
        """Look at the weights and gradients that one of several steps takes."""
        parts.before_step(optimizer)
        norm = norm_of_gradients(parameters_of(optimizer)) if self._whole else None
        if norm is not None:
            self._norms.append(norm)

    def made(self, update: int, rate: float, *, replayed: bool, probed: bool) -> None:
        """The engine has made an update.

        Args:
            update: The index of the update.
            rate: The least learning rate of the groups that are meant to move.
            replayed: Whether its step is replayed.
            probed: Whether weights are read around it.
        """
        self._stepping = False
        if self._parts is None:
            return
        self._see_norm(update)
        self._steps.before_step(update, replayed=replayed, probed=probed, whole=False)
        self._see_stepped(self._parts)
        self._steps.after_step(update, rate, whole=self._whole)
        self._see_left(probed=probed)

    @contained(*TOPICS)
    def _see_norm(self, update: int) -> None:
        """Look at the norm of the gradients of all parts, where the engine clips."""
        limit = float(self._engine.gradient_clipping() if self._limit is None else self._limit)
        if self._norms and limit > 0:
            self._steps.see_norm(update, torch.stack(self._norms).square().sum().sqrt(), limit)

    @contained(*TOPICS)
    def _see_stepped(self, parts: SteppedParts) -> None:
        """Look at the weights that the steps of all parts have left."""
        parts.after_steps()

    @contained(*TOPICS)
    def _see_left(self, *, probed: bool) -> None:
        """Look at the weights that forwards read from now on."""
        self._left = self._model.weights() if self._model is not None and probed else None

    @property
    def model_tensors(self) -> list[Any]:
        """The model's probed tensors, to which the engine writes within its step alone; none where they are gathered and given back
        between steps, which torch counts as writes too."""
        probed = [] if self._model is None else [tensor for tensor, _, _ in self._model.probed]
        return [tensor for tensor in probed if not getattr(tensor, "lent", False)]

    def model_now(self) -> tuple[Tensor, Tensor] | None:
        """The probed weights that the next forward reads, and what the latest update left there; None where that was not read."""
        left = self._left
        return None if self._model is None or left is None else (self._model.weights(), left)

    def not_made(self) -> None:
        """The engine came to no update, or skipped it."""
        self._stepping = False
        self._steps.not_made()
