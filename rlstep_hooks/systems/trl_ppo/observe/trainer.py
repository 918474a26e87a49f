"""Hooks on one live PPOTrainer. They emit events and never judge.

`train` is one long function, so the hooks sit on what it calls: methods of the trainer's own accelerator, optimizer and models.
They are placed when training begins and taken off when it ends. Each names why this method, which event it gives, and the
releases in which it was verified by real training (tests/systems/trl_ppo): 0.16.1, 0.18.2, 0.24.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.observe.deferred import INTERVAL
from rlstep_hooks.observe.guard import Guard, contained
from rlstep_hooks.observe.hooks import Call, Hooks
from rlstep_hooks.observe.settings import SettingsWatch, attributes
from rlstep_hooks.record.events import EpochEnd, MicroBatch, Refresh, Rollout
from rlstep_hooks.systems.trl.observe.adapter import Observer
from rlstep_hooks.systems.trl.observe.numbers import NumberCollector
from rlstep_hooks.systems.trl.observe.sampling import SamplingWatch
from rlstep_hooks.systems.trl.observe.updates import UpdateObserver
from rlstep_hooks.systems.trl_ppo.observe.measure import RatioMeter
from rlstep_hooks.systems.trl_ppo.observe.watch import ArithmeticWatch
from rlstep_hooks.systems.trl_ppo.plan import ARITHMETIC, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.record.events import AnyEvent
    from rlstep_hooks.session.recorder import Recorder

_ROLLOUT = ("order", "samples", "refresh")
"""What is not observed any more where rollouts cannot be followed."""


class PpoObserver(Observer):
    """Turns the calls that one PPOTrainer's loop makes into events."""

    def __init__(self, trainer: Any, recorder: Recorder, *, interval: float = INTERVAL) -> None:
        self.trainer = trainer
        self.recorder = recorder
        self.updates = UpdateObserver(trainer, recorder)
        self._hooks = Hooks(recorder)
        self._meter = RatioMeter(
            trainer.args.temperature,
            trainer.processing_class.pad_token_id,
            getattr(trainer, "stop_token_id", None),
            Guard(recorder, ("formula",)),
        )
        self._numbers = NumberCollector(recorder, self._meter, self.updates, interval=interval)
        self._arithmetic = ArithmeticWatch(
            trainer,
            recorder,
            self._meter,
            self._numbers,
            measured=lambda: not self._sampling and self._is_measured(),
        )
        self._sampled_with = SamplingWatch(
            trainer, recorder, of_rollout=lambda: not self._sampling, processors=not self._arithmetic.of_another_loop
        )
        settings = attributes(trainer.args, (*SETTINGS, *ARITHMETIC))
        self._settings = SettingsWatch(lambda: settings(trainer.args), since="train_begin")
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
        trainer, hooks = self.trainer, self._hooks
        model = trainer.model
        policy = trainer.accelerator.unwrap_model(model).policy
        # Generation, whose scores are the old log-probs: with the first micro-batch after it gives Rollout and Refresh. The loop
        # and the sampling of completions both call it (trl/trainer/utils.py `generate`).
        hooks.wrap(policy, "generate", before=self._generates, after=self._generated_samples, topics=_ROLLOUT)
        hooks.wrap(policy, "generate", after=self._generated_scores, topics=("log_ratio",))
        self._sampled_with.attach(hooks)
        # What callbacks generate and score is for the logs (transformers 4.51.3 to 5.23.0 call all of them here).
        for owner, name in ((trainer, "generate_completions"), (trainer.callback_handler, "call_event")):
            hooks.wrap(owner, name, around=self._samples_for_logs, topics=_ROLLOUT)
        # The reference model's log-probs belong to the rollout; with adapters it is the policy, within this context.
        if trainer.ref_model is not None:
            hooks.forward(trainer.ref_model, before=self._reference_seen, topics=_ROLLOUT)
        hooks.wrap(trainer, "null_ref_context", before=self._reference_seen, topics=_ROLLOUT)
        self._arithmetic.attach(hooks)
        # The forward of a micro-batch. The loop calls policy and value model together only to train.
        hooks.forward(model, before=self._forward_begins, topics=("order", "samples"))
        hooks.forward(model, before=self._window_begins, topics=("weights",))
        hooks.forward(model, after=self._measure_ratio, topics=("log_ratio",))
        hooks.forward(model, after=self._follow_loss, topics=("formula",))
        # Its backward: gives MicroBatch, before the optimizer steps.
        hooks.wrap(trainer.accelerator, "backward", after=self._trained_microbatch, topics=("order", "samples"))
        hooks.wrap(trainer.accelerator, "backward", around=self._backward, topics=("formula",))
        # accelerate's step, which does nothing within a window. It shows a step that was due and not made.
        hooks.wrap(trainer.optimizer, "step", around=self._step, topics=("order",))
        self.updates.attach(optimizer)

    def detach(self) -> None:
        """Take all hooks off. Every attribute is then the object it was before."""
        if self._hooks.active:
            self.updates.detach()
            self._hooks.take_off()

    def finish(self) -> None:
        """Fetch what is still on the device; training is over, so waiting is allowed."""
        self._last_rollout_is_over()
        self._numbers.finish()

    @contained(*_ROLLOUT)
    def _last_rollout_is_over(self) -> None:
        """Count the rollout that training ended with."""
        self._rollout_is_over()

    # Rollouts

    def _samples_for_logs(self, call: Call) -> Iterator[None]:
        outer, self._sampling = self._sampling, True
        try:
            yield
        finally:
            self._sampling = outer

    def _generates(self, call: Call) -> None:
        self.recorder.write()  # what comes now may take long

    def _generated_samples(self, call: Call) -> None:
        if self._sampling:
            return
        if not self._generated:
            self._rollout_is_over()
            self._meter.begin()
            self._arithmetic.begin()
        queries, sequences = call.kwargs["input_ids"], call.result.sequences
        self._generated += sequences.shape[0]
        self._positions += sequences.shape[0] * (sequences.shape[1] - queries.shape[1])

    def _generated_scores(self, call: Call) -> None:
        if self._is_measured() and not self._sampling:
            given, output = call.kwargs, call.result
            with torch.no_grad():
                self._meter.generated(given["input_ids"], given["attention_mask"], output.sequences, output.scores)

    def _is_measured(self) -> bool:
        """Whether the log ratios of this rollout are measured, which costs one more pass over the logits."""
        return is_compared(self._rollouts)

    def _reference_seen(self, call: Call) -> None:
        self._reference = True

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
        self._settings.tell(recorder)  # they take effect at once

    def _rollout_is_over(self) -> None:
        """Count the rollout whose micro-batches are over, and let its numbers be fetched."""
        if self._generated:  # samples that nobody trained
            self._emit_rollout()
        if self._samples is not None:
            self._samples = None
            self._rollouts += 1
            self._numbers.collect()

    @contained("log_ratio")
    def logged(self, logs: dict[str, Any]) -> None:
        """The numbers of this rollout were logged (TrainerCallback.on_log, all releases)."""
        ratio = logs.get("val/ratio")
        with torch.no_grad():
            mean = self._meter.mean_ratio()
            if isinstance(ratio, float) and mean is not None:
                self._numbers.add_logged_ratio(self._rollouts, ratio, mean)

    # Micro-batches and updates

    def _forward_begins(self, call: Call) -> None:
        if self._generated:
            self._emit_rollout()
            self._arithmetic.rollout_trained(self._rollouts)
        self._samples = int(call.kwargs["input_ids"].shape[0])

    def _window_begins(self, call: Call) -> None:
        self.updates.microbatch_begins()

    def _measure_ratio(self, call: Call) -> None:
        if self._is_measured():
            given, logits = call.kwargs, call.result[0].logits.detach()
            with torch.no_grad():
                self._meter.trained(self._microbatches, given["input_ids"], given["attention_mask"], logits)

    def _follow_loss(self, call: Call) -> None:
        if self._is_measured():
            self._arithmetic.follow(call.result[0].logits, call.result[1])

    def _backward(self, call: Call) -> Iterator[None]:
        self._arithmetic.backward_begins(call.argument("loss", 0))
        yield
        self._arithmetic.backward_is_over()

    def _trained_microbatch(self, call: Call) -> None:
        if self._samples is not None:
            self._emit_microbatch(self._samples)

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

    def _step(self, call: Call) -> Iterator[None]:
        due = bool(self.trainer.accelerator.sync_gradients)
        if due:
            self.updates.step_expected()
        yield
        if due:
            self.updates.step_passed()
