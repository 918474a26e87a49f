"""Optimizer steps of one live trainer: gives Update, and reads a probe of the weights around each."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel

from rlstep_hooks.observe.compared import is_compared, is_compared_whole, is_probed, part_read
from rlstep_hooks.observe.gradient_watch import GradientWatch
from rlstep_hooks.observe.guard import Guard, contained
from rlstep_hooks.observe.hooks import Hooks
from rlstep_hooks.observe.norms import clipped_with, norm_of_gradients, parameters_of
from rlstep_hooks.observe.optimizer_tensors import optimizer_tensors, stepped_by
from rlstep_hooks.observe.rates import ScheduleWatch, keeps_still, rates_of, tick_of
from rlstep_hooks.observe.reduction import ReductionWatch
from rlstep_hooks.observe.replicas import ReplicaWatch
from rlstep_hooks.observe.sharding.zero import parameters_of_groups, wrapped_optimizer
from rlstep_hooks.observe.shards import local_shard, local_shards, plain_name
from rlstep_hooks.observe.steps import StepFollower
from rlstep_hooks.record.events import RATE_SCHEDULE, ConfigChanged, FactsRead, Update
from rlstep_hooks.systems.deepspeed_engine.follower import EngineFollower
from rlstep_hooks.systems.trl.observe.before_sharding import taken
from rlstep_hooks.systems.trl.observe.engine_steps import EngineSteps, engine_of
from rlstep_hooks.systems.trl.observe.ranks import reduction_of, replicas_of
from rlstep_hooks.systems.trl.observe.settings import OptimizerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlstep_hooks.observe.hooks import Call
    from rlstep_hooks.observe.rates import RatesOfStep
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.trl.observe.configured_rates import ConfiguredRates
    from rlstep_hooks.systems.trl.observe.engine_steps import EngineStep


_VERSION = attrgetter("_version")
"""Reads torch's counter of in-place writes to a tensor."""


