"""The optimizer steps of a DeepSpeed engine that OpenRLHF drives: when one is made, and what is looked at around it.

DeepSpeed steps on flat tensors, group by group, at the end of each window of micro-batches, whichever call reaches that end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.compared import is_compared, is_compared_whole, is_probed
from rlstep_hooks.observe.guard import Guard, contained
from rlstep_hooks.observe.replicas import ReplicaWatch
from rlstep_hooks.observe.sharding.zero import stepped_tensors, zero_replicas
from rlstep_hooks.systems.deepspeed_engine.follower import EngineFollower
from rlstep_hooks.systems.openrlhf.observe.gradients import gradients_of
from rlstep_hooks.systems.openrlhf.observe.process import patches

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.observe.replicas import Replicated
    from rlstep_hooks.observe.trainer_record import TrainerRecord
    from rlstep_hooks.record.values import Role
    from rlstep_hooks.systems.openrlhf.observe.model_weights import ModelWeights

_ORDER, _VALUES, _GRADIENT, _REPLICAS = ("order",), ("log_ratio", "weights", "optimizer"), ("gradient",), ("replicas",)
"""What is not observed any more where a hook fails."""

_SHARED = "processes that share samples (ring attention, tensor parallelism) reduce gradients with those that record"
"""Why the gradients and weights of several processes are not joined."""


class EngineSteps:
    """Follows the steps of one engine.

    Args:
        engine: DeepSpeed's.
        role: The role whose weights it trains.
        record: Takes what is seen.
        model: The weights that the model computes with.
        ranks: Processes of this role that have samples of their own, each of which records.
        limit: The configured limit of the norm of the gradients; 0 where there is none.
        cycle: Gives the rollout that is trained, counted from 0.
        scaled: Whether a scaler changes the loss (float16), so that gradients are not those of the loss.
    """

    def __init__(
        self,
        engine: Any,
        role: Role,
        record: TrainerRecord,
        model: ModelWeights,
        *,
        ranks: int,
        limit: float,
        cycle: Callable[[], int],
        scaled: bool,
    ) -> None:
        self._engine = engine
        self._role: Role = role
        self._record = record
        self.recorder = record.writer
        """Learns what is not observed."""
        self._model = model
        self._processes = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        self._joined = ranks == self._processes > 1
        self._limit = limit
        self._cycle = cycle
        self._scaled = scaled
        self._follower: EngineFollower | None = None
        """Follows the optimizer within a step of the engine."""
        self._begun = self._stepped = False
        """Whether the engine is about to make an update, and whether its optimizer has stepped for it."""
        self._steps = engine.global_steps
        """Steps that are recorded."""
        self._kept_seen = -1
        """The latest rollout in which it was looked at what training leaves as it is."""
        self._rate, self._tick, self._skipped = 0.0, None, 0
        """The learning rate of the step that is made, its scheduler's tick, and the steps that were skipped before."""

    def place(self, hooks: Hooks, strategy: Any, passes: int) -> None:
        """Place the hooks. All verified in 0.11.2 by real runs.

        Args:
            hooks: The hooks of the trainer.
            strategy: OpenRLHF's.
            passes: Micro-batches of a usual window.
        """
        # deepspeed.py:183: called once for each micro-batch; DeepSpeed steps at the end of each window. Hooks that are placed later
        # stand outside: what was seen of a step is recorded before the step is.
        hooks.wrap(strategy, "optimizer_step", before=self._engine_steps, after=self._engine_stepped, topics=_VALUES)
        hooks.wrap(strategy, "optimizer_step", after=self._leave, topics=_VALUES)
        hooks.wrap(strategy, "optimizer_step", before=self._begin, after=self._updated, topics=_ORDER)
        # torch's own hook: an engine that counts an update whose step somebody swallowed has made none.
        hooks.steps(self._engine.basic_optimizer, after=self._optimizer_stepped, topics=_VALUES)
        self._follow(passes)
        if self._joined:
            self._watch_replicas()
        elif self._processes > 1:
            for topic in ("reduction", *_REPLICAS):
                self.recorder.cannot(topic, _SHARED)

    @contained(*_REPLICAS)
    def _watch_replicas(self) -> None:
        """Look at what every rank should hold alike."""
        watch = ReplicaWatch(_replicas(self._engine), role=self._role)
        self._record.steps[self._role].watch_replicas(watch, self._record.updates(self._role))

    @contained(*_VALUES, *_GRADIENT)
    def _follow(self, passes: int) -> None:
        """Look at what the engine's optimizer steps on, and at the gradients that come to it."""
        steps, recorder = self._record.steps[self._role], self.recorder
        follower = EngineFollower(
            self._engine,
            steps,
            recorder,
            passes=passes,
            limit=self._limit,
            reduces=self._joined,
            patches=patches,
        )
        follower.attach()
        if follower.optimizer_tensors is None:
            return
        self._follower = follower
        flat = [tensor for tensor, _ in stepped_tensors(self._engine)]
        if flat and self._processes == 1 and not self._scaled:
            guard = Guard(recorder, _GRADIENT)
            watch = gradients_of(self._engine.module.named_parameters(), flat[0], guard)
            if watch is not None:
                steps.watch_gradients(watch)

    def begin_window(self) -> None:
        """A backward comes next."""
        self._record.begin_window(self._role, probed=False, followed=is_compared_whole(self._cycle()))

    def elsewhere(self) -> None:
        """Record steps that DeepSpeed made since the last look without a call of the training loop."""
        while self._steps < self._engine.global_steps:
            self._steps += 1
            self._record.updated(self._role, applied=True, rate=float(self._engine.get_lr()[0]), by_loop=False)

    # A call of the training loop that may step

    def _begin(self, call: Call) -> None:
        self._rate, self._tick, self._skipped = 0.0, None, 0
        self._begun = self._stepped = False
        self.elsewhere()
        self._rate, self._skipped = float(self._engine.get_lr()[0]), self._engine.skipped_steps
        self._tick = getattr(self._engine.lr_scheduler, "last_epoch", None)

    def _engine_steps(self, call: Call) -> None:
        # runtime/engine.py 0.19.6: `step` makes an update where this is true, else it only counts the micro-batch.
        self._begun = bool(self._engine.is_gradient_accumulation_boundary())
        if self._follower is not None and self._begun:
            update, cycle, steps = self._record.updates(self._role), self._cycle(), self._record.steps[self._role]
            steps.see_frozen(self._model.frozen)
            whole = is_compared_whole(cycle)
            if whole and cycle != self._kept_seen:
                self._kept_seen = cycle
                steps.see_kept(update, cycle)
            self._follower.begin(update, whole=whole)

    def _engine_stepped(self, call: Call) -> None:
        follower, cycle = self._follower, self._cycle()
        if follower is None or not self._begun:
            return
        if self._engine.global_steps == self._steps or not self._stepped:
            follower.not_made()
            return
        update = self._record.updates(self._role)
        follower.made(update, self._rate, replayed=is_compared(cycle), probed=is_probed(cycle))

    def _optimizer_stepped(self, call: Call) -> None:
        self._stepped = True

    def _leave(self, call: Call) -> None:
        if self._engine.global_steps != self._steps:
            self._model.left()

    def _updated(self, call: Call) -> None:
        if self._engine.global_steps == self._steps:
            return
        self._steps = self._engine.global_steps
        scaler = self._engine.skipped_steps != self._skipped
        self._record.updated(
            self._role,
            applied=self._stepped and not scaler,
            rate=self._rate,
            tick=self._tick,
            reason="gradient scaler" if scaler else "",
        )


def _replicas(engine: Any) -> list[Replicated]:
    """What every rank should hold alike.

    A critic has numbers that normalise values, which nothing fills where nothing is to be normalised (models/model.py 0.11.2:258, 310).
    """
    unused = () if getattr(engine.module, "normalize_reward", True) else ("mean", "std")
    return [
        replace(group, named=[of for of in group.named if of[0] not in unused]) if group.kind == "buffers" else group
        for group in zero_replicas(engine)
    ]
