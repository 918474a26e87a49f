"""Hooks on one live AsyncGRPOTrainer. They emit events and never judge.

A rollout is the samples of one update. The samples of a micro-batch are known from the queue to the loss, with the version that their
group was begun with. Verified by real training with TRL 1.16.0 (tests/systems/trl_async).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.deferred import INTERVAL
from rlstep_hooks.observe.delivery import same_names
from rlstep_hooks.observe.hooks import Call, Hooks
from rlstep_hooks.observe.sync_watch import SyncWatch
from rlstep_hooks.record.events import UNSENT, MicroBatch, Rollout, SampleRows, WeightSync
from rlstep_hooks.systems.trl.observe.adapter import Observer
from rlstep_hooks.systems.trl.observe.numbers import NumberCollector
from rlstep_hooks.systems.trl.observe.updates import UpdateObserver
from rlstep_hooks.systems.trl_async.observe.ratios import RatioMeter
from rlstep_hooks.systems.trl_async.observe.samples import Samples, Trained

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.session.recorder import Recorder

_SAMPLES = ("order", "samples", "sampler")
"""What is not observed any more where samples or their versions cannot be followed."""


class AsyncObserver(Observer):
    """Turns the calls of one trainer's loop, and what passes through its queue, into events."""

    def __init__(self, trainer: Any, schedule: Schedule, recorder: Recorder, *, interval: float = INTERVAL) -> None:
        self.trainer = trainer
        self.recorder = recorder
        self.updates = UpdateObserver(trainer, recorder)
        self._by_tokens = schedule.samples_per_update is None
        self._samples = Samples()
        self._meter = RatioMeter()
        self._numbers = NumberCollector(recorder, self._meter, self.updates, interval=interval)
        self._hooks = Hooks(recorder)
        self._synced: dict[int, int] = {}
        """The trainer's number for the weights of a sync -> updates that were made then."""
        self._sync: SyncWatch | None = None
        """Follows syncs to the engine's model; None where that is not in this process."""
        self._rollouts = self.updates.version
        self._microbatches = 0
        self._left = 0
        """Micro-batches of this window that are still to come."""
        self._row = 0
        """Samples of this rollout that were trained."""
        self._log_probs: Any = None

    @property
    def updates_made(self) -> int:
        """Updates of the whole run."""
        return self.updates.version

    # Attaching

    def attach(self, optimizer: Any) -> None:
        """Place all hooks. The loader is there when training begins, and was not iterated yet."""
        trainer, wrap = self.trainer, self._hooks.wrap
        if self._by_tokens:
            self.recorder.cannot("order", "token_budget cuts micro-batches by their tokens: the plan knows no sizes")
        loader = trainer.callback_handler.train_dataloader
        if trainer.rollout_queue is not None and trainer.accelerator.num_processes == 1:
            # What the dataset takes (`RolloutQueueDataset.__iter__`, 1.16.0:351): the samples with their versions.
            wrap(trainer.rollout_queue, "get", after=self._took, topics=_SAMPLES)
            # What it makes of them (`DataCollatorForRollout.torch_call`, 1.16.0:592): one row of samples for each process.
            wrap(loader.collate_fn, "torch_call", before=self._collates, topics=_SAMPLES)
        else:
            for topic in _SAMPLES:
                self.recorder.cannot(topic, "only one process takes samples from the queue, for all of them")
        # Weights brought to the engine, with their new number: what `_sync_weight` calls (1.16.0:1733-1858), before the first rollout
        # too. It is itself held by a callback of the trainer's constructor, so it cannot be wrapped on the object.
        wrap(trainer, "_sync_weight_merged", after=self._synced_weights, topics=_SAMPLES)
        wrap(trainer, "_sync_weight_lora", after=self._synced_weights, topics=_SAMPLES)
        if trainer.model_version:
            self._synced[int(trainer.model_version)] = self.updates.version
            self._emit_sync()
        # A transfer of one's own may hold the engine's model in this process, as `model`: it is then compared with what is sent to it.
        transfer = trainer.weight_transfer
        engine = getattr(transfer, "model", None)
        if isinstance(engine, torch.nn.Module) and engine is not trainer.model:
            unwrap = trainer.accelerator.unwrap_model
            self._sync = SyncWatch(
                recorder=self.recorder,
                policy=lambda: unwrap(trainer.model),
                engine="the engine",
                place=same_names(engine),
            )
            # 1.16.0:1777: all tensors of a sync, as an iterator of names and tensors.
            wrap(transfer, "send_weights", around=self._transfers, topics=("delivery",))
        # A micro-batch, from its forward to its backward; its log-probs, for the ratio.
        wrap(trainer, "training_step", before=self._step_begins, after=self._stepped, topics=_SAMPLES)
        wrap(trainer, "compute_loss", after=self._computed_loss, topics=("log_ratio",))
        self._hooks.forward(trainer.model, after=self._forwarded, topics=("log_ratio",))
        self.updates.attach(optimizer)

    def detach(self) -> None:
        """Take all hooks off. Every attribute is then the object it was before."""
        if self._hooks.active:
            self.updates.detach()
            self._hooks.take_off()

    def finish(self) -> None:
        """Fetch what is still on the device; training is over, so waiting is allowed."""
        if not self._left and (gap := self._meter.take_gap()):
            self._numbers.add_gap(self._rollouts - 1, gap)
        self._numbers.finish()
        if self._sync is not None:
            self._sync.collect(wait=True)

    # From the queue to the loader

    def _took(self, call: Call) -> None:
        age = int(self.trainer.model_version) - int(call.result.model_version)
        self._samples.took(call.result, due=age <= self.trainer.args.max_staleness)

    def _collates(self, call: Call) -> None:
        self._samples.made(call.argument("examples", 0)[0], own=0)

    # Weights

    def _synced_weights(self, call: Call) -> None:
        self._synced[int(self.trainer.model_version)] = self.updates.version
        self._emit_sync()

    def _transfers(self, call: Call) -> Iterator[None]:
        sync, tensors = self._sync, call.argument("iterator", 0)
        if sync is None or tensors is None:
            yield
            return
        sync.begin()
        call.replace_argument("iterator", 0, sync.through(tensors, sync.handed_over, sync.arrives))
        yield
        sync.end(self.updates.version)

    def _emit_sync(self) -> None:
        version, label = self.updates.version, int(self.trainer.model_version)
        self.recorder.emit(WeightSync(at=self.recorder.now(), policy_version=version, label=label))

    # Micro-batches

    def _step_begins(self, call: Call) -> None:
        if not self._left:
            self._begin_rollout()

    def _stepped(self, call: Call) -> None:
        self._emit_microbatch()

    def _begin_rollout(self) -> None:
        """The samples of the update that begins: the loop has fetched all its micro-batches."""
        if gap := self._meter.take_gap():
            self._numbers.add_gap(self._rollouts - 1, gap)
        self._left = int(self.trainer.current_gradient_accumulation_steps)
        self._row = 0
        batches = self._samples.next_batches(self._left)
        self._numbers.collect()
        if not batches:
            return
        samples = sum(len(batch.samples) for batch in batches)
        lost = sum(batch.lost for batch in batches)
        recorder = self.recorder
        recorder.emit(
            Rollout(
                at=recorder.now(),
                index=self._rollouts,
                samples=samples,
                policy_version=self.updates.version,
                sampler_version=min(self._version_of(batch) for batch in batches),
                reference=False,
                due=samples + lost if lost else None,
            )
        )

    def _version_of(self, batch: Trained) -> int:
        """The oldest weights among the samples of a micro-batch, in updates."""
        versions = (UNSENT if taken is None else self._synced.get(taken.version, UNSENT) for taken in batch.samples)
        return min(versions, default=UNSENT)

    def _emit_microbatch(self) -> None:
        batch, recorder = self._samples.trained(), self.recorder
        version = None if batch is None else self._version_of(batch)
        recorder.emit(
            MicroBatch(
                at=recorder.now(),
                index=self._microbatches,
                samples=0 if batch is None else len(batch.samples),
                trained=None if batch is None else self._rows_of(batch),
                policy_version=self.updates.version,
                sampled_version=version,
                unknown=0 if batch is None else sum(taken is None for taken in batch.samples),
                old_version=version,
                old_source="engine",
            )
        )
        self._microbatches += 1
        self._left -= 1
        self.updates.trained_microbatch()
        if not self._left:
            self._rollouts += 1

    def _rows_of(self, batch: Trained) -> tuple[SampleRows, ...]:
        """Where each sample of a micro-batch stands: in this rollout, or in the one that it was trained in before."""
        rows: dict[int, list[int]] = {}
        for taken in batch.samples:
            if taken is not None:
                rollout, row = self._samples.place_of(taken, self._rollouts, self._row)
                rows.setdefault(rollout, []).append(row)
            self._row += 1
        return tuple(SampleRows(rollout, tuple(of)) for rollout, of in rows.items())

    # The ratio

    def _forwarded(self, call: Call) -> None:
        log_probs = getattr(call.result, "log_probs", None)
        self._log_probs = None if log_probs is None else log_probs.detach()

    def _computed_loss(self, call: Call) -> None:
        log_probs, self._log_probs = self._log_probs, None
        if log_probs is not None:
            with torch.no_grad():
                self._meter.measure(self._microbatches, call.argument("inputs", 1), log_probs)

    # transformers' events

    def step_expected(self) -> None:
        """The loop is about to step."""
        self.updates.step_expected()

    def step_passed(self) -> None:
        """The loop has been at its optimizer step."""
        self.updates.step_passed()
