"""What the controller of a verl run sees: calls to its trainers, weight syncs, the end; its rollouts and rewards see their own hooks.

One `VerlController` follows one trainer object (`PPOTrainer` of V1 or `RayPPOTrainer`, verl 0.9). It plans the run from the live
configuration when the checkpoint has been loaded, judges at each weight sync, when all trainers have returned from their
calls and their records are complete, and reports when `fit` ends.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.hooks import Call, Hooks
from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.observe.processes import run_of_ray
from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.variables import AS_RELEASE, judged_as
from rlstep_hooks.session.controller_record import ControllerRecord
from rlstep_hooks.show.scalars import scalars
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.verl.observe.deployment import deployment_of
from rlstep_hooks.systems.verl.observe.process import folder, versions
from rlstep_hooks.systems.verl.observe.reward_hooks import RewardHooks
from rlstep_hooks.systems.verl.observe.rollout_hooks import FollowedRollouts, RolloutHooks
from rlstep_hooks.systems.verl.observe.start import facts_of, loader_facts, plan_of, updates_before
from rlstep_hooks.systems.vllm_engine.records import EngineRecords

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import PhaseName
    from rlstep_hooks.session.recorder import Recorder

_CALLS: tuple[tuple[str, str, PhaseName], ...] = (
    ("actor_rollout_wg", "compute_log_prob", "refresh"),
    ("ref_policy_wg", "compute_ref_log_prob", "reference"),
    ("critic_wg", "infer_batch", "values"),
    ("critic_wg", "train_mini_batch", "critic_updates"),
    ("actor_rollout_wg", "update_actor", "policy_updates"),
)
"""Worker group of the trainer, the method that calls all its workers, and what they do then. Verified in 0.9.1, both trainers.

These are counted and not the trainer's own methods around them: a method may call its workers twice, or not at all, and each
call that was made has its place in the trainers' records. (In bypass mode no old log-probs are computed.)"""

_ORDER = ("order",)

_RETURNING = ("_compute_old_log_prob", "_compute_values", "_update_critic", "_update_actor")
"""Methods of the trainer that return when all workers have done their part of a rollout (V1 trainer_base.py:1634, 1721, 1804,
1827; V0 ray_trainer.py:1290, 1252, 1378, 1327; verl 0.9.1). Calls to the critic themselves do not wait."""


