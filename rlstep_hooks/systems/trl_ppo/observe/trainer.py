"""Hooks on one live PPOTrainer. They emit events and never judge.

`train` is one long function, so the hooks sit on what it calls: methods of the trainer's own accelerator, optimizer and models.
They are placed when training begins and taken off when it ends. Each names why this method, which event it gives, and the
releases in which it was verified by real training (tests/systems/trl_ppo): 0.16.1, 0.18.2, 0.24.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.observe.contained import Contained
from rlstep_hooks.observe.deferred import INTERVAL
from rlstep_hooks.observe.patches import Patches, take_off
from rlstep_hooks.record.events import ConfigChanged, EpochEnd, MicroBatch, Refresh, Rollout
from rlstep_hooks.systems.trl.observe.numbers import NumberCollector
from rlstep_hooks.systems.trl.observe.sampling import SamplingWatch
from rlstep_hooks.systems.trl.observe.subject import Observer
from rlstep_hooks.systems.trl.observe.updates import UpdateObserver
from rlstep_hooks.systems.trl_ppo.observe.measure import RatioMeter
from rlstep_hooks.systems.trl_ppo.observe.watch import ArithmeticWatch
from rlstep_hooks.systems.trl_ppo.plan import ARITHMETIC, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.record.events import AnyEvent
    from rlstep_hooks.session.recorder import Recorder


class PpoObserver(Observer):
    """Turns the calls that one PPOTrainer's loop makes into events."""

    def __init__(self, trainer: Any, recorder: Recorder, *, interval: float = INTERVAL) -> None:
        self.trainer = trainer
        self.recorder = recorder
        self.active = False
        self.updates = UpdateObserver(trainer, recorder)
        self._patches = Patches()
        self._handles: list[Any] = []
        self._rollout_guard = Contained(recorder, ("order", "samples", "refresh"))
        self._microbatch_guard = Contained(recorder, ("order", "samples"))
        self._ratio_guard = Contained(recorder, ("log_ratio",))
        self._loss_guard = Contained(recorder, ("formula",))
        self._window_guard = Contained(recorder, ("weights",))
        self._meter = RatioMeter(
            trainer.args.temperature, trainer.processing_class.pad_token_id, getattr(trainer, "stop_token_id", None)
        )
        self._numbers = NumberCollector(recorder, self._meter, self.updates, interval=interval)
        self._arithmetic = ArithmeticWatch(
            trainer,
            recorder,
            self._meter,
            self._numbers,
            measured=lambda: self.active and not self._sampling and self._is_measured(),
        )
        self._sampled_with = SamplingWatch(
            trainer, recorder, of_rollout=lambda: not self._sampling, processors=not self._arithmetic.of_another_loop
        )
        self._settings = {name: getattr(trainer.args, name, None) for name in (*SETTINGS, *ARITHMETIC)}
        self._sampling = False
        self._generated = 0
        self._positions = 0
        self._reference = False
        self._ended_pass = False
        self._epochs = 0
        self._rollouts = 0
        self._microbatches = 0
        self._samples: int | None = None
        self._sampled_version = 0

    @property
    def updates_made(self) -> int:
        """Updates of this training call."""
        return self.updates.version

    # Attaching

    def attach(self, optimizer: Any) -> None:
        """Place all hooks. Called when training begins; models and optimizer are prepared then."""
        trainer, wrap = self.trainer, self._patches.wrap
        self.active = True
        model = trainer.model
        policy = trainer.accelerator.unwrap_model(model).policy
        # Generation, whose scores are the old log-probs: with the first micro-batch after it gives Rollout and Refresh. The loop
        # and the sampling of completions both call it (trl/trainer/utils.py `generate`).
        wrap(policy, "generate", self._around_generate)
        self._sampled_with.attach(self._patches)
        wrap(trainer, "generate_completions", self._around_sampling)
        # What callbacks generate and score is for the logs (transformers 4.51.3 to 5.23.0 call all of them here).
        wrap(trainer.callback_handler, "call_event", self._around_sampling)
        # The reference model's log-probs belong to the rollout; with adapters it is the policy, within this context.
        if trainer.ref_model is not None:
            self._handles.append(trainer.ref_model.register_forward_pre_hook(self._reference_seen))
        wrap(trainer, "null_ref_context", self._around_null_reference)
        self._arithmetic.attach(self._patches, self._handles)
        # The forward of a micro-batch. The loop calls policy and value model together only to train.
        self._handles.append(model.register_forward_pre_hook(self._before_forward, with_kwargs=True))
        self._handles.append(model.register_forward_hook(self._after_forward, with_kwargs=True))
        # Its backward: gives MicroBatch, before the optimizer steps.
        wrap(trainer.accelerator, "backward", self._around_backward)
        # accelerate's step, which does nothing within a window. It shows a step that was due and not made.
        wrap(trainer.optimizer, "step", self._around_step)
        self.updates.attach(optimizer)

    def detach(self) -> None:
        """Take all hooks off. Every attribute is then the object it was before."""
        if not self.active:
            return
        self.active = False
        self.updates.detach()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        take_off(self._patches, self.recorder)

    def finish(self) -> None:
        """Fetch what is still on the device; training is over, so waiting is allowed."""
        with self._rollout_guard:
            self._rollout_is_over()
        self._numbers.finish()

    # Rollouts

    def _around_sampling(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        outer, self._sampling = self._sampling, True
        try:
            return wrapped(*args, **kwargs)
        finally:
            self._sampling = outer

    def _around_generate(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        self.recorder.write()  # what comes now may take long
        output = wrapped(*args, **kwargs)
        if self.active and not self._sampling:
            with self._rollout_guard:
                self._add_generated(kwargs, output)
        return output

    def _add_generated(self, given: dict[str, Any], output: Any) -> None:
        if not self._generated:
            self._rollout_is_over()
            self._meter.begin()
            self._arithmetic.begin()
        queries, sequences = given["input_ids"], output.sequences
        self._generated += sequences.shape[0]
        self._positions += sequences.shape[0] * (sequences.shape[1] - queries.shape[1])
        if self._is_measured():
            with self._ratio_guard, torch.no_grad():
                self._meter.generated(queries, given["attention_mask"], sequences, output.scores)

    def _is_measured(self) -> bool:
        """Whether the log ratios of this rollout are measured, which costs one more pass over the logits."""
        return is_compared(self._rollouts)

    def _reference_seen(self, module: Any, args: Any) -> None:
        self._reference = True

    def _around_null_reference(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        self._reference = True
        return wrapped(*args, **kwargs)

    def _emit_rollout(self) -> None:
        """The samples generated so far are a rollout, because their training begins."""
        recorder, version = self.recorder, self.updates.version
        events: list[AnyEvent] = []
        if self._ended_pass:
            self._epochs += 1
            events.append(EpochEnd(at=recorder.now(), epoch=self._epochs))
        events += [
            Rollout(
                at=recorder.now(),
                index=self._rollouts,
                samples=self._generated,
                policy_version=version,
                sampler_version=version,  # the policy itself generated them
                reference=self._reference,
                sampling=self._sampled_with.take(),
            ),
            Refresh(
                at=recorder.now(),
                rollout=self._rollouts,
                samples=self._generated,
                positions=self._positions,
                policy_version=version,
            ),
        ]
        recorder.emit(*events)
        self._sampled_version = version
        # The loop holds its loader on one batch for the whole rollout.
        self._ended_pass = bool(getattr(self.trainer.dataloader, "end_of_dataloader", False))
        self._generated = self._positions = 0
        self._reference = False
        self._check_settings()

    def _rollout_is_over(self) -> None:
        """Count the rollout whose micro-batches are over, and let its numbers be fetched."""
        if self._generated:  # samples that nobody trained
            self._emit_rollout()
        if self._samples is not None:
            self._samples = None
            self._rollouts += 1
            self._numbers.collect()

    def _check_settings(self) -> None:
        """Compare the live settings with those at the beginning of training; they take effect at once."""
        for name, before in self._settings.items():
            after = getattr(self.trainer.args, name, None)
            if after != before:
                self._settings[name] = after
                self.recorder.emit(
                    ConfigChanged(at=self.recorder.now(), name=name, before=before, after=after, since="train_begin")
                )

    def logged(self, logs: dict[str, Any]) -> None:
        """The numbers of this rollout were logged (TrainerCallback.on_log, all releases)."""
        ratio = logs.get("val/ratio")
        with self._ratio_guard, torch.no_grad():
            mean = self._meter.mean_ratio()
            if isinstance(ratio, float) and mean is not None:
                self._numbers.add_logged_ratio(self._rollouts, ratio, mean)

    # Micro-batches and updates

    def _before_forward(self, module: Any, args: Any, kwargs: Any) -> None:
        with self._microbatch_guard:
            if self._generated:
                self._emit_rollout()
                self._arithmetic.rollout_trained(self._rollouts)
            self._samples = int(kwargs["input_ids"].shape[0])
        with self._window_guard:
            self.updates.microbatch_begins()

    def _after_forward(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if not self._is_measured():
            return
        with self._ratio_guard, torch.no_grad():
            self._meter.trained(
                self._microbatches, kwargs["input_ids"], kwargs["attention_mask"], output[0].logits.detach()
            )
        with self._loss_guard:
            self._arithmetic.follow(output[0].logits, output[1])

    def _around_backward(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        with self._loss_guard:
            self._arithmetic.backward_begins(args[0] if args else kwargs.get("loss"))
        result = wrapped(*args, **kwargs)
        if self.active and self._samples is not None:
            with self._microbatch_guard:
                self._emit_microbatch(self._samples)
        with self._loss_guard:
            self._arithmetic.backward_is_over()
        return result

    def _emit_microbatch(self, samples: int) -> None:
        self.recorder.emit(
            MicroBatch(
                at=self.recorder.now(),
                index=self._microbatches,
                samples=samples,
                policy_version=self.updates.version,
                sampled_version=self._sampled_version,
                old_version=self._sampled_version,
                old_source="at_rollout",
            )
        )
        self._microbatches += 1
        self.updates.trained_microbatch()

    def _around_step(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        due = self.active and bool(self.trainer.accelerator.sync_gradients)
        if due:
            self.updates.step_expected()
        result = wrapped(*args, **kwargs)
        if due:
            self.updates.step_passed()
        return result
