"""Rollouts as the process that controls training sees them: what it trains between two syncs, fetch by fetch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.processes import run_of_ray
from rlstep_hooks.observe.turn_records import TurnRecords
from rlstep_hooks.record.events import Generated, QueueStep, Rewarded, Unobserved
from rlstep_hooks.record.tail import Tail
from rlstep_hooks.systems.verl.observe.fully_async.queue import StreamedQueue, Taken
from rlstep_hooks.systems.verl.observe.fully_async.rollouter import PROCESS
from rlstep_hooks.systems.verl.observe.process import folder
from rlstep_hooks.systems.verl.observe.rollouts import counted
from rlstep_hooks.systems.verl.observe.sampled import why_not_sampled

if TYPE_CHECKING:
    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import Queued
    from rlstep_hooks.session.recorder import Recorder

NAME = "uid_"
"""What a prompt's `uid` begins with; its name in the queue follows (fully_async_rollouter.py:979)."""


def record_of_generation() -> Tail:
    """The record of the process that generates."""
    return Tail(folder() / f"{run_of_ray()}.{PROCESS}.jsonl")


class StreamedRollouts:
    """Follows the rollouts of one trainer.

    Args:
        trainer: verl's `FullyAsyncTrainer`.
        schedule: The plan of the run.
        recorder: Where events go.
    """

    own_loop = False
    own_fit = False

    def __init__(self, trainer: Any, schedule: Schedule, recorder: Recorder) -> None:
        self._trainer = trainer
        self._schedule = schedule
        self.recorder = recorder
        """Where events go."""
        turns = trainer.config.actor_rollout_ref.rollout.get("multi_turn") or {}
        self.several_turns = bool(turns.get("enable"))
        self._rollouts = 0
        self.validating = False
        """Whether what the trainers do now is none of training."""
        self.incomplete = False
        """Whether parts of a rollout were given to training, and others are to come."""
        self._parts: list[list[Taken]] = []
        self._rewarded: list[Rewarded] = []
        """Rewards of parts whose rollout was not recorded yet."""
        self._steps = record_of_generation()
        self._queue: StreamedQueue | None = StreamedQueue(schedule.samples_per_prompt)
        self._turns = TurnRecords(folder(), run_of_ray())
        recorder.cannot("drawn", why_not_sampled(trainer.config, own_fit=False, v1=False))

    @property
    def trained(self) -> int:
        """Index of the rollout that is trained."""
        return self._rollouts if self.incomplete else self._rollouts - 1

    def place(self, hooks: Hooks) -> None:
        """Put the hooks on the trainer.

        Args:
            hooks: What takes them off again.
        """
        # fully_async_trainer.py:578: prompts are fetched from the queue until there are enough for a fetch.
        hooks.wrap(self._trainer, "_fit_generate", after=self._is_fetched, topics=("order",))
        # separation/ray_trainer.py:648 calls it: the samples of a fetch are trained next.
        hooks.wrap(self._trainer, "_update_actor", before=self._trained_next, topics=("order",))

    @contained("queue")
    def synced(self, label: int) -> None:
        """Weights were synced under a label."""
        if self._queue is not None:
            self._queue.synced(label)

    def rewarded(self, event: Rewarded) -> None:
        """Record how the advantages of a fetch follow its rewards, once its rollout is recorded."""
        if self.incomplete:
            self._rewarded.append(event)
        else:
            self.recorder.emit(event)

    def ended(self) -> None:
        """Training is over; when evaluations and checkpoints are due here is not followed."""

    def _is_fetched(self, call: Call) -> None:
        self.incomplete = True

    def _trained_next(self, call: Call) -> None:
        of_each = call.argument("batch", 0).non_tensor_batch
        samples = [
            Taken(str(name).removeprefix(NAME), _number(oldest), _number(newest))
            for name, oldest, newest in zip(
                of_each["uid"], of_each["min_global_steps"], of_each["max_global_steps"], strict=True
            )
        ]
        self._follow(samples)
        self._parts.append(samples)
        if len(self._parts) < self._schedule.parts_per_rollout:
            return
        parts, self._parts = self._parts, []
        self._generated(parts)

    @contained("queue")
    def _follow(self, samples: list[Taken]) -> None:
        """These samples are taken from the queue."""
        if self._queue is None:
            return
        for event in self._steps.read():
            if isinstance(event, QueueStep):
                self._queue.step(event)
            elif isinstance(event, Unobserved):
                self.recorder.cannot("queue", event.why)
        self._queue.take(samples)

    def _generated(self, parts: list[list[Taken]]) -> None:
        samples = [sample for part in parts for sample in part]
        self.recorder.emit(
            Generated(
                at=self.recorder.now(),
                index=self._rollouts,
                samples=len(samples),
                prompts=len({sample.prompt for sample in samples}),
                labels=counted(sample.oldest for sample in samples),
                all_drawn=False,
                parts=tuple(map(len, parts)) if len(parts) > 1 else (),
                queue=self._queued(),
            )
        )
        self._see_turns(samples)
        rewarded, self._rewarded = self._rewarded, []
        self.recorder.emit(*(msgspec.structs.replace(event, rollout=self._rollouts) for event in rewarded))
        self._rollouts += 1
        self.incomplete = False

    @contained("queue")
    def _queued(self) -> Queued | None:
        """What happened in the queue since the rollout before; None where that is not known."""
        if self._queue is not None and not self._queue.seen:
            self._queue = None
            self.recorder.cannot("queue", "the process that generates recorded no prompt")
        return None if self._queue is None else self._queue.since()

    @contained("mask")
    def _see_turns(self, samples: list[Taken]) -> None:
        """Record what agent loops found of the samples of a rollout."""
        joined = self._turns.take([f"{NAME}{sample.prompt}" for sample in samples], self._rollouts)
        if joined.rows or self.several_turns:
            self.recorder.emit(msgspec.structs.replace(joined, at=self.recorder.now()))


def _number(label: Any) -> int | None:
    return None if label is None else int(label)
