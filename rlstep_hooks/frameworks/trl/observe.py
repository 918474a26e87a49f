"""Hooks on one live GRPOTrainer or RLOOTrainer. They emit events and never judge.

All hooks sit on the trainer object itself (`rlstep_hooks.patching`), are placed when training begins and taken off when it
ends. Each names why this method, which event it gives, and the releases in which it was verified by real training
(tests/frameworks/trl): 0.16.1, 0.18.2, 0.24.0, 1.0.0, 1.16.0.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from rlstep_hooks.events import (
    ConfigChanged,
    EpochEnd,
    Evaluated,
    Measured,
    MicroBatch,
    Purpose,
    Refresh,
    Rollout,
    RolloutValues,
    SampleRows,
    Update,
    UpdateValues,
    WeightSync,
)
from rlstep_hooks.frameworks.contained import Contained
from rlstep_hooks.frameworks.deferred import DeferredValues
from rlstep_hooks.frameworks.forward_watch import ForwardWatch
from rlstep_hooks.frameworks.trl.limits import uncovered_loss, unobservable
from rlstep_hooks.frameworks.trl.loss import COVERED, read_loss_settings
from rlstep_hooks.frameworks.trl.measure import (
    ROWS,
    Key,
    MicroBatchMeter,
    MicroBatchNumbers,
    finite,
    token_mask,
)
from rlstep_hooks.frameworks.trl.plan import CYCLE_SETTINGS
from rlstep_hooks.frameworks.weight_probe import WeightProbe
from rlstep_hooks.patching import Patches

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from rlstep_hooks.events import AnyEvent
    from rlstep_hooks.frameworks.trl.releases import Release
    from rlstep_hooks.recorder import Recorder
    from rlstep_hooks.schedule import Schedule

_ROLLOUT_SHIFT = 32
_REMEMBERED_ROLLOUTS = 4096


class LogProbCall:
    """One call of the trainer's log-prob method."""

    def __init__(self, model: Any, log_probs: Tensor, version: int, grad: bool) -> None:
        self.model = model
        self.log_probs = log_probs
        self.version = version
        self.grad = grad


class Phase:
    """What the trainer is doing while a hook runs: the calls seen since it began."""

    def __init__(self, purpose: Purpose) -> None:
        self.purpose = purpose
        self.loss_inputs: dict[str, Any] | None = None
        self.calls: list[LogProbCall] = []
        self.loss: Tensor | None = None


