"""Hooks on one live GRPOTrainer or RLOOTrainer. They emit events and never judge.

All hooks sit on the trainer object itself (`rlstep_hooks.observe.patches`), are placed when training begins and taken off when it
ends. Each names why this method, which event it gives, and the releases in which it was verified by real training
(tests/systems/trl): 0.16.1, 0.18.2, 0.24.0, 1.0.0, 1.16.0.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import torch

from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.observe.contained import Contained
from rlstep_hooks.observe.deferred import INTERVAL
from rlstep_hooks.observe.forward_watch import ForwardWatch
from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.record.events import (
    ConfigChanged,
    Constant,
    EpochEnd,
    Evaluated,
    FactsRead,
    MicroBatch,
    OldSource,
    Purpose,
    Refresh,
    Rollout,
    WeightSync,
)
from rlstep_hooks.systems.trl.observe.advantages import RewardWatch
from rlstep_hooks.systems.trl.observe.backward import BackwardWatch
from rlstep_hooks.systems.trl.observe.calls import Activity, LogProbCall
from rlstep_hooks.systems.trl.observe.drawn import DrawnWatch
from rlstep_hooks.systems.trl.observe.identities import SampleIdentities, identities
from rlstep_hooks.systems.trl.observe.limits import READ, own_advantages, own_loss, uncovered_loss, unobservable
from rlstep_hooks.systems.trl.observe.live_settings import LiveSettings
from rlstep_hooks.systems.trl.observe.loss import COVERED, LossTerms, read_loss_settings
from rlstep_hooks.systems.trl.observe.masks import read_mask_rule
from rlstep_hooks.systems.trl.observe.measure import MicroBatchMeter
from rlstep_hooks.systems.trl.observe.numbers import NumberCollector
from rlstep_hooks.systems.trl.observe.reference import ReferenceWatch
from rlstep_hooks.systems.trl.observe.replay import ReplayWatch
from rlstep_hooks.systems.trl.observe.sampling import SamplingWatch
from rlstep_hooks.systems.trl.observe.subject import Observer
from rlstep_hooks.systems.trl.observe.updates import UpdateObserver

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import AnyEvent
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.trl.observe.loss import LossSettings
    from rlstep_hooks.systems.trl.releases import TrlRelease


class TrlObserver(Observer):
    """Turns one trainer's method calls into events."""

    read: ClassVar[tuple[str, ...]] = READ
    """Packages whose overrides of methods are known."""

    def __init__(
        self,
        trainer: Any,
        schedule: Schedule,
        release: TrlRelease,
        recorder: Recorder,
        *,
        epochs: int,
        interval: float = INTERVAL,
    ) -> None:
        super().__init__()
        self.trainer = trainer
        self.schedule = schedule
        self.release = release
        self.recorder = recorder
        self.active = False
        self.updates = UpdateObserver(
            trainer,
            recorder,
            per_cycle=max(schedule.microbatches_per_cycle // (schedule.microbatches_per_update or 1), 1),
            limit=lambda: trainer.args.max_grad_norm,
        )
        self._patches = Patches()
        # Each keeps this package's own errors away from training; what they cost the observation is recorded.
        self._order_guard = Contained(recorder, ("order",))
        self._rollout_guard = Contained(recorder, ("order", "samples", "refresh"))
        self._sampler_guard = Contained(recorder, ("sampler",))
        self._log_prob_guard = Contained(recorder, ("log_ratio", "refresh"))
        self._loss_guard = Contained(recorder, ("log_ratio", "loss", "samples"))
        self._microbatch_guard = Contained(recorder, ("order", "samples", "log_ratio"))
        self._passes_decide = not release.has_steps_per_generation
        """0.16 and 0.17: the number of passes decides whether old log-probs are used, not whether they are there."""
        self._phase: Activity | None = None
        self._rollout_calls: list[LogProbCall] | None = None
        self._forwards: ForwardWatch | None = None
        self._rollouts = 0
        self._microbatches = 0
        self._identities = SampleIdentities()
        self._sampler_version: int | None = None
        self._drawn: tuple[Tensor, Tensor] | None = None
        """Probed weights that the policy generates with, and those that the update before had left."""
        self._evaluation_batches = 0
        self._evaluation_rollouts = 0
        self._settings = LiveSettings(trainer)
        self._left_out = schedule.samples_dropped_per_rollout // schedule.world_size
        """Samples that a filter takes out of each rollout on this process."""
        self._sampling = SamplingWatch(trainer, recorder)
        self._replay = ReplayWatch(trainer)
        self._reference = ReferenceWatch(trainer)
        self._rewards = RewardWatch(trainer, schedule.algorithm, recorder)
        covered = schedule.algorithm == "RLOO" or getattr(trainer, "loss_type", "bnpo") in COVERED
        self._loss_settings = self._settings_of_loss() if covered else None
        self._compares_loss = self._loss_settings is not None and not self._uncovered_loss()
        self._backward = BackwardWatch(trainer, divided_before=self._divides_loss())
        self._drawing = DrawnWatch(trainer, recorder, filtered=bool(self._left_out), read=self.read)
        self._meter = MicroBatchMeter(
            self._loss_settings, follows_rollout=not own_loss(trainer, self.read), cap=self._drawing.cap
        )
        self._numbers = NumberCollector(recorder, self._meter, self.updates, interval=interval)
        self._epochs = epochs

    # What a trainer built on this one may do otherwise

    def _unobservable(self) -> list[tuple[str, str]]:
        """Topics that this trainer's configuration hides, each with the reason."""
        return unobservable(self.trainer, self.schedule, self.read)

    def _uncovered_loss(self) -> str:
        """What keeps the documented formula from covering this trainer's loss; empty where it does."""
        return uncovered_loss(self.trainer, self.schedule, self.read)

    def _settings_of_loss(self) -> LossSettings:
        """The settings of a loss that is covered."""
        settings = read_loss_settings(self.trainer, self.release, self.schedule.algorithm)
        return msgspec.structs.replace(settings, includes_accumulation=self._divides_loss())

    def _divides_loss(self) -> bool:
        """Whether the loss method itself divides by the accumulation; else transformers does, after it."""
        return self.release.loss_includes_accumulation and self.schedule.algorithm != "RLOO"

    def _samples_with_engine(self) -> bool:
        """Whether vLLM samples, with weights of its own."""
        return bool(getattr(self.trainer, "use_vllm", False))

    def _parts(self, output: Any) -> list[dict[str, Any]]:
        """The tensors of a rollout by TRL's names. More than one where the trainer itself cuts it into micro-batches."""
        return [output]

    def _mark(self, output: Any, parts: list[dict[str, Any]]) -> None:
        """Have identities and checksums travel with the samples. Where the parts are the output itself they already do."""

    def _loss_inputs(self, inputs: Any) -> dict[str, Any] | None:
        """What a loss gets, by TRL's names; None where it is something else."""
        return inputs  # type: ignore[no-any-return]

    @property
    def updates_made(self) -> int:
        """Windows closed in the whole run."""
        return int(self.trainer.state.global_step)

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
        # DPPO's loss has a method of its own for its top-k divergences (dppo_trainer.py 1.0.0).
        for name in (
            "_get_per_token_logps",
            "_get_per_token_logps_and_entropies",
            "_get_per_token_logps_with_topk",
        ):
            if hasattr(trainer, name):
                wrap(name, self._around_log_probs)
        # The loss, and the inputs it really gets. 0.16 has compute_loss only; from 0.17 it hands over to _compute_loss.
        wrap("compute_loss", self._around_loss)
        if hasattr(trainer, "_compute_loss"):
            wrap("_compute_loss", self._around_inner_loss)
        # Weights synced to vLLM: _move_model_to_vllm up to 0.27, an object's sync_weights from 0.28. Read in the source;
        # exercised with a stand-in for the engine only.
        if self._samples_with_engine():
            if hasattr(trainer, "vllm_generation"):
                self._patches.wrap(trainer.vllm_generation, "sync_weights", self._around_weight_sync)
            elif hasattr(trainer, "_move_model_to_vllm"):
                wrap("_move_model_to_vllm", self._around_weight_sync)
        self._sampling.attach(self._patches)
        self._replay.attach(self._patches)
        self._rewards.attach(self._patches)
        self._drawing.attach()
        self.updates.attach(optimizer)
        for topic, why in self._unobservable():
            self.recorder.cannot(topic, why)

    def detach(self) -> None:
        """Take all hooks off. Every attribute is then the object it was before."""
        if not self.active:
            return
        self.active = False
        self.updates.detach()
        left = self._patches.restore()
        if left:
            self.recorder.cannot(
                "recording", f"wrapped again by others, so left in place (inactive): {', '.join(left)}"
            )

    # Training and evaluation

    def _around_training_step(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        if not self.active:
            return wrapped(*args, **kwargs)
        phase = self._phase = Activity("training")
        try:
            result = wrapped(*args, **kwargs)
        finally:
            self._phase = None
        with self._microbatch_guard:
            self._emit_microbatch(phase)
        return result

    def _around_prediction_step(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        if not self.active:
            return wrapped(*args, **kwargs)
        self._evaluation_batches += 1
        outer, self._phase = self._phase, Activity("evaluation")
        try:
            return wrapped(*args, **kwargs)
        finally:
            self._phase = outer

    def evaluated(self) -> None:
        """An evaluation ended (TrainerCallback.on_evaluate, all releases)."""
        with self._order_guard:
            if self._evaluation_batches:
                self.recorder.emit(
                    Evaluated(
                        at=self.recorder.now(), batches=self._evaluation_batches, rollouts=self._evaluation_rollouts
                    )
                )
            self._evaluation_batches = self._evaluation_rollouts = 0

    def epoch_ended(self, *, stopping: bool, run_over: bool) -> None:
        """A pass of the loader ended (TrainerCallback.on_epoch_end, all releases)."""
        with self._order_guard:
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
        self._drawn = None
        watches = self._watches_sampler()
        forwards = self._forwards = ForwardWatch.of(self.trainer.model, self._look_at_weights) if watches else None
        try:
            output = wrapped(*args, **kwargs)
        finally:
            self._rollout_calls = self._forwards = None
            if forwards is not None:
                forwards.remove()
        with self._rollout_guard:
            rows = args[0] if args else kwargs.get("inputs")
            self._emit_rollout(rows, output, calls, forwards.seen if forwards is not None else None)
        return output

    def _look_at_weights(self) -> None:
        """The policy is about to generate: read the probe of its weights. Where it is sharded, they have other shapes now."""
        with self._sampler_guard:
            probe = self.updates.probe
            left = None if probe is None or getattr(self.trainer, "is_fsdp_enabled", False) else probe.left()
            if probe is not None and left is not None:
                self._drawn = probe.weights(), left

    def _watches_sampler(self) -> bool:
        """Whether forwards of the policy may be counted while it generates.

        Not with an engine (it has weights of its own), and not where a forward hook would be compiled in.
        """
        args = self.trainer.args
        return not (
            self._samples_with_engine()
            or getattr(args, "torch_compile", False)
            or getattr(args, "cache_implementation", None)
            or getattr(args, "use_transformers_paged", False)
        )

    def _emit_rollout(self, rows: Any, output: Any, calls: list[LogProbCall], forwards: bool | None) -> None:
        index, recorder = self._rollouts, self.recorder
        self._rollouts += 1
        purpose: Purpose = self._phase.purpose if self._phase is not None else "training"
        if purpose == "evaluation":
            self._evaluation_rollouts += 1
        parts = self._parts(output)
        sizes = [int(part["completion_mask"].shape[0]) for part in parts]
        samples = sum(sizes) + (self._left_out if purpose == "training" else 0)
        replayed = self._replay.take()
        events: list[AnyEvent] = [
            Rollout(
                at=recorder.now(),
                index=index,
                samples=samples,
                policy_version=self.updates.version,
                sampler_version=self._sampler_at_rollout(forwards, calls),
                purpose=purpose,
                reference=any(part.get("ref_per_token_logps") is not None for part in parts)
                or self._has_reference_call(calls),
                groups_intact=self._groups_intact(rows, samples) if purpose == "training" else None,
                sampling=self._sampling.take(),
            )
        ]
        if not replayed:
            self._identities.sampled(index, self.updates.version)
        with torch.no_grad():
            olds = [_old_log_probs_in(part) for part in parts]
            for part, old, rows_of_part in zip(parts, olds, identities(index, sum(sizes)).split(sizes), strict=True):
                of_others = old is not None and old.shape[0] != rows_of_part.shape[0]
                if of_others:
                    recorder.emit(FactsRead(at=recorder.now(), facts={"old_log_probs_of": int(old.shape[0])}))
                self._meter.mark(part, rows_of_part, None if of_others else old)
            self._mark(output, parts)
            scored = self._rewards.take(index, sum(sizes)) if purpose == "training" else None
            compared = purpose == "training" and is_compared(index)
            rule = read_mask_rule(self.trainer) if compared and not own_advantages(self.trainer) else None
            reference = self._reference.look() if compared else None
            self._numbers.add_rollout(index, parts, scored=scored, rule=rule, reference=reference, drawn=self._drawn)
        if all(old is not None for old in olds) and purpose == "training":
            made_by = self._origin(olds, calls, copied=replayed)
            if made_by is not None and not replayed:
                self._identities.refreshed(index, made_by)
            events.append(
                Refresh(
                    at=recorder.now(),
                    rollout=index,
                    samples=samples,
                    positions=sum(part["completion_mask"].numel() for part in parts),
                    policy_version=made_by,
                )
            )
        recorder.emit(*events)
        if purpose == "training":
            self._check_settings()
        self._numbers.collect()

    def _sampler_at_rollout(self, forwards: bool | None, calls: list[LogProbCall]) -> int | None:
        """The version of the weights that sampled; -1 for a model other than the policy; None where it cannot be seen."""
        if self._samples_with_engine():
            return self._sampler_version
        if forwards is None:
            return None
        if not forwards and getattr(self.trainer, "rollout_func", None) is not None:
            # Tokens from elsewhere: an environment, a server, another process. In 0.25 and later.
            self.recorder.cannot(
                "sampler_weights",
                "rollout_func returned tokens without a forward of the policy; which weights sampled them is not known",
            )
            return None
        return self.updates.version if forwards else -1

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

    def _origin(self, olds: list[Tensor], calls: list[LogProbCall], *, copied: bool) -> int | None:
        """The policy version whose forwards produced these old log-probs, one tensor for each part of a rollout."""
        policy = [call for call in calls if self._is_policy(call.model) and not call.grad]
        # RLOO's are sums over tokens, GFPO's some of the rows, replayed ones stand beside them: another tensor by construction.
        if self.schedule.algorithm == "RLOO" or copied or self._left_out:
            return policy[0].version if policy else None
        versions = [next((call.version for call in policy if call.log_probs is old), None) for old in olds]
        known = [version for version in versions if version is not None]
        return min(known) if len(known) == len(versions) else None

    def _groups_intact(self, rows: Any, samples: int) -> bool | None:
        group = self.schedule.samples_per_prompt
        if not isinstance(rows, list) or samples % group or len(rows) != samples:
            return None
        prompts = [row.get("prompt", row.get("messages")) for row in rows]
        return all(
            prompts[start] == prompt
            for start in range(0, samples, group)
            for prompt in prompts[start + 1 : start + group]
        )

    def _check_settings(self) -> None:
        """Compare the live settings with those at the beginning of training; they take effect at the next micro-batch."""
        for name, before, after in self._settings.changes():
            self.recorder.emit(
                ConfigChanged(at=self.recorder.now(), name=name, before=before, after=after, since="train_begin")
            )

    def _around_weight_sync(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        if self.active:
            with self._sampler_guard:
                self._sampler_version = self.updates.version
                self.recorder.emit(WeightSync(at=self.recorder.now(), policy_version=self.updates.version))
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
            with self._log_prob_guard:
                log_probs, *others = result if isinstance(result, tuple) else (result,)
                model = args[0] if args else kwargs["model"]
                version, grad = self.updates.version, log_probs.requires_grad
                calls.append(LogProbCall(model, log_probs, tuple(others) if grad else (), version, grad))
        return result

    def _around_loss(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        phase = self._phase
        if not self.active or phase is None:
            return wrapped(*args, **kwargs)
        phase.loss_inputs = self._loss_inputs(args[1] if len(args) > 1 else kwargs.get("inputs"))
        loss = wrapped(*args, **kwargs)
        phase.loss = loss
        if phase.purpose == "training":
            with self._loss_guard:
                self._measure_loss(phase)
        return loss

    def _around_inner_loss(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        phase = self._phase
        if self.active and phase is not None:
            inputs = self._loss_inputs(args[1] if len(args) > 1 else kwargs.get("inputs"))
            phase.loss_inputs = inputs if inputs is not None else phase.loss_inputs
        return wrapped(*args, **kwargs)

    def _old_log_probs(self, inputs: dict[str, Any]) -> Tensor | None:
        """The old log-probs that the loss uses, by the condition of this release.

        0.16 and 0.17 look at num_iterations and would pass over a tensor that is there; later ones look at the tensor.
        """
        if self.schedule.algorithm == "RLOO":
            return inputs.get("old_logps")
        if self.schedule.old_logprob_source == "engine":
            return inputs.get("sampling_per_token_logps")
        if self._passes_decide and self.trainer.num_iterations <= 1:
            return None
        return inputs.get("old_per_token_logps")

    def _measure_loss(self, phase: Activity) -> None:
        """Keep, on the device, what this micro-batch's loss was computed from."""
        inputs = phase.loss_inputs
        old = None if inputs is None else self._old_log_probs(inputs)
        trained = [call for call in phase.calls if call.grad and call.log_probs is not old]
        if inputs is None or not trained:
            self.recorder.cannot("log_ratio", "the loss computes its log-probs where they cannot be seen")
            return
        if len(trained) > 1:
            self.recorder.cannot("log_ratio", f"the loss computes {len(trained)} sets of log-probs with a gradient")
            return
        [call] = trained
        new = call.log_probs
        compared = is_compared(self._microbatches // self.schedule.microbatches_per_cycle)
        terms = self._loss_terms(phase.loss, inputs, call) if compared and phase.loss is not None else None
        arrived = self._backward.follow(phase.loss) if compared else []
        of_sampler = self._identities.trained(inputs).sampled == self.updates.version
        entropies = self._drawing.entropies(call) if compared and of_sampler else None
        self._meter.hold(self._microbatches, inputs, new.detach(), old, terms, arrived, entropies)
        # No reference to the graph stays behind: the framework frees it after the backward pass, as without the audit.
        phase.loss = None
        phase.calls = [call for call in phase.calls if not call.grad or call.log_probs is old]

    def _loss_terms(self, loss: Tensor, inputs: dict[str, Any], call: LogProbCall) -> LossTerms | None:
        """What the documented formula needs besides log-probs; None where it does not cover this loss."""
        settings, trainer = self._loss_settings, self.trainer
        if settings is None or not self._compares_loss:
            return None
        accumulation = trainer.args.gradient_accumulation_steps
        return LossTerms(
            value=loss.detach(),
            reference=inputs.get("ref_per_token_logps"),
            generation_tokens=inputs.get("num_items_in_batch") if settings.loss_type == "dapo" else None,
            beta=trainer.beta if self.schedule.algorithm == "GRPO" else 0.0,  # RLOO's KL term is in its rewards
            weighs_kl=bool(getattr(trainer.args, "use_bias_correction_kl", False)),
            window=getattr(trainer, "current_gradient_accumulation_steps", accumulation),
            entropies=call.others[0].detach() if getattr(trainer, "_entropy_bonus_enabled", False) else None,
            entropy_weight=getattr(trainer, "entropy_coef", 0.0) or 0.0,
            auxiliary=(
                trainer.router_aux_loss_coef * call.others[1].detach()
                if getattr(trainer, "aux_loss_enabled", False)
                else None
            ),
        )

    # Events of the training loop

    def _emit_microbatch(self, phase: Activity) -> None:
        inputs = phase.loss_inputs
        if inputs is None:
            return
        old = self._old_log_probs(inputs)
        recomputed = self._recomputed(phase.calls, old) if old is not None else None
        samples = int(inputs["completion_mask"].shape[0])
        trained = self._identities.trained(inputs)
        if recomputed is not None:
            self.recorder.emit(
                Refresh(
                    at=self.recorder.now(),
                    rollout=trained.rollout,
                    samples=samples,
                    positions=recomputed.log_probs.numel(),
                    policy_version=recomputed.version,
                    in_loss=True,
                )
            )
        old_version: int | None = None
        if recomputed is not None:
            old_version = recomputed.version
        elif old is not None:
            old_version = trained.sampled if self.schedule.old_logprob_source == "engine" else trained.refreshed
        constants: dict[Constant, Tensor] = {"advantages": inputs["advantages"]}
        if old is not None:
            constants["old_logprobs"] = old
        microbatch = MicroBatch(
            at=self.recorder.now(),
            index=self._microbatches,
            samples=samples,
            trained=trained.samples,
            policy_version=self.updates.version,
            sampled_version=trained.sampled,
            old_version=old_version,
            old_source=self._source(old, recomputed),
            constants=tuple(constants),
            with_gradient=tuple(name for name, value in constants.items() if value.requires_grad),
        )
        # The last one of a window is followed by its update, with nothing but the clipping of gradients between them.
        if self.updates.follows_microbatch:
            self.recorder.emit_with_next(microbatch)
        else:
            self.recorder.emit(microbatch)
        self._microbatches += 1
        self.microbatches_in_epoch += 1
        self.updates.trained_microbatch()

    def _source(self, old: Tensor | None, recomputed: LogProbCall | None) -> OldSource:
        """Where the old log-probs of a loss come from."""
        if old is None:
            return "detach"
        if recomputed is not None:
            return "recompute"
        return "engine" if self.schedule.old_logprob_source == "engine" else "at_rollout"

    def _recomputed(self, calls: list[LogProbCall], old: Tensor) -> LogProbCall | None:
        """The forward of the policy, inside the loss, that gave its old log-probs; None where they came with it.

        One without a gradient can only serve as that, unless it is the reference that 0.18 computes there with adapters
        switched off.
        """
        for call in calls:
            serves = call.log_probs is old or not (call.grad or self._reference_in_loss())
            if serves and self._is_policy(call.model):
                return call
        return None

    def _reference_in_loss(self) -> bool:
        return self.schedule.reference_source == "in_loss" and self.trainer.ref_model is None

    def step_expected(self) -> None:
        """The loop is about to step (TrainerCallback.on_pre_optimizer_step, all releases)."""
        self.updates.step_expected()

    def step_passed(self) -> None:
        """The loop has been at its optimizer step (TrainerCallback.on_optimizer_step, all releases)."""
        self.updates.step_passed()

    def finish(self) -> None:
        """Fetch what is still on the device; training is over, so waiting is allowed."""
        self._numbers.finish()


def _old_log_probs_in(part: dict[str, Any]) -> Any:
    """The old log-probs of a part of a rollout; None where there are none. RLOO's have a name of their own."""
    old = part.get("old_per_token_logps")
    return part.get("old_logps") if old is None else old
