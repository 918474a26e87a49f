"""Hooks on one live GRPOTrainer or RLOOTrainer. They emit events and never judge.

All hooks sit on the trainer object itself (`rlstep_hooks.observe.patches`), are placed when training begins and taken off when it
ends. Each names why this method, which event it gives, and the releases in which it was verified by real training
(tests/systems/trl): 0.16.1, 0.18.2, 0.24.0, 1.0.0, 1.16.0.

`rollouts`, `microbatches`, `log_probs` and `updates` have the hooks of what their names say. Here are those of evaluations and of
the loader's passes, and the attaching and detaching of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.deferred import INTERVAL
from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.hooks import Call, Hooks
from rlstep_hooks.record.events import EpochEnd, Evaluated, FactsRead
from rlstep_hooks.systems.trl.observe.adapter import Observer
from rlstep_hooks.systems.trl.observe.calls import Activity
from rlstep_hooks.systems.trl.observe.configured_rates import configured_rates
from rlstep_hooks.systems.trl.observe.identities import SampleIdentities
from rlstep_hooks.systems.trl.observe.layer_slopes import LayerSlopes
from rlstep_hooks.systems.trl.observe.log_probs import LogProbHooks
from rlstep_hooks.systems.trl.observe.loop_flags import LoopFlags
from rlstep_hooks.systems.trl.observe.measure import MicroBatchMeter
from rlstep_hooks.systems.trl.observe.microbatches import MicroBatchHooks
from rlstep_hooks.systems.trl.observe.numbers import NumberCollector
from rlstep_hooks.systems.trl.observe.observation import Observation
from rlstep_hooks.systems.trl.observe.planned_evaluations import PlannedEvaluations
from rlstep_hooks.systems.trl.observe.reference import ReferenceWatch
from rlstep_hooks.systems.trl.observe.restored import random_states
from rlstep_hooks.systems.trl.observe.rollouts import RolloutHooks
from rlstep_hooks.systems.trl.observe.sampled import SampledWatch
from rlstep_hooks.systems.trl.observe.scored_alone import ScoredAlone
from rlstep_hooks.systems.trl.observe.settings import of_evaluation
from rlstep_hooks.systems.trl.observe.updates import UpdateObserver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.trl.observe.batch_adapter import BatchAdapter


class TrlObserver(Observer):
    """Turns one trainer's method calls into events."""

    def __init__(self, adapter: BatchAdapter, recorder: Recorder, *, epochs: int, interval: float = INTERVAL) -> None:
        trainer, schedule = adapter.trainer, adapter.schedule
        self.trainer = trainer
        self.recorder = recorder
        self.updates = UpdateObserver(
            trainer,
            recorder,
            per_cycle=max(schedule.microbatches_per_cycle // (schedule.microbatches_per_update or 1), 1),
            limit=lambda: trainer.args.max_grad_norm,
            configured=configured_rates,
        )
        drawing = SampledWatch(adapter, recorder)
        meter = MicroBatchMeter(
            adapter.loss_settings,
            follows_rollout=adapter.follows_rollout(),
            cap=drawing.cap,
            joined=adapter.has_samples_of_its_own(),
        )
        reference = ReferenceWatch(trainer, recorder)
        self._observation = Observation(
            trainer=trainer,
            schedule=schedule,
            adapter=adapter,
            recorder=recorder,
            updates=self.updates,
            reference=reference,
            identities=SampleIdentities(int(schedule.microbatches_per_cycle)),
            drawing=drawing,
            alone=ScoredAlone(trainer, recorder, adapter.rows_hidden),
            slopes=LayerSlopes(trainer, recorder, adapter.rows_hidden),
            meter=meter,
            numbers=NumberCollector(recorder, meter, self.updates, reference, interval=interval),
        )
        self._rollouts = RolloutHooks(self._observation)
        self._log_probs = LogProbHooks(self._observation)
        self._microbatches = MicroBatchHooks(self._observation)
        self._hooks = Hooks(recorder)
        self._epochs = epochs
        self._evaluation_batches = 0
        self._mode = of_evaluation(trainer)
        self._evaluations = PlannedEvaluations(trainer)
        self._flags = LoopFlags(trainer, recorder)

    @property
    def updates_made(self) -> int:
        """Windows closed in the whole run."""
        return int(self.trainer.state.global_step)

    @property
    def microbatches_in_epoch(self) -> int:
        """Micro-batches of this pass of the loader."""
        return self._microbatches.in_epoch

    # Attaching

    def attach(self, optimizer: Any) -> None:
        """Place all hooks. Called when training begins; the optimizer exists then, the first batch does not."""
        hooks = self._hooks
        self._microbatches.attach(hooks)
        if self.trainer.state.global_step:
            # `_load_rng_state`: called once, when the batches before the checkpoint are skipped (4.51.3 trainer.py:2491 and 2534,
            # 5.23.0 trainer.py:1849 and 1881). It gives the fact of the generators.
            hooks.wrap(self.trainer, "_load_rng_state", after=self._random_states_loaded, topics=("checkpoints",))
        # Evaluation: keeps its rollouts and losses apart. GRPOTrainer's own in all releases.
        hooks.wrap(self.trainer, "prediction_step", around=self._evaluates, topics=("order",))
        self._rollouts.attach(hooks)
        self._log_probs.attach(hooks)
        self._observation.drawing.attach()
        if getattr(self.trainer, "is_deepspeed_enabled", False):
            self.updates.attach_to_engine()
        else:
            self.updates.attach(optimizer)
        for topic, why in self._observation.adapter.unobservable():
            self.recorder.cannot(topic, why)

    def _random_states_loaded(self, call: Call) -> None:
        found = random_states(self.trainer)
        if found:
            self.recorder.emit(FactsRead(at=self.recorder.now(), facts={"restored_random_states": found}))

    def detach(self) -> None:
        """Take all hooks off. Every attribute is then the object it was before."""
        if self._hooks.active:
            self.updates.detach()
            self._hooks.take_off()

    def finish(self) -> None:
        """Fetch what is still on the device; training is over, so waiting is allowed."""
        self._observation.numbers.finish()
        self._rollouts.finish()

    # Evaluations and passes of the loader

    def _evaluates(self, call: Call) -> Iterator[None]:
        seen = self._observation
        self._evaluation_batches += 1
        self._mode.tell(self.recorder)
        outer, seen.activity = seen.activity, Activity("evaluation")
        try:
            yield
        finally:
            seen.activity = outer

    @contained("order")
    def evaluated(self) -> None:
        """An evaluation ended (TrainerCallback.on_evaluate, all releases)."""
        self._evaluations.evaluated()
        batches, rollouts = self._evaluation_batches, self._rollouts.of_evaluation
        self._evaluation_batches = self._rollouts.of_evaluation = 0
        if batches:
            self.recorder.emit(Evaluated(at=self.recorder.now(), batches=batches, rollouts=rollouts))

    @contained("order")
    def update_passed(self, updates: int) -> None:
        """What follows an update is over: the next one is made, or training ended."""
        self._evaluations.passed(updates, self.recorder)

    @contained("order")
    def pass_begins(self) -> None:
        """A pass of the loader begins (TrainerCallback.on_epoch_begin, all releases)."""
        self._flags.pass_begins()

    @contained("order")
    def update_ends(self) -> None:
        """An update was made (TrainerCallback.on_step_end, all releases)."""
        self._flags.update_ends()

    @contained("order")
    def pass_ends(self) -> None:
        """A pass of the loader ended (TrainerCallback.on_epoch_end, all releases)."""
        self._flags.pass_ends()

    @contained("order")
    def epoch_ended(self, *, stopping: bool, run_over: bool) -> None:
        """A pass of the loader ended (TrainerCallback.on_epoch_end, all releases)."""
        self._epochs += 1
        self._microbatches.in_epoch = 0
        self._rollouts.pass_ended()
        self.recorder.emit(EpochEnd(at=self.recorder.now(), epoch=self._epochs, stopping=stopping, run_over=run_over))

    # Updates

    def step_expected(self) -> None:
        """The loop is about to step (TrainerCallback.on_pre_optimizer_step, all releases)."""
        self.updates.step_expected()

    def step_passed(self) -> None:
        """The loop has been at its optimizer step (TrainerCallback.on_optimizer_step, all releases)."""
        self.updates.step_passed()
