"""The optimizer steps of verl's engines: which weights are looked at around them, the norm of gradients, and who asked for them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.gathered_gradients import GatheredGradientWatch
from rlstep_hooks.observe.guard import Guard, contained
from rlstep_hooks.observe.hooks import Hooks
from rlstep_hooks.observe.norms import clipped_with, norm_of_gradients
from rlstep_hooks.observe.optimizer_tensors import stepped_by
from rlstep_hooks.observe.reduction import ReductionWatch
from rlstep_hooks.observe.replicas import ReplicaWatch
from rlstep_hooks.observe.shards import local_shard, local_shards, plain_name
from rlstep_hooks.record.events import NOT_FINITE
from rlstep_hooks.systems.verl.observe import settings
from rlstep_hooks.systems.verl.observe.engines import role_of
from rlstep_hooks.systems.verl.observe.ranks import USUAL_PASSES, ranks_of, reduction_of, replicas_of

if TYPE_CHECKING:
    from rlstep_hooks.observe.hooks import Call
    from rlstep_hooks.observe.settings import SettingsWatch
    from rlstep_hooks.observe.steps import StepFollower
    from rlstep_hooks.observe.trainer_record import TrainerRecord
    from rlstep_hooks.record.values import Role
    from rlstep_hooks.systems.verl.observe.loss_meter import LossMeter

_SECTIONS: dict[Role, str] = {"policy": "actor_rollout_ref.actor", "critic": "critic"}
"""The section of verl's configuration of each role."""

_OF_FSDP: dict[Role, str] = {"policy": "fsdp_config", "critic": "fsdp"}
"""What is configured of FSDP, in that section."""

_ORDER, _VALUES, _OPTIMIZER = ("order",), ("log_ratio", "weights"), ("optimizer",)
"""What is not observed any more where a hook fails."""


