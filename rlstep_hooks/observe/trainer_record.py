"""The record of one trainer process of a controlled run, for any framework: micro-batches, updates, syncs and their numbers.

A framework's observer calls the methods here as things happen. `TrainerRecord` counts, keeps numbers until the device has them ready,
and writes events in their order. Nothing is judged here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
import torch

from rlstep_hooks.observe.log_ratio import log_ratio, tokens_apart
from rlstep_hooks.observe.numbers import Columns, Numbers, measured
from rlstep_hooks.observe.steps import Followers
from rlstep_hooks.observe.weight_probe import WeightProbe
from rlstep_hooks.record.events import (
    Carried,
    Constant,
    MicroBatch,
    MicroBatchValues,
    Phase,
    PhaseEnded,
    PhaseName,
    Received,
    Refresh,
    RolloutValues,
    Update,
    WeightSync,
)
from rlstep_hooks.record.writer import EventWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rlstep_hooks.observe.identity import Recognised, RefreshedSamples
    from rlstep_hooks.observe.losses import LossNumbers
    from rlstep_hooks.record.events import Attached
    from rlstep_hooks.record.ledger import Ledger
    from rlstep_hooks.record.values import Role

REFRESHES = 2
"""Refreshes whose samples are remembered: this rollout's and the previous one's, to recognise samples trained too late."""


class TrainerRecord:
    """Records what one trainer process does, in its order.

    Args:
        ledger: The ledger to write to.
        attached: The first event.
        remembered: Refreshes whose samples are remembered; more than `REFRESHES` if samples wait in a buffer.
    """

    def __init__(self, ledger: Ledger, attached: Attached, *, remembered: int = REFRESHES) -> None:
        self.writer = EventWriter(ledger)
        self.version = 0
        """Policy updates applied in this run."""
        self.refreshes: list[RefreshedSamples] = []
        """The latest refreshes, newest first."""
        self._remembered = remembered
        self._calls: dict[PhaseName, int] = {}
        self._microbatches = 0
        self._window: dict[Role, int] = {"policy": 0, "critic": 0}
        self._updates: dict[Role, int] = {"policy": 0, "critic": 0}
        self._numbers = Numbers()
        self.steps = Followers(self.writer)
        """What is looked at around the steps of each optimizer."""
        self._reference: tuple[WeightProbe, torch.Tensor] | None = None
        """The reference model's probe, with its weights at their first use."""
        self._open: MicroBatch | None = None
        self._rollout_values: list[RolloutValues] = []
        self.writer.emit(attached)

    def begin(self, name: PhaseName) -> int:
        """A call of the controller begins.

        Returns:
            The call's number, counting calls of this name from 0.
        """
        number = self._calls.get(name, 0)
        self._calls[name] = number + 1
        self.writer.emit(Phase(at=self.writer.now(), name=name, number=number))
        return number

    def end(self, name: PhaseName) -> None:
        """The latest call of this name is about to return."""
        self.writer.emit(PhaseEnded(at=self.writer.now(), name=name, number=self._calls[name] - 1))

    def calls(self, name: PhaseName) -> int:
        """Number of calls of this name that have begun."""
        return self._calls.get(name, 0)

    # Old log-probs

    def refreshed(self, samples: RefreshedSamples, positions: int, *, number: int | None = None) -> None:
        """Old log-probs were computed.

        Args:
            samples: The identified samples.
            positions: Token positions covered.
            number: Samples covered, if not all were identified.
        """
        self.writer.emit(
            Refresh(
                at=self.writer.now(),
                rollout=samples.number,
                samples=samples.size if number is None else number,
                positions=positions,
                policy_version=samples.version,
            )
        )
        self.refreshes = [samples, *self.refreshes][: self._remembered]

    def received(self, samples: RefreshedSamples) -> None:
        """The samples of the latest refresh were redistributed; this trainer trains on these."""
        self.writer.emit(Received(at=self.writer.now(), samples=samples.size))
        self.refreshes[0] = samples

    def carried(self, came: Carried) -> None:
        """Samples came from the controller."""
        self.writer.emit(msgspec.structs.replace(came, at=self.writer.now()))

    def measured(self, values: RolloutValues) -> None:
        """Add numbers of a rollout, under the number of its refresh."""
        self._rollout_values.append(values)

    # Micro-batches

    def open_microbatch(
        self, samples: int, role: Role, found: Recognised, *, old_source: Literal["recompute", "engine"] = "recompute"
    ) -> None:
        """A forward of training begins."""
        index = self._microbatches
        self._microbatches += 1
        if role == "critic":
            self._open = MicroBatch(index=index, samples=samples, role="critic", policy_version=self.version)
            return
        self._open = MicroBatch(
            index=index,
            samples=samples,
            policy_version=self.version,
            trained=found.trained,
            unknown=found.unknown,
            old_version=found.old_version,
            old_source=old_source,
        )
        if found.old_intact is not None:
            self._numbers.know(index, old_intact=found.old_intact)
        if found.tokens_intact is not None:
            self._numbers.know(index, tokens_intact=found.tokens_intact)

    def see_log_probs(self, log_probs: Any, old_log_probs: Any, mask: Any) -> None:
        """The policy loss is about to be computed from these log-probs, which are on the device and padded to one length."""
        if self._open is None or self._open.role == "critic":
            return
        with torch.no_grad():
            self._numbers.see(self._open.index, log_ratio(log_probs, old_log_probs, mask))
            if self._open.old_version == self._open.policy_version:
                self._numbers.see(self._open.index, tokens_apart(log_probs, old_log_probs, mask))

    def see_values(self, mask: Any, **known: Any) -> None:
        """The critic's loss, which is compared, is about to be computed of the tokens of this mask.

        Args:
            mask: (B, T).
            known: Further fields of the micro-batch.
        """
        if self._open is not None:
            self._numbers.see(self._open.index, {"tokens": mask.bool().sum()}, "critic")
            self._numbers.know(self._open.index, **known)

    def see_constants(self, **given: Any) -> None:
        """The tensors that the loss is about to treat as constant: `old_logprobs`, `advantages`, `targets`."""
        if self._open is not None:
            names = tuple(name for name in get_args(Constant) if given.get(name) is not None)
            flowing = tuple(name for name in names if given[name].requires_grad)
            self._open = msgspec.structs.replace(self._open, constants=names, with_gradient=flowing)

    def see_loss_scale(self, index: int, scale: Any) -> None:
        """The factor of a micro-batch's loss in the backward, divided by the documented factor; a number on the device."""
        self._numbers.see_later(index, {"backward_ratio": scale})

    def see_mask(self, *, intact: bool) -> None:
        """The mask of the open micro-batch was compared with that of the refresh."""
        if self._open is not None:
            self._numbers.know(self._open.index, mask_intact=intact)

    def see_advantages(self, *, intact: bool) -> None:
        """The advantages of the open micro-batch were compared with those that came to this process."""
        if self._open is not None:
            self._numbers.know(self._open.index, advantages_intact=intact)

    def see_weights(self, *, intact: bool) -> None:
        """The importance weights of the open micro-batch were compared with those that came to this process."""
        if self._open is not None:
            self._numbers.know(self._open.index, weights_intact=intact)

    def see_reference_log_probs(self, *, intact: bool) -> None:
        """The reference's log-probs in the open micro-batch were compared with those that the reference computed."""
        if self._open is not None:
            self._numbers.know(self._open.index, reference_intact=intact)

    def see_alone(self, fields: Mapping[str, Any]) -> None:
        """Rows of the open micro-batch were scored again alone: fields of `MicroBatchValues`."""
        if self._open is not None and fields:
            self._numbers.know(self._open.index, **fields)

    def see_clipped(self, index: int, fraction: Any) -> None:
        """The fraction of a micro-batch's tokens that the clip acts on; a number on the device."""
        self._numbers.see_later(index, {"clipped": fraction})

    @property
    def open_index(self) -> int | None:
        """Index of the micro-batch whose forward is running."""
        return None if self._open is None else self._open.index

    def close_microbatch(self) -> None:
        """The forward is done and its loss is known; the backward follows."""
        event, self._open = self._open, None
        if event is not None:
            self._window[event.role] += 1
            self.writer.emit(msgspec.structs.replace(event, at=self.writer.now()))

    def abandon_microbatch(self) -> None:
        """The forward that began is not followed by a backward."""
        self._open = None

    # Updates

    def updates(self, role: Role) -> int:
        """Updates of a role so far, made or skipped: the index of the next."""
        return self._updates[role]

    def begin_window(self, role: Role, *, probed: bool = True, followed: bool = False) -> None:
        """A backward pass comes next; if it is the first of an update of this role, the update begins (see `StepFollower`)."""
        if not self._window[role]:
            self.steps[role].begin_window(probed=probed, followed=followed)

    def see_norm(self, role: Role, norm: Any, limit: float) -> None:
        """The norm of all gradients of the update that is being made, and the configured limit."""
        self.steps[role].see_norm(self._updates[role], norm, limit)

    def see_reference(self, refresh: int, parameters: Iterable[Any]) -> None:
        """The reference model was used for the rollout with this refresh number."""
        if self._reference is None:
            probe = WeightProbe(parameters, frozen=True)
            self._reference = probe, probe.weights()
            return
        probe, first = self._reference
        weights = probe.weights()
        if weights.device == first.device:
            changed = Columns(RolloutValues, (refresh,), ("reference_changed",))
            self._numbers.add(changed, (weights != first).count_nonzero().float().reshape(1))

    def before_step(self, role: Role, *, replayed: bool, whole: bool = True) -> None:
        """The optimizer is about to step; gradients are final. Some steps are replayed. What all ranks should hold alike, and which
        tensors have a gradient, is looked at if `whole`."""
        self.steps[role].before_step(self._updates[role], replayed=replayed, whole=whole)

    def after_step(self, role: Role, rate: Any, *, whole: bool = False) -> None:
        """The optimizer has stepped. All weights that it leaves are compared with those that the next step begins with, if `whole`."""
        self.steps[role].after_step(self._updates[role], rate, whole=whole)

    def updated(
        self, role: Role, *, applied: bool, rate: float, by_loop: bool = True, tick: int | None = None, reason: str = ""
    ) -> None:
        """An update was made or skipped."""
        self.version += applied and role == "policy"
        window, self._window[role] = self._window[role], 0
        self.writer.emit(
            Update(
                at=self.writer.now(),
                index=self._updates[role],
                role=role,
                applied=applied,
                by_loop=by_loop,
                version=self.version,
                microbatches=window,
                learning_rate=rate,
                lr_tick=tick,
                skip_reason="" if applied else reason,
            )
        )
        self._updates[role] += 1

    # Numbers, and weight syncs

    def synced(self, label: int | None) -> None:
        """Weights were brought to the rollout engine."""
        self.writer.emit(WeightSync(at=self.writer.now(), policy_version=self.version, label=label))

    def send_numbers(self) -> None:
        """Start fetching numbers from the device: the framework synchronises with it before `write_numbers`."""
        for steps in self.steps.values():
            steps.add_to(self._numbers)
            steps.parts_sent()
        self._numbers.send()

    def write_numbers(self, losses: Callable[[], Mapping[int, LossNumbers]] = dict) -> None:
        """Write the numbers that have arrived.

        Args:
            losses: Gives the losses that have arrived, by micro-batch. Sent before the log ratios, they are asked for after them.
        """
        found = self._numbers.arrived()
        compared = {index: _given(loss) for index, loss in losses().items()}
        microbatches, rollouts = found[MicroBatchValues], found[RolloutValues]
        for (role, index), fields in microbatches.items():
            microbatches[role, index] = compared.get(index, {}) | fields
        known: dict[tuple[Role, int], dict[str, Any]] = {
            ("policy", values.index): _given(values) for values in self._rollout_values
        }
        for key, fields in rollouts.items():
            known[key] = known.get(key, {}) | fields
        found[RolloutValues] = known
        self._rollout_values = []
        event = measured(found, self.writer.now)
        if event is not None:
            self.writer.emit(event)
        for steps in self.steps.values():
            for parts in steps.parts_arrived(self.writer.now):
                self.writer.emit(parts)


def _given(values: LossNumbers | RolloutValues) -> dict[str, Any]:
    """The fields that were given, but for the index."""
    fields = msgspec.structs.asdict(values)
    return {name: value for name, value in fields.items() if name != "index" and value not in (None, "")}