class VerlController:
    """Follows one verl trainer from its start to the report.

    Args:
        trainer: It.
        own_fit: Whether it has a loop of its own.
    """

    def __init__(self, trainer: Any, *, own_fit: bool) -> None:
        self.report: Report | None = None
        self.stopped_for: Finding | None = None
        """The error for which the audit ended training, where it did."""
        self._trainer = trainer
        self._v1 = any(kind.__module__.startswith("verl.trainer.ppo.v1") for kind in type(trainer).__mro__)
        self._patches = Patches()
        self._followed = False
        self._record = ControllerRecord(folder(), run_of_ray(), index.deviations_of)
        self.schedule, reason = self._plan(own_fit)
        updates = updates_before(self.schedule, self._rollouts_before())
        self.recorder = self._begin(updates, own_fit=own_fit)
        """The recorder of the run."""
        self._hooks = Hooks(self.recorder, self._patches)
        self._engines = EngineRecords(folder(), run_of_ray(), self.recorder)
        session = self._record.session
        session.take_off(self._patches.restore)
        with session.beginning():
            if not self._record.cannot_follow(reason) and self.schedule is not None:
                self._rollouts = self._followed_rollouts(self.schedule, resumed=updates > 0, own_fit=own_fit)
                self._attach()

    # What is another thing where generation and training run apart from each other (`fully_async`).

    def _plan(self, own_fit: bool) -> tuple[Schedule | None, str]:
        """The plan, and why the run cannot be followed; empty where it can."""
        return plan_of(self._trainer, rows=len(self._trainer.train_dataset), own_fit=own_fit, v1=self._v1)

    def _rollouts_before(self) -> int:
        """Rollouts that a resumed run has behind it."""
        return int(self._trainer.global_steps)

    def _loader_facts(self) -> dict[str, Any]:
        """Where the loader goes on."""
        return loader_facts(self._trainer, self.schedule)

    def _followed_rollouts(self, schedule: Schedule, *, resumed: bool, own_fit: bool) -> FollowedRollouts:
        """What follows the rollouts."""
        return RolloutHooks(self._trainer, schedule, self.recorder, resumed=resumed, own_fit=own_fit, v1=self._v1)

    def _attach_syncs(self) -> None:
        """Put hooks on the syncs of weights."""
        # Verified in 0.9.1: the only way in which weights reach the rollout replicas (checkpoint_engine/base.py:510).
        trainer = self._trainer
        if self._has_separate_engines():
            # Verified in 0.9.1: made once the trainer is set up, and first used here (trainer_separate_async.py:175, 240).
            self._hooks.wrap(trainer, "on_init_end", before=self._first_sync, topics=_ORDER)
            self._hooks.wrap(trainer.checkpoint_manager, "update_weights", after=self._synced_within, topics=_ORDER)
        else:
            self._patches.wrap(trainer.checkpoint_manager, "update_weights", self._around_sync)

    def _begin(self, updates: int, *, own_fit: bool) -> Recorder:
        rollouts, trouble = self._rollouts_before(), ""
        facts = facts_of(self._trainer, self.schedule, rollouts=rollouts, updates=updates, own_fit=own_fit)
        facts |= index.link_facts("verl", deployment_of(self._trainer.config))
        try:
            facts |= self._loader_facts()
        except Exception as error:  # noqa: BLE001 - a loader that is not as it was read must not keep the audit from beginning
            trouble = describe(error)
        recorder = self._record.begin(self.schedule, updates=updates, facts=facts, versions=versions())
        if release_named := judged_as("verl"):
            recorder.cannot("release", f"judged by the formulas of verl {release_named}, as {AS_RELEASE} says")
        if trouble:
            recorder.cannot("checkpoints", f"a hook failed: {trouble}")
        return recorder

    # Hooks on the one trainer. Each gives an event once the wrapped call has returned, when all workers have done their part.

    def _attach(self) -> None:
        self._followed = True
        trainer, wrap = self._trainer, self._hooks.wrap
        for group, method, name in _CALLS:
            workers = getattr(trainer, group, None)
            if hasattr(workers, method):
                wrap(workers, method, after=partial(self._called, name), topics=_ORDER)
        for method in _RETURNING:
            wrap(trainer, method, after=lambda _: self._all_returned(), topics=_ORDER)
        wrap(trainer, "_compute_ref_log_prob", around=self._reference, topics=_ORDER)
        self._attach_syncs()
        workers = trainer.checkpoint_manager.actor_wg
        wrap(workers, "update_weights", after=lambda _: self._record.called.append("sync"), topics=_ORDER)
        self._rollouts.place(self._hooks)
        RewardHooks(trainer, self._rollouts, self.recorder).place(self._hooks, v1=self._v1)

    def _has_separate_engines(self) -> bool:
        """Whether engines in processes of their own generate, and those within the trainers only where these have nothing to do."""
        return self._v1 and self._trainer.config.trainer.v1.trainer_mode == "separate_async"

    def _called(self, name: PhaseName, call: Call) -> None:
        self._record.called.append(name)

    def _first_sync(self, call: Call) -> None:
        self._patches.wrap(self._trainer.standalone_checkpoint_manager, "update_weights", self._around_sync)

    def _synced_within(self, call: Call) -> None:
        """A sync to the engines within the trainers. It is none of the plan, but samples may carry its label."""
        self._record.all_returned("evaluation")

    def _all_returned(self) -> None:
        """All workers have done what they were called for. Of a rollout in parts nothing is recorded before its last part is there."""
        if self._rollouts.incomplete:
            return
        self._record.all_returned("evaluation" if self._rollouts.validating else "training")

    def _reference(self, call: Call) -> Iterator[None]:
        # The reference of an actor with LoRA is the actor itself without its adapter, by the call that computes old log-probs.
        before = len(self._record.called)
        yield
        called = self._record.called
        called[before:] = ["reference" if name == "refresh" else name for name in called[before:]]
        self._all_returned()

    def _synced(self) -> Finding | None:
        """Weights were synced: judge all that came before.

        Returns:
            The error for which "stop" and "raise" end training.
        """
        error = self._judge()
        self._record.session.raise_if_asked()
        return error

    @contained("order")
    def _judge(self) -> Finding | None:
        """Judge what all workers have done, and what engines tell."""
        self._all_returned()
        self._collect()
        return self._record.take_error()

    @contained("delivery")
    def _collect(self) -> None:
        """Read what engines tell."""
        self._engines.collect()

    def _around_sync(self, wrapped: Any, manager: Any, args: Any, kwargs: Any) -> Any:
        # No hook, which would contain this too: where it was asked for, an error of the run ends training here or is raised.
        result = wrapped(*args, **kwargs)
        error, trainer = self._synced(), self._trainer
        if trainer.global_steps < trainer.total_training_steps and self._record.session.stop_if_asked():
            self.stopped_for = error
            # Both loops look at this number before each rollout; V0 makes one more (ray_trainer.py:1507).
            trainer.total_training_steps = trainer.global_steps
        return result

    def scalars(self) -> dict[str, float]:
        """Numbers for the tracker, of the judgement so far; none where the run is not followed."""
        return (self._scalars() if self._followed else None) or {}

    @contained("recording")
    def _scalars(self) -> dict[str, float]:
        """The numbers of the judgement so far."""
        return scalars(self.recorder.judge.summary())

    def end(self, error: BaseException | None = None) -> None:
        """Training returned, or raised `error`: write the last lines and report."""
        self._collect()
        if self._followed and error is None and self.stopped_for is None:
            self._rollouts.ended()
        self._report(error)
        self._patches.restore()

    @contained("recording")
    def _report(self, error: BaseException | None) -> None:
        """Write the last lines, and report."""
        self.report = self._record.end(error)