class EngineSteps:
    """Follows the steps of the engines of one process.

    Args:
        record: Takes what is seen.
        losses: Knows in which rollouts steps are compared.
    """

    def __init__(self, record: TrainerRecord, losses: LossMeter) -> None:
        self._record = record
        self.recorder = record.writer
        """Where events go."""
        self._losses = losses
        self._hooks = Hooks(record.writer)
        self._roles: dict[int, Role] = {}
        """The role of an optimizer, by its id."""
        self._engines: dict[Role, Any] = {}
        self._settings: dict[Role, tuple[SettingsWatch, ...]] = {}
        self._limits: dict[Role, float] = {}
        """Limits of the norm of the gradients."""
        self._kept_in: dict[Role, int] = {}
        """The latest rollout in which it was looked at what training leaves as it is."""
        self._asked = False
        """Whether verl is about to step its optimizer, or to leave the step out."""
        self._stepped = False

    def follow(self, engine: Any) -> bool:
        """Look at the steps of an engine's optimizer from now on.

        Returns:
            Whether it has one that was not followed before.
        """
        optimizer, role = engine.optimizer, role_of(engine)
        if optimizer is None or id(optimizer) in self._roles:
            return False
        self._roles[id(optimizer)], self._engines[role] = role, engine
        # torch's own hooks: gradients are clipped, and the step comes next; and an optimizer really stepped.
        self._hooks.steps(optimizer, before=self._before, after=self._after, topics=_VALUES)
        self._hooks.steps(optimizer, before=self._see_norm, topics=_OPTIMIZER)
        self._hooks.steps(optimizer, after=self._elsewhere, topics=_ORDER)
        steps, shards = self._record.steps[role], list(local_shards(stepped_by(optimizer, engine.module.parameters())))
        steps.watch_weights(shards)
        steps.watch_graded(("", shard) for shard in shards)
        steps.watch_steps(optimizer)
        steps.watch_moments(optimizer)
        self._read_limit(role, engine)
        self._settings[role] = (
            settings.of_optimizer(engine, f"{_SECTIONS[role]}.optim"),
            settings.of_precision(engine, f"{_SECTIONS[role]}.{_OF_FSDP[role]}"),
        )
        if not (ranks_of(engine) == 1 and self._follows_passes(engine, steps)):
            names = engine.module.named_parameters()
            steps.watch_whole((plain_name(name), local_shard(parameter)) for name, parameter in names)
        if ranks_of(engine) > 1:
            self._follow_reduction(engine, steps)
            self._follow_replicas(engine, steps)
        return True

    @contained("optimizer")
    def _read_limit(self, role: Role, engine: Any) -> None:
        """Read the configured limit of the norm of the gradients."""
        self._limits[role] = settings.clip_grad(engine)

    @contained("gradient")
    def _follows_passes(self, engine: Any, steps: StepFollower) -> bool:
        """Follow gradients from each backward pass on, where one process gives all that is added up.

        Returns:
            Whether they can be followed; else they are from the last pass on.
        """
        found = reduction_of(engine)
        if found.hidden or found.approximate or getattr(engine, "scaler", None) is not None:
            return False
        parameters = list(engine.module.named_parameters())
        watch = GatheredGradientWatch(parameters, found.places, Guard(self.recorder, ("gradient",)))
        steps.watch_gradients(watch)
        steps.watch_model(local_shard(parameter) for _, parameter in parameters)
        return True

    @contained("reduction")
    def _follow_reduction(self, engine: Any, steps: StepFollower) -> None:
        """Read what this rank gives to gradients and gets of them."""
        found = reduction_of(engine)
        if found.hidden:
            self.recorder.cannot("reduction", found.hidden)
            return
        steps.watch_reduction(
            ReductionWatch(
                found.places,
                Guard(self.recorder, ("reduction",)),
                passes=USUAL_PASSES,
                role=steps.role,
                reduced_in=found.reduced_in,
                approximate=found.approximate,
                now=found.now,
            )
        )
        if getattr(engine, "scaler", None) is not None:
            steps.gradient_scale = None

    @contained("replicas")
    def _follow_replicas(self, engine: Any, steps: StepFollower) -> None:
        """Read what this rank holds as all others do."""
        steps.watch_replicas(ReplicaWatch(replicas_of(engine), role=steps.role), 0)

    def asked(self, engine: Any) -> None:
        """verl is about to clip gradients, which are reduced by now, and to step the optimizer of an engine or leave the step out."""
        self._stepped, self._asked = False, True
        self._record.steps[role_of(engine)].gradients_reduced()

    def gradients_made(self, engine: Any) -> None:
        """The forward and backward passes of an update are done."""
        if self._losses.looks_at_all and getattr(engine, "scaler", None) is None:
            self._record.steps[role_of(engine)].gradients_made()

    def answered(self) -> None:
        """verl is done with an optimizer step, made or left out."""
        self._asked = False

    def updated(self, engine: Any, norm: Any) -> None:
        """Record the update that verl has made or left out.

        Args:
            engine: The engine whose optimizer steps.
            norm: The norm of the gradients, as verl's engine gives it.
        """
        finite = not isinstance(norm, float) or math.isfinite(norm)
        scaler = getattr(engine, "scaler", None) is not None
        self._record.updated(
            role_of(engine),
            applied=self._stepped,
            rate=float(engine.optimizer.param_groups[0]["lr"]),
            tick=getattr(engine.lr_scheduler, "last_epoch", None),
            reason="gradient scaler" if scaler else "" if finite else NOT_FINITE,
        )

    # Steps of an optimizer

    def _before(self, call: Call) -> None:
        role = self._roles[id(call.owner)]
        replayed, whole = self._losses.looks, self._losses.looks_at_all
        if whole:
            self._see_kept(role)
        self._record.before_step(role, replayed=replayed, whole=whole)

    def _see_kept(self, role: Role) -> None:
        """Look at what training leaves as it is, once in a cycle.

        What it is at first is read at the first update: before, a checkpoint may be loaded, and a model may be on another device.
        """
        steps, cycle = self._record.steps[role], self._losses.rollout
        if role not in self._kept_in:
            steps.watch_kept(self._engines[role].module)
        if self._kept_in.get(role) != cycle:
            self._kept_in[role] = cycle
            steps.see_kept(self._record.updates(role), cycle)

    def _see_norm(self, call: Call) -> None:
        role = self._roles[id(call.owner)]
        for watched in self._settings[role]:
            watched.tell(self.recorder)
        limit = self._limits[role]
        if limit > 0 and self._losses.looks_at_all:
            # verl clips the whole module, of which an optimizer may hold a part (transformer_impl.py 0.9.1:805).
            clipped = clipped_with(self._engines[role].module.parameters(), call.owner)
            self._record.see_norm(role, norm_of_gradients(clipped), limit)

    def _after(self, call: Call) -> None:
        self._stepped = True
        role, rate = self._roles[id(call.owner)], call.owner.param_groups[0]["lr"]
        self._record.after_step(role, rate, whole=self._losses.looks_at_all)

    def _elsewhere(self, call: Call) -> None:
        if not self._asked:  # a step that verl's engine did not ask for
            rate = float(call.owner.param_groups[0]["lr"])
            self._record.updated(self._roles[id(call.owner)], applied=True, by_loop=False, rate=rate)
