"""One optimizer, followed from the beginning of each window to its step: what all observers know of updates, as `UpdateValues`.

An observer chooses once what is looked at, then says when a window begins, when the optimizer is about to step, and when it has. All
numbers stay on the device until `work_up`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.bits import SumsOfMoment
from rlstep_hooks.observe.graded import GradedByHooks, GradedTensors
from rlstep_hooks.observe.gradient_snapshot import GradientSnapshot
from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.kept_tensors import KeptTensors
from rlstep_hooks.observe.left_over import LeftOver
from rlstep_hooks.observe.numbers import Columns
from rlstep_hooks.observe.replay_turns import ReplayTurns
from rlstep_hooks.observe.weight_probe import COLUMNS, WeightProbe
from rlstep_hooks.observe.weight_sums import TensorSums, moments_of, weights_of
from rlstep_hooks.record import cadence
from rlstep_hooks.record.events import UpdateValues

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from torch import Tensor

    from rlstep_hooks.observe.gradient_watch import GradientWatch
    from rlstep_hooks.observe.guard import GapRecorder
    from rlstep_hooks.observe.numbers import Meaning, Numbers
    from rlstep_hooks.observe.reduction import ReductionWatch
    from rlstep_hooks.observe.replicas import ReplicaWatch
    from rlstep_hooks.record.events import GradientParts, ReplicaSums
    from rlstep_hooks.record.values import Role

NOTHING_HELD = "no trainable weight is held whole on this process"


class Followers(dict["Role", "StepFollower"]):
    """One for each role, in the order in which they are first asked for."""

    def __init__(self, recorder: GapRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __missing__(self, role: Role) -> StepFollower:
        """Begin to follow the optimizer of a role."""
        follower = self[role] = StepFollower(self._recorder, role)
        return follower


class StepFollower:
    """Follows the optimizer of one role. Its own errors cost an observation and nothing else.

    Args:
        recorder: Is told what cannot be looked at.
        role: The role whose optimizer is followed.
    """

    def __init__(self, recorder: GapRecorder, role: Role = "policy") -> None:
        self.role = role
        self.probe: WeightProbe | None = None
        """The probe of the role's weights; None where no weight can be probed."""
        self.in_parts = False
        """Whether several steps make one update, so that `before_part` sees what the optimizer uses."""
        self.gradient_scale: float | None = 1.0
        """What the gradients of the optimizer are divided by besides the clip; None where a gradient scaler decides it."""
        self.part_of_update: Callable[[int], int | None] = lambda update: None
        """The part of each tensor of a large model that is read around an update (`part_read`)."""
        self._recorder = recorder
        self._replay: ReplayTurns | None = None
        self._gradients: GradientWatch | None = None
        self._reduction: ReductionWatch | None = None
        self._replicas: ReplicaWatch | None = None
        self._update = -1
        """The update that is being made in several steps."""
        self._whole = False
        """Whether all weights are compared around the update that is being made."""
        self._looked = True
        """Whether the latest update was looked at, so that what it left is to be compared or forgotten."""
        self._passed_over = False
        """Whether nothing is looked at around the update that is being made."""
        self._snapshot: GradientSnapshot | None = None
        self._graded: GradedTensors | None = None
        self._reached: GradedByHooks | None = None
        self._sums: TensorSums | None = None
        self._large = False
        """Whether sums are taken of one part of each tensor at a time."""
        self._moments: TensorSums | None = None
        self._kept: KeptTensors | None = None
        self._bits = SumsOfMoment()
        self._left_over: LeftOver | None = None
        self._known: dict[str, Any] = {}
        """What the host knows of the update that is being made, as fields of UpdateValues."""
        self._known_of: dict[int, dict[str, Any]] = {}
        """What the host knows of updates that were not worked up yet, by their index."""
        self._norm: tuple[Tensor | None, float] | None = None
        """The norm of the update that is being made, and its limit."""
        self._norms: dict[int, tuple[Tensor, float]] = {}
        """The norm of the gradients, and its limit, of updates that were not worked up yet, by their index."""
        self._weights_guard = Guard(recorder, ("weights",))
        self._gradient_guard = Guard(recorder, ("gradient",))
        self._reduction_guard = Guard(recorder, ("reduction",))
        self._replicas_guard = Guard(recorder, ("replicas",))
        self._replay_guard = Guard(recorder, ("optimizer",))

    # What is looked at

    def watch_weights(
        self, parameters: Iterable[Any], *, apart: Collection[int] = (), nothing: str = NOTHING_HELD
    ) -> None:
        """Read some of these weights around each step.

        Args:
            parameters: The tensors to choose from.
            apart: Identities (`id`) of those on which the policy's log-probs do not depend.
            nothing: Why there is nothing to read, if so.
        """
        probe = WeightProbe(parameters, apart=apart)
        if probe.size:
            self.probe = probe
        else:
            self._recorder.cannot("weights", nothing)

    def watch_steps(self, optimizer: Any) -> None:
        """Replay some steps of this optimizer on weights of all tensors by turns, or say why that cannot be."""
        with self._replay_guard:
            if self.probe is None:
                return
            replay = ReplayTurns(self.probe.turns(), optimizer)
            if replay.uncovered:
                self._recorder.cannot("optimizer", replay.uncovered)
            else:
                self._replay = replay

    def watch_gradients(self, watch: GradientWatch) -> None:
        """Compare some gradients that the optimizer uses with what the backward passes of the window gave."""
        self._gradients = watch

    def watch_reduction(self, watch: ReductionWatch) -> None:
        """Read what this rank gives to the gradients of some updates, and what its optimizer gets of them."""
        self._reduction = watch

    def watch_replicas(self, watch: ReplicaWatch, update: int) -> None:
        """Read what this rank holds that all ranks should hold alike, now and around some updates.

        Args:
            watch: Reads it.
            update: The update that comes next.
        """
        self._replicas = watch
        with self._replicas_guard:
            watch.look(update, "begin")

    def part_read(self, update: int) -> int | None:
        """The part of each weight that is read around an update; None where all is. Shards are read whole: a rank has few of them."""
        large = self._replicas is not None and self._replicas.numbers > cadence.READ_WHOLE
        return self.part_of_update(update) if large else None

    def _part_summed(self, update: int) -> int | None:
        """The part of each weight and moment whose sums are compared after an update; None where all is."""
        return self.part_of_update(update) if self._large else self.part_read(update)

    def watch_graded(self, named: Iterable[tuple[str, Any]]) -> None:
        """Look which of these tensors get gradients."""
        self._graded = GradedTensors(named)

    def watch_reached(self, named: Iterable[tuple[str, Any, int]]) -> None:
        """Look which of these tensors get gradients from the backward passes of some updates. Argument as in `GradedByHooks`."""
        self._reached = GradedByHooks(named)

    def watch_whole(self, named: Iterable[tuple[str, Any]]) -> None:
        """Compare the gradients of these tensors, or of their local parts, between backward passes and steps, and their values between
        updates."""
        tensors = list(named)
        self._snapshot = GradientSnapshot(tensors)
        self._sums = TensorSums(weights_of(tensor for _, tensor in tensors))

    def watch_model(self, parameters: Iterable[Any]) -> None:
        """Compare these tensors, or their local parts, between updates, where nothing else does: they are all on this process, or the
        optimizer steps on others."""
        tensors = list(parameters)
        self._large = sum(tensor.numel() for tensor in tensors) > cadence.READ_WHOLE
        self._sums = TensorSums(weights_of(tensors))

    def watch_moments(self, optimizer: Any) -> None:
        """Compare what this optimizer keeps between updates, where its formula is known: others may write to it at other times."""
        if self._replay is not None:
            self._moments = TensorSums(moments_of(optimizer))

    def watch_kept(self, model: Any) -> None:
        """Compare what training leaves as it is: the frozen weights of a model, and its rotary frequencies."""
        with self._weights_guard:
            self._kept = KeptTensors(model)

    def see_kept(self, update: int, cycle: int) -> None:
        """Look at what training leaves as it is. Arguments as in `KeptTensors.look`."""
        with self._weights_guard, torch.no_grad():
            if self._kept is not None:
                self._kept.look(update, cycle)

    def watch_left_over(self) -> None:
        """Look for gradients that are never cleared, where nobody says when they are."""
        if self.probe is not None:
            self._left_over = LeftOver(self.probe.probed, self._weights_guard)

    @property
    def weights(self) -> Tensor:
        """A copy of the probed weights; empty where none are."""
        return torch.empty(0) if self.probe is None else self.probe.weights()

    def remove(self) -> None:
        """Take all hooks off."""
        for watch in (self._gradients, self._left_over, self._reduction, self._reached):
            if watch is not None:
                watch.remove()

    # Within an update

    def begin_window(self, *, probed: bool = True, followed: bool = False) -> None:
        """Begin to follow an update, whose first backward pass comes next.

        Args:
            probed: Whether gradients that are there already are left over.
            followed: Whether gradients are followed through this window.
        """
        self._known, self._norm = {}, None
        with self._weights_guard:
            if self.probe is not None and probed:
                self.probe.begin_window()
        with self._reduction_guard:
            if self._reduction is not None and followed:
                self._reduction.begin_window()
        with self._gradient_guard:
            if self._reached is not None and followed:
                self._reached.begin()
            if self._gradients is not None and followed:
                self._gradients.begin_window()
                self._known["frozen"] = self._gradients.frozen

    def gradients_made(self) -> None:
        """The backward passes of an update are done, and its gradients are to be compared."""
        if self._snapshot is not None:
            self._snapshot.made()

    def gradients_reduced(self) -> None:
        """The gradients of an update have been reduced over the ranks, and nothing has clipped them yet."""
        with self._reduction_guard:
            if self._reduction is not None:
                self._reduction.reduced()

    def clip_factor(self) -> Tensor | None:
        """Give what `ReductionWatch.clip_factor` gives, once the optimizer is about to step."""
        with self._reduction_guard:
            return None if self._reduction is None else self._reduction.clip_factor()
        return None

    def see_seed(self, seed: Tensor) -> None:
        """What arrived at the loss of a micro-batch, ()."""
        if self._reduction is not None:
            self._reduction.see_seed(seed)

    def see_frozen(self, tensors: int) -> None:
        """Note how many tensors that were trained at first require no gradient at the update that is being made."""
        self._known["frozen"] = tensors

    def see_no_clip(self) -> None:
        """Nothing clips the gradients of the update that is being made."""
        self._known["gradient_limit"] = 0.0

    def see_norm(self, update: int, norm: Tensor | None, limit: float) -> None:
        """The norm of all gradients of an update that is worked up later, and the configured limit."""
        self._norm = norm, limit
        if norm is not None:
            self._norms[update] = norm.detach().float().reshape(1), limit

    def before_parts(self, update: int, *, whole: bool) -> None:
        """Several steps that make one update come next. Arguments as in `before_step`, which is called once they are made."""
        self._update = update
        self._look_before(update, whole=whole)
        with self._weights_guard:
            if self._sums is not None:
                self._sums.before_step(update, self._shared_sums)
            if self._moments is not None:
                self._moments.before_step(update)
        with self._gradient_guard:
            if self._reached is not None:
                self._known |= self._reached.look()

    @property
    def _shared_sums(self) -> SumsOfMoment | None:
        """The sums of this moment, which the watch of replicas reads too; None where there is none."""
        return None if self._replicas is None else self._bits

    def _look_before(self, update: int, *, whole: bool) -> None:
        self._whole = whole
        self._bits.begin()
        with self._replicas_guard:
            if self._replicas is not None and whole:
                # What the update before has left, so that what was written since shows.
                self._replicas.look(update, "before", self._bits, part=self.part_read(update - 1))

    def before_part(self, optimizer: Any) -> None:
        """Look before one of several steps that make one update: it steps the tensors in `param_groups`, whose gradients are
        there."""
        with self._reduction_guard:
            if self._reduction is not None:
                self._reduction.before_step(optimizer)
        with self._gradient_guard:
            if self._gradients is not None:
                self._gradients.before_step(self._update)

    def not_made(self) -> None:
        """No update came of the window that is over."""
        for watch in (self._reduction, self._gradients, self._reached):
            if watch is not None:
                watch.remove()

    def before_step(self, update: int, *, replayed: bool, probed: bool = True, whole: bool = True) -> None:
        """The optimizer is about to step; gradients are final.

        Args:
            update: The update.
            replayed: Whether the step is replayed.
            probed: Whether weights are read around it.
            whole: Whether it is looked at which tensors have a gradient; else it is only if a tensor has its first.
        """
        looks = whole or replayed or probed
        self._passed_over = not looks and not self._looked and self._may_pass_over
        self._looked = looks
        if self._passed_over:
            return
        if self.in_parts:
            self._bits.begin()  # the steps have been made since `before_parts`
        else:
            self._look_before(update, whole=whole)
        with self._weights_guard:
            if self._sums is not None and not self.in_parts:
                self._sums.before_step(update, self._shared_sums)
            if self._moments is not None and not self.in_parts:
                self._moments.before_step(update)
            left_over = None if self._left_over is None else self._left_over.before_step()
            if self.probe is not None and left_over is not None:
                self.probe.found_left_over(left_over)
            if self.probe is not None and probed:
                self.probe.before_step()
        with self._gradient_guard:
            # Where several steps make an update, gradients are there only while each of them is made.
            for watch in (self._snapshot, None if self.in_parts else self._gradients):
                if watch is not None:
                    watch.before_step(update)
            if self._graded is not None:
                self._known |= self._graded.look(whole=whole)
            if self._reached is not None and not self.in_parts:
                self._known |= self._reached.look()
        with self._reduction_guard:
            if self._reduction is not None and not self.in_parts:
                self._reduction.before_step()
                if self._reduction.passes:
                    self._known["gradient_passes"] = self._reduction.passes
        with self._replay_guard:
            if self._replay is not None:
                self._replay.before_step(compared=replayed)

    @property
    def _may_pass_over(self) -> bool:
        """Whether no watch has to be told of every step: as in a run of one process, once each tensor has had a gradient."""
        others = self._reduction or self._reached or self._snapshot or self._left_over or self.in_parts
        return not others and (self._graded is None or self._graded.is_done)

    def after_step(self, update: int, rate: float | Tensor, *, whole: bool = False) -> None:
        """The optimizer has stepped.

        Args:
            update: The update.
            rate: The least learning rate of its groups that are meant to move.
            whole: Whether all that it leaves, weights and gradients, is compared with what the next step begins with.
        """
        if self._passed_over:
            return
        self._bits.begin()
        with self._weights_guard:
            if self._sums is not None and whole:
                self._sums.after_step(self._shared_sums, part=self._part_summed(update))
            if self._moments is not None and whole:
                self._moments.after_step(part=self._part_summed(update))
            if self.probe is not None:
                self.probe.after_step(update, rate)
            if self._known:
                self._known_of[update], self._known = self._known, {}
            if self._left_over is not None and whole:
                self._left_over.begin()
        with self._replicas_guard:
            if self._replicas is not None and self._whole:
                self._replicas.look(update, "after", self._bits, part=self.part_read(update))
        with self._reduction_guard:
            if self._reduction is not None:
                norm, limit = (None, None) if self._norm is None else self._norm
                self._reduction.after_step(update, norm=norm, limit=limit, scale=self.gradient_scale)
        self._bits.begin()
        with self._replay_guard:
            if self._replay is not None:
                self._replay.after_step(update)

    # Numbers

    def add_to(self, numbers: Numbers) -> None:
        """Add the numbers of all updates since the last call."""
        with torch.no_grad():
            for meaning, vector in self._worked_up():
                numbers.add(meaning, vector, self.role)

    def parts_sent(self) -> None:
        """Start fetching what this rank gave, got and held in all updates since the last call."""
        if self._reduction is not None:
            with self._reduction_guard, torch.no_grad():
                self._reduction.send()
        if self._replicas is not None:
            with self._replicas_guard:
                self._replicas.send()

    def parts_arrived(self, now: Callable[[], float], *, wait: bool = False) -> Sequence[GradientParts | ReplicaSums]:
        """What has arrived of the followed reductions and replicas. Arguments as in `ReductionWatch.arrived`."""
        gradients = [] if self._reduction is None else self._reduction.arrived(now, wait=wait)
        return gradients if self._replicas is None else [*gradients, *self._replicas.arrived(now, wait=wait)]

    def _worked_up(self) -> Iterator[tuple[Meaning, Tensor]]:
        norms, self._norms = self._norms, {}
        known, self._known_of = self._known_of, {}
        read = None if self.probe is None else self.probe.work_up()
        if self.probe is not None and read is not None:
            updates, numbers = read
            at_least = {"probed": self.probe.size}
            facts = tuple(at_least | known.get(update, {}) for update in updates)
            yield Columns(UpdateValues, updates, COLUMNS, facts), numbers
            followed = tuple(update for update in updates if update in norms)
            if followed:
                limits = tuple({"gradient_limit": norms[update][1]} for update in followed)
                clipped = Columns(UpdateValues, followed, ("gradient_norm",), limits)
                yield clipped, torch.cat([norms[update][0] for update in followed])
        if self._replay is not None:
            yield from self._replay.work_up()
        if self._snapshot is not None:
            yield from self._snapshot.work_up()
        for field, sums in (("tensors_moved", self._sums), ("moments_moved", self._moments)):
            for update, moved in [] if sums is None else sums.work_up():
                yield Columns(UpdateValues, (update,), (field,)), moved
        if self._kept is not None:
            yield from self._kept.work_up()
        with self._gradient_guard:
            if self._gradients is not None:
                yield from self._gradients.work_up()