class UpdateObserver:
    """Sees real steps only, through torch's own optimizer hooks: not those that a gradient scaler skips, nor accelerate's wrapper.
    Where DeepSpeed's engine makes the steps, it sees those of the engine (`EngineFollower`).

    Counts the micro-batches between steps as it is told of them. Holds in the releases that `observe` names.

    Args:
        trainer: The trainer.
        recorder: Takes the events.
        per_cycle: Updates of a cycle of rollouts; in some cycles the steps are replayed.
        limit: The configured limit of the gradient norm, read at a step; None where the trainer clips nothing.
        configured: Gives the rates that the configuration asks for when training begins, or why it does not say them.
    """

    def __init__(
        self,
        trainer: Any,
        recorder: Recorder,
        *,
        per_cycle: int = 1,
        limit: Callable[[], float | None] = lambda: None,
        configured: Callable[[Any, Any], ConfiguredRates | str] | None = None,
    ) -> None:
        self._trainer = trainer
        self._per_cycle = per_cycle
        self._limit = limit
        self._configured = configured
        self.recorder = recorder
        """The recorder that events go to."""
        self.active = False
        self.version = int(trainer.state.global_step)
        """Updates applied to the policy so far."""
        self._windows = self.version
        self._microbatches = 0
        self._handles: list[Any] = []
        self._norm_before_clip: Tensor | None = None
        """What the clip of this update returned."""
        self._inner: EngineFollower | None = None
        """Follows what the engine's optimizer does within the engine's steps."""
        self._engine: EngineSteps | None = None
        """Steps of DeepSpeed's engine; None where the loop steps a torch optimizer."""
        self._own_scaler = getattr(trainer.accelerator, "scaler", None)
        self._sharded = bool(getattr(trainer, "is_fsdp_enabled", False))
        self._stepped = False
        self._loop_steps = False
        self._rates: RatesOfStep | None = None
        """The rates of the optimizer's groups at the step that is made; None where they were not read."""
        self._due: ConfiguredRates | None = None
        """What the configuration asks for; None where it does not say it, and from when on somebody changed the schedule."""
        self._ticks = self.version
        """Updates that the loop has made: each moves the schedule by one."""
        self._tick: int | None = None
        self._schedule: ScheduleWatch | None = None
        self._began = False
        """Whether a micro-batch of this window has begun."""
        self._trained: list[Any] = []
        """Tensors, or this process's parts of them, that are trained when training begins."""
        self._tensors: list[Any] = []
        """Tensors of which torch counts the writes, where sharding moves no weights about (FSDP1 does): all that are trained, and of
        shards, of which asking takes long, those that are probed."""
        self._writes: list[int] | None = None
        """Writes to these tensors, as torch had counted them after the latest step."""
        self._written: int | None = None
        """How many of them were written to between that step and this one."""
        self.steps = StepFollower(recorder)
        self.steps.part_of_update = partial(part_read, per_cycle=per_cycle)
        self.settings: OptimizerSettings | None = None
        self._hooks = Hooks(recorder)

    def attach(self, optimizer: Any) -> None:
        """Place the hooks on the torch optimizer inside the trainer's.

        Args:
            optimizer: What the trainer tells its callbacks; None where somebody took it from them.
        """
        self.active = True
        if getattr(self._trainer, "is_deepspeed_enabled", False):
            self._cannot("DeepSpeed makes the optimizer step inside its own engine")
            return
        inner = self._trainer.optimizer if optimizer is None else optimizer
        while hasattr(inner, "optimizer"):
            inner = inner.optimizer
        if not hasattr(inner, "register_step_post_hook"):
            self._cannot(f"{type(inner).__name__} is no torch optimizer with step hooks")
            return
        self._watch_schedule(inner)
        self._handles.append(inner.register_step_pre_hook(self._before_step))
        self._handles.append(inner.register_step_post_hook(self._after_step))
        self._see_optimizer_tensors(inner)
        self.settings = OptimizerSettings(self._trainer, inner)
        # FSDP2's parameters are DTensors, FSDP1's are views of this process's part of a flat one, or the flat ones themselves.
        self.steps.watch_weights(local_shards(_moved_by(inner, self._trainer.model.parameters())))
        self.steps.watch_steps(inner)
        self._watch_gradients()
        if self.steps.probe is not None and not self._flat:
            shards = [tensor for tensor, _, _ in self.steps.probe.probed]
            self._tensors = shards if self._sharded else self._trained
        if not self._sharded:
            self.steps.watch_model(self._trained)
        if not self._flat:
            self.steps.watch_moments(inner)
        if not self._flat and not self._merges:
            self.steps.watch_kept(self._trainer.model)
        if self._trainer.accelerator.num_processes > 1:
            self._watch_reduction()
            self._watch_replicas(before_sharding=True)

    @contained("weights")
    def _see_optimizer_tensors(self, optimizer: Any) -> None:
        held = optimizer_tensors(self._trainer.model.parameters(), optimizer)
        self.recorder.emit(FactsRead(at=self.recorder.now(), facts={"optimizer_tensors": held}))

    @contained("replicas")
    def _watch_replicas(self, *, before_sharding: bool = False) -> None:
        """Compare what all ranks should hold alike.

        Args:
            before_sharding: Whether to compare also with what the model was before it was sharded.
        """
        before = taken(self._trainer) if before_sharding else None
        self.steps.watch_replicas(ReplicaWatch(replicas_of(self._trainer), before=before), self._windows)

    def _watch_gradients(self) -> None:
        named = [(plain_name(name), local_shard(p)) for name, p in self._trainer.model.named_parameters()]
        self._trained = [tensor for _, tensor in named if tensor.requires_grad]
        if self._own_scaler is not None:
            return  # it multiplies gradients between autograd and the step
        self.steps.watch_graded(of for of in named if of[1].requires_grad)
        if self._trainer.accelerator.num_processes == 1 and not self._sharded:
            guard = Guard(self.recorder, ("gradient",))
            self.steps.watch_gradients(GradientWatch(named, guard))
        else:  # gradients are averaged on the way; from the last backward pass to the step nothing but the clip may change them
            self.steps.watch_whole(named)
            if not self._sharded:  # what other ranks give stands in the place of what this one does not
                self.steps.watch_reached((name, of, of.dim()) for name, of in named if of.requires_grad)

    @contained("reduction")
    def _watch_reduction(self) -> None:
        found = reduction_of(self._trainer)
        if found.hidden:
            self.recorder.cannot("reduction", found.hidden)
            return
        watch = ReductionWatch(
            found.places,
            Guard(self.recorder, ("reduction",)),
            passes=self._trainer.args.gradient_accumulation_steps,
            reduced_in=found.reduced_in,
            approximate=found.approximate,
            now=found.now,
        )
        self.steps.watch_reduction(watch)
        if self._own_scaler is not None:
            self.steps.gradient_scale = None
        # accelerator.py 1.15.0:2989: the only place where transformers clips (trainer.py 5.23.0:2769, 2780; earlier releases in the
        # loop itself), once gradients are reduced and before a scaler divides them. Seen in TRL 1.16.0 to give reduced gradients,
        # and to return their norm.
        self._hooks.wrap(
            self._trainer.accelerator,
            "clip_grad_norm_",
            before=self._before_clip,
            after=self._after_clip,
            topics=("reduction",),
        )

    def _before_clip(self, call: Call) -> None:
        self._norm_before_clip = None
        if self.active:
            self.steps.gradients_reduced()

    def _after_clip(self, call: Call) -> None:
        whole = isinstance(call.result, Tensor) and not hasattr(call.result, "to_local")
        self._norm_before_clip = call.result.detach() if whole and call.result.numel() == 1 else None

    @contained("weights")
    def _watch_schedule(self, optimizer: Any) -> None:
        kind = self._trainer.args.lr_scheduler_type
        self._schedule = ScheduleWatch(str(getattr(kind, "value", kind)), self._trainer.lr_scheduler)
        if self._configured is None:
            return
        due = self._configured(self._trainer, optimizer)
        self._due = None if isinstance(due, str) else due
        name = "configured_schedule" if self._due is not None else "rates_unknown"
        said = str(getattr(kind, "value", kind)) if self._due is not None else due
        self.recorder.emit(FactsRead(at=self.recorder.now(), facts={name: said}))
        skips = self._own_scaler is not None or getattr(self._trainer, "is_deepspeed_enabled", False)
        if self.version and skips:  # the interrupted run may have counted steps that it skipped, and not ticked at them
            live = self._trainer.lr_scheduler
            self._ticks = tick_of(getattr(live, "scheduler", live)) or 0

    def _follow_schedule(self) -> None:
        """Say that the schedule of the rate was changed: what it gives from now on is then expected."""
        changed = None if self._schedule is None else self._schedule.changed(self._trainer.lr_scheduler)
        if changed is None or (changed == (None, None) and self._due is None):
            return
        self._due = None
        now = self.recorder.now()
        self.recorder.emit(
            ConfigChanged(at=now, name=RATE_SCHEDULE, before=changed[0], after=changed[1], since="train_begin")
        )
        self.recorder.emit(FactsRead(at=now, facts={"lr_schedule": changed[1]}))

    def attach_to_engine(self) -> None:
        """Place the hook on the DeepSpeed engine that makes the steps, for a loop that steps as transformers' Trainer does."""
        self.active = True
        engine = engine_of(self._trainer)
        if engine is None:
            self._cannot("DeepSpeed's engine, which makes the updates, was not found")
            return
        self._watch_schedule(wrapped_optimizer(engine))
        passes = self._trainer.args.gradient_accumulation_steps
        self._inner = follower = EngineFollower(engine, self.steps, self.recorder, passes=passes)
        follower.attach()
        if follower.optimizer_tensors is not None:
            held = {"optimizer_tensors": follower.optimizer_tensors}
            self.recorder.emit(FactsRead(at=self.recorder.now(), facts=held))
        self._watch_engine_settings(engine)
        self._tensors = follower.model_tensors
        self._trained = [parameter for parameter in self._trainer.model.parameters() if parameter.requires_grad]
        if self._trainer.accelerator.num_processes > 1:
            self._watch_replicas()
        self._engine = EngineSteps(
            engine,
            self._trainer.lr_scheduler,
            begins=partial(self._engine_steps, follower),
            ends=partial(self._engine_stepped, follower),
        )
        self._engine.attach(self._hooks)

    @contained("weights")
    def _watch_engine_settings(self, engine: Any) -> None:
        inner = wrapped_optimizer(engine)
        if hasattr(inner, "param_groups") and hasattr(inner, "defaults"):
            self.settings = OptimizerSettings(self._trainer, inner, parameters_of_groups(engine))

    def _engine_steps(self, follower: EngineFollower) -> None:
        self._see_engine_before_step()
        self._see_kept()
        follower.begin(self._windows, whole=is_compared_whole(self._windows // self._per_cycle))

    @contained("weights", "learning_rate")
    def _see_engine_before_step(self) -> None:
        if self.settings is not None and is_compared(self._windows // self._per_cycle):
            self.settings.tell(self.recorder, stepped=self.version > 0)
        self._written = self._count_written()

    def _see_kept(self) -> None:
        """Look once a cycle at what training leaves as it is, where no sync to an engine writes to it."""
        cycle, place = divmod(self._windows, self._per_cycle)
        if place == 0 and is_compared_whole(cycle) and not self._merges:
            self.steps.see_kept(self._windows, cycle)

    def _engine_stepped(self, follower: EngineFollower, made: EngineStep | None) -> None:
        if made is None:
            follower.not_made()
            return
        cycle = self._windows // self._per_cycle
        least = made.rates.least_moving
        rate = least if isinstance(least, float) else 0.0
        follower.made(self._windows, rate, replayed=is_compared(cycle), probed=bool(self._written) or is_probed(cycle))
        self._writes = self._writes_so_far()

    def _cannot(self, why: str) -> None:
        for topic in ("order", "versions", "weights", "learning_rate"):
            self.recorder.cannot(topic, why)

    def detach(self) -> None:
        """Take the hooks off."""
        self.active = False
        self.steps.remove()
        if self._inner is not None:
            self._inner.detach()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooks.take_off()

    @property
    def follows_microbatch(self) -> bool:
        """Whether the loop steps right after the micro-batch it is at (accelerate's own flag, which transformers sets)."""
        followed = bool(self._handles) or self._engine is not None
        return followed and bool(self._trainer.accelerator.sync_gradients)

    @property
    def _flat(self) -> bool:
        """Whether FSDP1 holds the parameters in flat ones. TRL's PPOTrainer has no model by this name; with FSDP it is not audited."""
        return isinstance(getattr(self._trainer, "model_wrapped", None), FullyShardedDataParallel)

    @property
    def _merges(self) -> bool:
        """Whether syncs add an adapter to its frozen weights and take it off, which rounds them (vllm_generation.py 1.16.0:448)."""
        return bool(getattr(self._trainer.args, "use_vllm", False)) and hasattr(self._trainer.model, "merge_adapter")

    def sampling_weights(self) -> tuple[Tensor, Tensor] | None:
        """Probed weights of the policy as they are now, and as the latest update left them; None where that was not read."""
        if self._inner is not None:
            return self._inner.model_now()
        # FSDP1 has gathered its flat parameters by then; FSDP2's parts stay where they are.
        probe = None if self._flat else self.steps.probe
        left = None if probe is None else probe.left()
        return None if probe is None or left is None else (probe.weights(), left)

    @property
    def latest(self) -> int:
        """Index of the latest update; -1 before the first."""
        return self._windows - 1

    def microbatch_begins(self) -> None:
        """The first micro-batch of a window begins without gradients: transformers clears them after each step, to None."""
        if self._began:
            return
        self._began = True
        cycle = self._windows // self._per_cycle
        # DeepSpeed's optimizer has gradients only while it steps, and with offload the buffers of old ones.
        probed = is_probed(cycle) and self._inner is None
        self.steps.begin_window(probed=probed, followed=is_compared_whole(cycle))
        if is_compared_whole(cycle):
            self.steps.see_frozen(sum(not tensor.requires_grad for tensor in self._trained))

    def trained_microbatch(self) -> None:
        """Count one more micro-batch of the window."""
        self._microbatches += 1
        if self.follows_microbatch and is_compared_whole(self._windows // self._per_cycle):
            self.steps.gradients_made()

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self.active:
            return
        cycle = self._windows // self._per_cycle
        whole, compared = is_compared_whole(cycle), is_compared(cycle)
        limit = self._see_before_step(optimizer, whole=whole)
        if self.settings is not None and compared:
            self.settings.tell(self.recorder, stepped=self.version > 0)
        probed = bool(self._written) or is_probed(cycle)
        if whole:
            self._see_kept()
        self.steps.before_step(self._windows, replayed=compared, probed=probed, whole=whole)
        if limit:
            self._see_norm(optimizer, limit)

    @contained("weights", "learning_rate")
    def _see_before_step(self, optimizer: Any, *, whole: bool) -> float | None:
        """See the rates of a step, and the writes to the weights since the latest one.

        Args:
            optimizer: What steps.
            whole: Whether numbers of the whole model are recomputed.

        Returns:
            The limit of the gradient norm; None where there is none, or where the norm is not compared.
        """
        self._rates = rates_of(optimizer)
        self._tick = tick_of(self._trainer.lr_scheduler)
        self._follow_schedule()
        self._written = self._count_written()
        limit = self._limit() if whole else None
        if whole and not limit:
            self.steps.see_no_clip()
        return limit

    @contained("weights", "learning_rate")
    def _see_norm(self, optimizer: Any, limit: float) -> None:
        self.steps.see_norm(self._windows, self._norm_of_step(optimizer), limit)

    def _norm_of_step(self, optimizer: Any) -> Tensor | None:
        """The norm of the gradients that the optimizer is about to use.

        It takes a pass over all of them. Where only parts of a large model's weights are read, the pass is made in one of `PARTS`
        updates. In the others the norm is the one that the clip returned, times the factor by which followed gradients have changed
        since before it: the factor shows a clip that is not applied, and gradients that change after it. It is NaN where these are
        all 0 and others are not.
        """
        before_clip, self._norm_before_clip = self._norm_before_clip, None
        plain = not self._sharded and self._own_scaler is None
        if self.steps.part_read(self._windows) and before_clip is not None and plain:
            factor = self.steps.clip_factor()
            if factor is not None and factor.device == before_clip.device:
                return torch.where(before_clip == 0, before_clip, before_clip * factor)
        return norm_of_gradients(self._clipped(optimizer))

    @contained("order", "weights")
    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self.active:
            return
        self._stepped = True
        self.version += 1
        index = self._windows
        self._emit_update(applied=True, by_loop=self._loop_steps)
        if self._rates is not None:
            whole = is_compared_whole(index // self._per_cycle)
            self.steps.after_step(index, self._rates.least_moving, whole=whole)
            self._writes = self._writes_so_far()

    def _clipped(self, optimizer: Any) -> Iterable[Any]:
        """The parameters whose gradients are clipped together: transformers clips the whole model (trainer.py 5.23.0:2779), of which an
        optimizer may hold a part. DeepSpeed clips its own optimizer's, which are no tensors of the model."""
        if getattr(self._trainer, "is_deepspeed_enabled", False):
            return parameters_of(optimizer)
        return clipped_with(self._trainer.model.parameters(), optimizer)

    def _writes_so_far(self) -> list[int] | None:
        """How often torch saw an in-place write to each of these tensors of the model; None where sharding moves weights about."""
        return list(map(_VERSION, self._tensors)) or None

    def _count_written(self) -> int | None:
        before, now = self._writes, self._writes_so_far()
        if before is None or now is None:
            return None
        return 0 if now == before else sum(earlier != later for earlier, later in zip(before, now, strict=True))

    def _emit_update(self, *, applied: bool, by_loop: bool = True, skip_reason: str = "") -> None:
        due = self._due.at(self._ticks) if self._due is not None and applied and by_loop else ()
        rates = self._rates
        by_group = None if rates is None else rates.plain
        self.recorder.emit_soon(
            Update(
                at=self.recorder.now(),
                index=self._windows,
                applied=applied,
                by_loop=by_loop,
                version=self.version,
                microbatches=self._microbatches,
                learning_rate=None if rates is None else rates.largest_number,
                lr_tick=self._tick,
                due_rate=max(due, default=None),
                group_rates=by_group if by_group is not None and len({*by_group}) > 1 else None,
                due_group_rates=due if len({*due}) > 1 else None,
                skip_reason=skip_reason,
                written=self._written,
            )
        )
        self._windows += 1
        self._microbatches = 0
        self._began = False

    def step_expected(self) -> None:
        """The loop is about to step."""
        self._stepped, self._loop_steps = False, True

    def step_passed(self) -> None:
        """The loop has been at its optimizer step; it also comes here when none was made."""
        self._loop_steps = False
        self._ticks += self._stepped
        self._emit_engine_or_skipped_step()

    @contained("order")
    def _emit_engine_or_skipped_step(self) -> None:
        """Emit the step that the engine made, or the one that was not made."""
        if self.active and self._engine is not None:
            self._emit_engine_step(self._engine)
        elif self.active and not self._stepped and self._handles:
            scaler = self._own_scaler is not None and bool(self._trainer.accelerator.optimizer_step_was_skipped)
            self._emit_update(applied=False, skip_reason="gradient scaler" if scaler else "")

    def _emit_engine_step(self, engine: EngineSteps) -> None:
        """The engine's step is part of the backward pass of the window's last micro-batch, and counts after it."""
        made = engine.take()
        self._rates, self._tick = (None, None) if made is None else (made.rates, made.tick)
        self._follow_schedule()
        applied = made is not None and made.applied
        self.version += applied
        self._emit_update(applied=applied, skip_reason="" if made is None else made.skip_reason)
        self._ticks += applied


def _moved_by(optimizer: Any, parameters: Iterable[Any]) -> list[Any]:
    """The trainable parameters that an optimizer holds and moves; those that it holds, where it moves none of them."""
    held = stepped_by(optimizer, parameters)
    still = {id(of) for group in optimizer.param_groups if keeps_still(group) for of in group["params"]}
    return [parameter for parameter in held if id(parameter) not in still] or held