class TrlObserver:
    """Turns one trainer's method calls into events."""

    def __init__(self, trainer: Any, schedule: Schedule, release: Release, recorder: Recorder, *, epochs: int) -> None:
        self.trainer = trainer
        self.schedule = schedule
        self.release = release
        self.recorder = recorder
        self.active = False
        self.on_raise: Callable[[BaseException], None] | None = None
        """Told of an exception out of a training step, where nobody else sees it."""
        self.version = int(trainer.state.global_step)
        self._patches = Patches()
        self._guards: dict[tuple[str, ...], Contained] = {}
        self._passes_decide = not release.has_steps_per_generation
        """0.16 and 0.17: the number of passes decides whether old log-probs are used, not whether they are there."""
        self._handles: list[Any] = []
        self._phase: Phase | None = None
        self._rollout_calls: list[LogProbCall] | None = None
        self._forwards: ForwardWatch | None = None
        self._rollouts = 0
        self._microbatches = 0
        self.microbatches_in_epoch = 0
        self._window = 0
        self._windows = self.version
        self._sampled: OrderedDict[int, int] = OrderedDict()
        self._refreshed: OrderedDict[int, int] = OrderedDict()
        self._sampler_version: int | None = None
        self._stepped = False
        self._loop_steps = False
        self._lr: float | None = None
        self._device_lr: float | Tensor = 0.0
        self._lr_tick: int | None = None
        self._evaluation_batches = 0
        self._evaluation_rollouts = 0
        self._values: DeferredValues[Key] = DeferredValues()
        self._settings = {name: getattr(trainer.args, name, None) for name in CYCLE_SETTINGS}
        self._probe: WeightProbe | None = None
        clips = schedule.algorithm == "GRPO" and getattr(trainer, "loss_type", "bnpo") in COVERED
        self._meter = MicroBatchMeter(self._values, read_loss_settings(trainer, release) if clips else None)
        self._loss_uncovered = uncovered_loss(trainer, schedule)
        self._own_scaler = getattr(trainer.accelerator, "scaler", None)
        self._epochs = epochs

    # Attaching

    def attach(self, optimizer: Any) -> None:
        """Place all hooks. Called when training begins; the optimizer exists then, the first batch does not."""
        trainer, wrap = self.trainer, functools.partial(self._patches.wrap, self.trainer)
        self.active = True
        # One forward and backward: gives MicroBatch. transformers' Trainer in 0.16 to 0.25, GRPOTrainer's own after.
        wrap("training_step", self._around_training_step)
        # Evaluation: keeps its rollouts and losses apart. GRPOTrainer's own in all releases.
        wrap("prediction_step", self._around_prediction_step)
        # Generation, rewards and old log-probs: gives Rollout and Refresh. In all releases; called by `_prepare_inputs`.
        wrap("_generate_and_score_completions", self._around_generation)
        # The policy's log-probs: in the rollout they become the old ones, in the loss the new ones. Renamed in 0.20.
        for name in ("_get_per_token_logps", "_get_per_token_logps_and_entropies"):
            if hasattr(trainer, name):
                wrap(name, self._around_log_probs)
        # The loss, and the inputs it really gets. 0.16 has compute_loss only; from 0.17 it hands over to _compute_loss.
        wrap("compute_loss", self._around_loss)
        if hasattr(trainer, "_compute_loss"):
            wrap("_compute_loss", self._around_inner_loss)
        # Weights pushed to vLLM: _move_model_to_vllm up to 0.27, an object's sync_weights from 0.28. Read in the source;
        # exercised with a stand-in for the engine only.
        if getattr(trainer, "use_vllm", False):
            if hasattr(trainer, "vllm_generation"):
                self._patches.wrap(trainer.vllm_generation, "sync_weights", self._around_weight_push)
            elif hasattr(trainer, "_move_model_to_vllm"):
                wrap("_move_model_to_vllm", self._around_weight_push)
        self._attach_optimizer(optimizer)
        for topic, why in unobservable(trainer, self.schedule):
            self.recorder.cannot(topic, why)

    def _attach_optimizer(self, optimizer: Any) -> None:
        # torch's own hooks see real steps only: not those that a gradient scaler skips, nor accelerate's wrapper.
        if getattr(self.trainer, "is_deepspeed_enabled", False):
            for topic in ("order", "weights", "learning_rate"):
                self.recorder.cannot(topic, "DeepSpeed makes the optimizer step inside its own engine")
            return
        inner = optimizer
        while hasattr(inner, "optimizer"):
            inner = inner.optimizer
        if not hasattr(inner, "register_step_post_hook"):
            for topic in ("order", "weights", "learning_rate"):
                self.recorder.cannot(topic, f"{type(inner).__name__} is no torch optimizer with step hooks")
            return
        self._handles.append(inner.register_step_pre_hook(self._before_step))
        self._handles.append(inner.register_step_post_hook(self._after_step))
        probe = WeightProbe(self.trainer.model.parameters())
        if probe.size:
            self._probe = probe
        else:
            self.recorder.cannot("weights", "no trainable weight is held whole on this process")

    def detach(self) -> None:
        """Take all hooks off. Every attribute is then the object it was before."""
        if not self.active:
            return
        self.active = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        left = self._patches.restore()
        if left:
            self.recorder.cannot(
                "recording", f"wrapped again by others, so left in place (inactive): {', '.join(left)}"
            )

    def _contained(self, *topics: str) -> Contained:
        """Keep this package's own errors away from training; what they cost the observation is recorded."""
        guard = self._guards.get(topics)
        if guard is None:
            guard = self._guards[topics] = Contained(self.recorder, topics)
        return guard

    # Training and evaluation

    def _around_training_step(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        if not self.active:
            return wrapped(*args, **kwargs)
        phase = self._phase = Phase("training")
        try:
            result = wrapped(*args, **kwargs)
        except BaseException as error:
            if self.on_raise is not None:
                self.on_raise(error)
            raise
        finally:
            self._phase = None
        with self._contained("order", "samples", "log_ratio"):
            self._emit_microbatch(phase)
        return result

    def _around_prediction_step(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        if not self.active:
            return wrapped(*args, **kwargs)
        self._evaluation_batches += 1
        outer, self._phase = self._phase, Phase("evaluation")
        try:
            return wrapped(*args, **kwargs)
        finally:
            self._phase = outer

    def evaluated(self) -> None:
        """An evaluation ended (TrainerCallback.on_evaluate, all releases)."""
        with self._contained("order"):
            if self._evaluation_batches:
                self.recorder.emit(
                    Evaluated(
                        at=self.recorder.now(), batches=self._evaluation_batches, rollouts=self._evaluation_rollouts
                    )
                )
            self._evaluation_batches = self._evaluation_rollouts = 0

    def epoch_ended(self, *, stopping: bool, run_over: bool) -> None:
        """A pass of the loader ended (TrainerCallback.on_epoch_end, all releases)."""
        with self._contained("order"):
            self._epochs += 1
            self.microbatches_in_epoch = 0
            self.recorder.emit(
                EpochEnd(at=self.recorder.now(), epoch=self._epochs, stopping=stopping, run_over=run_over)
            )

    # Rollouts

    def _around_generation(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        if not self.active:
            return wrapped(*args, **kwargs)
        calls: list[LogProbCall] = []
        self._rollout_calls = calls
        forwards = self._forwards = ForwardWatch.of(self.trainer.model) if self._watches_sampler() else None
        try:
            output = wrapped(*args, **kwargs)
        finally:
            self._rollout_calls = self._forwards = None
            if forwards is not None:
                forwards.remove()
        with self._contained("order", "samples", "refresh"):
            rows = args[0] if args else kwargs.get("inputs")
            self._emit_rollout(rows, output, calls, forwards.seen if forwards is not None else None)
        return output

    def _watches_sampler(self) -> bool:
        """Whether forwards of the policy may be counted while it generates.

        Not with an engine (it has weights of its own), and not where a forward hook would be compiled in.
        """
        args = self.trainer.args
        return not (
            getattr(self.trainer, "use_vllm", False)
            or getattr(args, "torch_compile", False)
            or getattr(args, "cache_implementation", None)
            or getattr(args, "use_transformers_paged", False)
        )

    def _emit_rollout(self, rows: Any, output: Any, calls: list[LogProbCall], forwards: bool | None) -> None:
        import torch

        index, recorder = self._rollouts, self.recorder
        self._rollouts += 1
        purpose: Purpose = self._phase.purpose if self._phase is not None else "training"
        if purpose == "evaluation":
            self._evaluation_rollouts += 1
        samples = int(output["prompt_ids"].shape[0])
        events: list[AnyEvent] = [
            Rollout(
                at=recorder.now(),
                index=index,
                samples=samples,
                policy_version=self.version,
                sampler_version=self._sampler_at_rollout(forwards, calls),
                purpose=purpose,
                reference=output.get("ref_per_token_logps") is not None or self._has_reference_call(calls),
                groups_intact=self._groups_intact(rows, samples) if purpose == "training" else None,
            )
        ]
        _remember(self._sampled, index, self.version)
        with torch.no_grad():
            old = output.get("old_per_token_logps")
            old = output.get("old_logps") if old is None else old
            self._meter.mark(output, torch.arange(samples) + (index << _ROLLOUT_SHIFT), old)
        if old is not None and purpose == "training":
            made_by = self._origin(old, calls)
            if made_by is not None:
                _remember(self._refreshed, index, made_by)
            events.append(
                Refresh(
                    at=recorder.now(),
                    rollout=index,
                    samples=samples,
                    positions=output["completion_ids"].numel(),
                    policy_version=made_by,
                )
            )
        recorder.emit(*events)
        if purpose == "training":
            self._check_settings()
        self._add_rollout_values(index, output)
        self._send_numbers()
        self._emit_measured()

    def _sampler_at_rollout(self, forwards: bool | None, calls: list[LogProbCall]) -> int | None:
        """The version of the weights that sampled; -1 for a model other than the policy; None where it cannot be seen."""
        if getattr(self.trainer, "use_vllm", False):
            return self._sampler_version
        if forwards is None:
            return None
        return self.version if forwards else -1

    def _is_policy(self, model: Any) -> bool:
        return model is self.trainer.model or model is self.trainer.model_wrapped

    def _has_reference_call(self, calls: list[LogProbCall]) -> bool:
        """Whether RLOO computed reference log-probs, which it does not hand on: with a model of their own, or, where adapters
        are switched off for them, in a second pass of the policy."""
        reference = getattr(self.trainer, "ref_model", None)
        if reference is not None:
            return any(call.model is reference for call in calls)
        passes = sum(1 for call in calls if self._is_policy(call.model) and not call.grad)
        return self.schedule.algorithm == "RLOO" and passes > 1

    def _origin(self, old: Tensor, calls: list[LogProbCall]) -> int | None:
        """The policy version whose forward produced these old log-probs."""
        policy = [call for call in calls if self._is_policy(call.model) and not call.grad]
        if self.schedule.algorithm == "RLOO":  # sums over tokens: another tensor by construction
            return policy[0].version if policy else None
        return next((call.version for call in policy if call.log_probs is old), None)

    def _groups_intact(self, rows: Any, samples: int) -> bool | None:
        group = self.schedule.samples_per_prompt
        if not isinstance(rows, list) or samples % group or len(rows) != samples:
            return None
        prompts = [row.get("prompt") for row in rows]
        return all(
            prompts[start] == prompt
            for start in range(0, samples, group)
            for prompt in prompts[start + 1 : start + group]
        )

    def _add_rollout_values(self, index: int, output: Any) -> None:
        import torch

        with torch.no_grad():
            values = [output["advantages"].abs().max().float()]
            sampled, old = output.get("sampling_per_token_logps"), output.get("old_per_token_logps")
            kind = "rollout"
            if isinstance(sampled, torch.Tensor) and old is not None:
                mask = token_mask(output)
                gap = torch.nan_to_num((old - sampled).abs() * mask)
                values += [gap.sum().float(), gap.max().float(), mask.sum().float()]
                kind = "gap"
            self._values.add((kind, (index,)), torch.stack(values))

    def _check_settings(self) -> None:
        """Compare the live settings with those at the beginning of training; they take effect at the next micro-batch."""
        for name, before in self._settings.items():
            after = getattr(self.trainer.args, name, None)
            if after != before:
                self._settings[name] = after
                self.recorder.emit(
                    ConfigChanged(at=self.recorder.now(), name=name, before=before, after=after, since="train_begin")
                )

    def _around_weight_push(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        if self.active:
            with self._contained("sampler"):
                self._sampler_version = self.version
                self.recorder.emit(WeightSync(at=self.recorder.now(), policy_version=self.version))
        return result

    # Log-probs and loss

    def _around_log_probs(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        watch = self._forwards
        if watch is None:
            result = wrapped(*args, **kwargs)
        else:
            watch.paused = True  # generation is what it looks for, not log-prob passes
            try:
                result = wrapped(*args, **kwargs)
            finally:
                watch.paused = False
        calls = self._rollout_calls
        if calls is None and self._phase is not None and self._phase.loss_inputs is not None:
            calls = self._phase.calls
        if self.active and calls is not None:
            with self._contained("log_ratio", "refresh"):
                log_probs = result[0] if isinstance(result, tuple) else result
                model = args[0] if args else kwargs["model"]
                calls.append(LogProbCall(model, log_probs, self.version, log_probs.requires_grad))
        return result

    def _around_loss(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        phase = self._phase
        if not self.active or phase is None:
            return wrapped(*args, **kwargs)
        phase.loss_inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
        loss = wrapped(*args, **kwargs)
        phase.loss = loss
        if phase.purpose == "training":
            with self._contained("log_ratio", "loss", "samples"):
                self._measure_loss(phase)
        return loss

    def _around_inner_loss(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        phase = self._phase
        if self.active and phase is not None:
            phase.loss_inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
        return wrapped(*args, **kwargs)

    def _old_log_probs(self, inputs: dict[str, Any]) -> Tensor | None:
        """The old log-probs that the loss uses, by the condition of this release.

        0.16 and 0.17 look at num_iterations and would pass over a tensor that is there; later ones look at the tensor.
        """
        if self.schedule.algorithm == "RLOO":
            return inputs.get("old_logps")
        if self._passes_decide and self.trainer.num_iterations <= 1:
            return None
        return inputs.get("old_per_token_logps")

    def _measure_loss(self, phase: Phase) -> None:
        """Compute, on the device, the numbers of this micro-batch."""
        import torch

        inputs = phase.loss_inputs
        new = next((call.log_probs for call in reversed(phase.calls) if call.grad), None)
        if inputs is None or new is None:
            self.recorder.cannot("log_ratio", "the loss computes its log-probs where they cannot be seen")
            return
        old = self._old_log_probs(inputs)
        trainer, index = self.trainer, self._microbatches
        with torch.no_grad():
            new = new.detach()
            log_ratio = self._meter.measure(index, inputs, new, old)
            # The micro-batches of a cycle share their normalisers, so one stands for the others: each in its turn.
            cycle, position = divmod(index, self.schedule.microbatches_per_cycle)
            turn = cycle % self.schedule.microbatches_per_cycle
            if position == turn and not self._loss_uncovered and phase.loss is not None:
                accumulation = trainer.args.gradient_accumulation_steps
                self._meter.compare_loss(
                    index,
                    phase.loss,
                    inputs,
                    new=new,
                    log_ratio=log_ratio,
                    beta=trainer.beta,
                    weighs_kl=bool(getattr(trainer.args, "use_bias_correction_kl", False)),
                    window=getattr(trainer, "current_gradient_accumulation_steps", accumulation),
                    backward_divides_by=trainer.accelerator.gradient_accumulation_steps,
                )

    # Events of the training loop

    def _emit_microbatch(self, phase: Phase) -> None:
        inputs = phase.loss_inputs
        if inputs is None:
            return
        index = self._microbatches
        old = self._old_log_probs(inputs)
        recomputed = next(
            (
                c
                for c in phase.calls
                if old is not None and self._is_policy(c.model) and (c.log_probs is old or self._stands_for_old(c))
            ),
            None,
        )
        samples = int(inputs["completion_ids"].shape[0])
        trained, rollouts = self._identify(inputs)
        if recomputed is not None:
            self.recorder.emit(
                Refresh(
                    at=self.recorder.now(),
                    rollout=rollouts[0] if rollouts else -1,
                    samples=samples,
                    positions=recomputed.log_probs.numel(),
                    policy_version=recomputed.version,
                    in_loss=True,
                )
            )
        sampled = [self._sampled[r] for r in rollouts if r in self._sampled]
        refreshed = [self._refreshed[r] for r in rollouts if r in self._refreshed]
        old_version: int | None = None
        if recomputed is not None:
            old_version = recomputed.version
        elif old is not None and refreshed:
            old_version = min(refreshed)
        self.recorder.emit(
            MicroBatch(
                at=self.recorder.now(),
                index=index,
                samples=samples,
                trained=trained,
                policy_version=self.version,
                sampled_version=min(sampled) if sampled else None,
                old_version=old_version,
                old_source="detach" if old is None else "at_rollout" if recomputed is None else "recompute",
            )
        )
        self._microbatches += 1
        self.microbatches_in_epoch += 1
        self._window += 1

    def _stands_for_old(self, call: LogProbCall) -> bool:
        """Whether a forward of the policy inside the loss can only serve as old log-probs.

        It has no gradient, and is not the reference that 0.18 computes there with adapters switched off.
        """
        return not call.grad and not (self.schedule.reference_source == "in_loss" and self.trainer.ref_model is None)

    def _identify(self, inputs: dict[str, Any]) -> tuple[tuple[SampleRows, ...] | None, list[int]]:
        """Which samples a micro-batch holds, and of which rollouts."""
        rows = inputs.get(ROWS)
        if rows is None:
            return None, []
        by_rollout: dict[int, list[int]] = {}
        for identity in rows.tolist():
            by_rollout.setdefault(identity >> _ROLLOUT_SHIFT, []).append(identity & ((1 << _ROLLOUT_SHIFT) - 1))
        return tuple(SampleRows(r, tuple(found)) for r, found in by_rollout.items()), list(by_rollout)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self.active:
            return
        with self._contained("weights", "learning_rate"):
            rate = optimizer.param_groups[0]["lr"]
            # A rate held in a tensor on the device stays there: reading it would wait for the device.
            self._lr = float(rate) if not hasattr(rate, "is_cuda") or not rate.is_cuda else None
            self._device_lr = rate
            self._lr_tick = getattr(self.trainer.lr_scheduler, "last_epoch", None)
            if self._probe is not None:
                self._probe.before_step()

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self.active:
            return
        with self._contained("order", "weights"):
            self._stepped = True
            self.version += 1
            self._emit_update(applied=True, by_loop=self._loop_steps)
            if self._probe is not None:
                self._probe.after_step(self._windows - 1, self._device_lr)

    def _emit_update(self, *, applied: bool, by_loop: bool = True, skip_reason: str = "") -> None:
        self.recorder.emit(
            Update(
                at=self.recorder.now(),
                index=self._windows,
                applied=applied,
                by_loop=by_loop,
                version=self.version,
                microbatches=self._window,
                learning_rate=self._lr,
                lr_tick=self._lr_tick if isinstance(self._lr_tick, int) else None,
                skip_reason=skip_reason,
            )
        )
        self._windows += 1
        self._window = 0

    def step_expected(self) -> None:
        """The loop is about to step (TrainerCallback.on_pre_optimizer_step, all releases)."""
        self._stepped, self._loop_steps = False, True

    def step_passed(self) -> None:
        """The loop has been at its optimizer step (TrainerCallback.on_optimizer_step); it also fires when none was made."""
        self._loop_steps = False
        with self._contained("order"):
            if self.active and not self._stepped and self._handles:
                scaler = self._own_scaler is not None and bool(self.trainer.accelerator.optimizer_step_was_skipped)
                self._emit_update(applied=False, skip_reason="gradient scaler" if scaler else "")

    # Numbers

    def finish(self) -> None:
        """Fetch what is still on the device; training is over, so waiting is allowed."""
        with self._contained("log_ratio", "weights"):
            self._send_numbers()
            self._emit_measured(wait=True)

    def _send_numbers(self) -> None:
        """Start fetching all numbers so far."""
        import torch

        with torch.no_grad():
            self._meter.work_up()
            probed = self._probe.work_up() if self._probe is not None else None
        if probed is not None:
            updates, numbers = probed
            self._values.add(("update", updates), numbers)
        self._values.send()

    def _emit_measured(self, *, wait: bool = False) -> None:
        rollouts, updates, microbatches = [], [], MicroBatchNumbers()
        for (kind, indices), numbers in self._values.ready(wait=wait):
            if kind in ("rollout", "gap"):
                rollouts.append(_rollout_values(indices[0], kind, numbers))
            elif kind == "update":
                updates += [
                    self._update_values(update, numbers[place :: len(indices)]) for place, update in enumerate(indices)
                ]
            else:
                microbatches.take(kind, indices, numbers)
        values = microbatches.values()
        if rollouts or values or updates:
            self.recorder.emit(
                Measured(at=self.recorder.now(), rollouts=tuple(rollouts), microbatches=values, updates=tuple(updates))
            )

    def _update_values(self, index: int, numbers: list[float]) -> UpdateValues:
        changed, with_gradient, visible, moved, largest = numbers
        return UpdateValues(
            index=index,
            probed=self._probe.size if self._probe is not None else 0,
            changed=int(changed),
            with_gradient=int(with_gradient),
            visible=int(visible),
            max_change=finite(largest),
            moved_before=int(moved),
        )


def _rollout_values(index: int, kind: str, numbers: list[float]) -> RolloutValues:
    if kind == "gap":
        tokens = max(numbers[3], 1.0)
        return RolloutValues(
            index=index,
            max_abs_advantage=finite(numbers[0]),
            sampler_gap_mean=finite(numbers[1] / tokens),
            sampler_gap_max=finite(numbers[2]),
        )
    return RolloutValues(index=index, max_abs_advantage=finite(numbers[0]))


def _remember(table: OrderedDict[int, int], rollout: int, version: int) -> None:
    table[rollout] = version
    if len(table) > _REMEMBERED_ROLLOUTS:
        table.popitem(last=False)
