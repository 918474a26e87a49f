"""Numbers of a trainer process's updates: weights before and after, replayed steps, gradients and their norm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.observe.contained import Contained
from rlstep_hooks.observe.deferred import DeferredValues, finite
from rlstep_hooks.observe.graded import GradedTensors
from rlstep_hooks.observe.gradient_snapshot import GradientSnapshot
from rlstep_hooks.observe.optimizer_replay import OptimizerReplay, ReplaySource
from rlstep_hooks.observe.weight_probe import UpdateSource, WeightProbe
from rlstep_hooks.observe.weight_sums import WeightSums

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from rlstep_hooks.observe.gradient_watch import GradientSource, GradientWatch
    from rlstep_hooks.record.events import UpdateValues
    from rlstep_hooks.record.values import Role
    from rlstep_hooks.record.writer import EventWriter


class UpdateNumbers:
    """Looks at weights and gradients around each optimizer step, and keeps the numbers until the device has them ready.

    Args:
        writer: Is told what cannot be looked at.
    """

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._gradients_guard = Contained(writer, ("gradient",))
        self._probes: dict[Role, WeightProbe] = {}
        self._graded: dict[Role, GradedTensors] = {}
        self._replays: dict[Role, OptimizerReplay] = {}
        self._snapshots: dict[Role, GradientSnapshot] = {}
        self._sums: dict[Role, WeightSums] = {}
        self._watches: dict[Role, GradientWatch] = {}
        self._changes: DeferredValues[UpdateSource] = DeferredValues()
        self._steps: DeferredValues[tuple[Role, ReplaySource]] = DeferredValues()
        self._moved: DeferredValues[tuple[Role, int]] = DeferredValues()
        self._gradients: DeferredValues[tuple[Role, GradientSource]] = DeferredValues()
        self._frozen: dict[tuple[Role, int], int] = {}
        """Tensors that were trained at first and are no longer, by role and update."""
        self._norms: DeferredValues[tuple[Role, int, float]] = DeferredValues()
        """Norms of gradients by role, update and configured limit."""

    # What is looked at

    def probe(self, role: Role, parameters: Iterable[Any]) -> None:
        """Probe some of these weights around each optimizer step."""
        parameters = list(parameters)
        self._probes[role] = WeightProbe(parameters)
        self._graded[role] = GradedTensors(("", tensor) for tensor in parameters)

    def replay(self, role: Role, optimizer: Any) -> None:
        """Replay some steps of this optimizer on the probed weights, or say why that cannot be."""
        replay = OptimizerReplay(self._probes[role].probed, optimizer)
        if replay.uncovered:
            self._writer.cannot("optimizer", replay.uncovered)
        else:
            self._replays[role] = replay

    def follow(self, role: Role, parameters: Iterable[tuple[str, Any]]) -> None:
        """Compare the gradients of these tensors, or of their local parts, between backward passes and steps, and their values between
        updates."""
        named = list(parameters)
        self._snapshots[role] = GradientSnapshot(named)
        self._sums[role] = WeightSums(tensor for _, tensor in named)

    def follow_gradients(self, role: Role, watch: GradientWatch) -> None:
        """Follow some gradients from the backward passes of an update to its step."""
        self._watches[role] = watch

    def weights(self, role: Role) -> torch.Tensor:
        """The current probed weights of a role."""
        return self._probes[role].weights()

    # Within an update

    def begin_window(self, role: Role) -> None:
        """Gradients have been cleared for the first micro-batch of an update."""
        if role in self._probes:
            self._probes[role].begin_window()

    def begin_backward(self, role: Role) -> None:
        """An update whose gradients are followed begins its first backward pass."""
        if role in self._watches:
            self._watches[role].begin_window()

    def gradients_made(self, role: Role) -> None:
        """The backward passes of an update are done, and its gradients are to be compared."""
        self._snapshots[role].made()

    def see_frozen(self, role: Role, update: int, tensors: int) -> None:
        """So many tensors that were trained at first require no gradient at this update."""
        self._frozen[role, update] = tensors

    def see_norm(self, role: Role, update: int, norm: Any, limit: float) -> None:
        """The norm of all gradients of this update, a number on the device, and the configured limit."""
        self._norms.add((role, update, limit), norm.detach().float().reshape(1))

    def before_step(self, role: Role, update: int, *, replayed: bool) -> None:
        """The optimizer is about to step; gradients are final. Some steps are replayed."""
        if role in self._snapshots:
            self._snapshots[role].before_step(update)
        if role in self._sums:
            self._sums[role].before_step(update)
        if role in self._watches:
            self._watches[role].before_step(update)
        if role in self._replays:
            self._replays[role].before_step(compared=replayed)
        if role in self._probes:
            self._probes[role].before_step()
            self._graded[role].look()

    def after_step(self, role: Role, update: int, rate: Any, *, whole: bool) -> None:
        """The optimizer has stepped. All weights that it leaves are compared with those that the next step begins with, if `whole`."""
        if whole and role in self._sums:
            self._sums[role].after_step()
        if role in self._probes:
            self._probes[role].after_step(update, rate)
        if role in self._replays:
            self._replays[role].after_step(update)

    # Numbers

    def send(self) -> None:
        """Start fetching numbers from the device."""
        for role, probe in self._probes.items():
            worked = probe.work_up()
            if worked is not None:
                updates, values = worked
                self._changes.add(UpdateSource(updates, probe.size, role), values)
        for role, replay in self._replays.items():
            replayed = replay.work_up()
            if replayed is not None:
                self._steps.add((role, replayed[0]), replayed[1])
        for role, snapshot in self._snapshots.items():
            for source, compared in snapshot.work_up():
                self._gradients.add((role, source), compared)
        for role, sums in self._sums.items():
            for update, moved in sums.work_up():
                self._moved.add((role, update), moved)
        with self._gradients_guard:
            for role, watch in self._watches.items():
                for window, numbers in watch.work_up():
                    self._gradients.add((role, window), numbers)
        # Before `_changes`, with which `arrived` joins them: what arrives with an update must be there when it is written.
        self._moved.send()
        self._steps.send()
        self._gradients.send()
        self._norms.send()
        self._changes.send()

    def arrived(self) -> list[UpdateValues]:
        """Numbers of the updates that have arrived, each from its probe, its replay, its gradients and their norm."""
        more: dict[tuple[Role, int], dict[str, Any]] = {}
        for (role, steps), numbers in self._steps.ready():
            for update, fields in steps.values(numbers).items():
                more.setdefault((role, update), {}).update(fields)
        for (role, gradients), numbers in self._gradients.ready():
            for update, fields in gradients.values(numbers).items():
                more.setdefault((role, update), {}).update(fields)
        for (role, update), (moved,) in self._moved.ready():
            more.setdefault((role, update), {}).update(tensors_moved=int(moved))
        for (role, update, limit), (norm,) in self._norms.ready():
            more.setdefault((role, update), {}).update(gradient_norm=finite(norm), gradient_limit=limit)
        return [
            msgspec.structs.replace(
                values,
                ungraded=self._graded[source.role].never,
                frozen=self._frozen.pop((source.role, values.index), None),
                **more.get((source.role, values.index), {}),
            )
            for source, numbers in self._changes.ready()
            for values in source.values(numbers)
        ]
