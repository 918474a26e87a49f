"""What a trainer process of a controlled run writes, whatever the framework: micro-batches, updates, syncs, and their numbers.

A framework's observer says what happened; this counts it, keeps what the device computes until it is ready, and writes events in
their order. Nothing is judged here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
import torch

from rlstep_hooks.observe.contained import Contained
from rlstep_hooks.observe.deferred import DeferredValues
from rlstep_hooks.observe.weight_probe import UpdateSource, WeightProbe
from rlstep_hooks.record.events import (
    Measured,
    MicroBatch,
    MicroBatchValues,
    Phase,
    PhaseEnded,
    PhaseName,
    Refresh,
    RolloutValues,
    Update,
    WeightSync,
)
from rlstep_hooks.record.writer import EventWriter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.observe.identity import Recognised, RefreshedSamples
    from rlstep_hooks.record.events import Attached
    from rlstep_hooks.record.ledger import Ledger

Role = Literal["policy", "critic"]

REFRESHES = 2
"""Refreshes whose samples are remembered: those of this rollout, and those before it, to recognise samples trained too late."""


class TrainerRecord:
    """One trainer process: what it did, in the order in which it did it.

    Args:
        ledger: Where to write.
        attached: The first event.
        remembered: Refreshes whose samples are remembered; more where samples wait in a buffer.
    """

    def __init__(self, ledger: Ledger, attached: Attached, *, remembered: int = REFRESHES) -> None:
        self.writer = EventWriter(ledger)
        self.order = Contained(self.writer, ("order",))
        self.values = Contained(self.writer, ("log_ratio", "weights"))
        self.samples = Contained(self.writer, ("samples", "refresh"))
        self.version = 0
        """Policy updates applied in this run."""
        self.refreshes: list[RefreshedSamples] = []
        """The latest ones, newest first."""
        self._remembered = remembered
        self._calls: dict[PhaseName, int] = {}
        self._microbatches = 0
        self._window: dict[Role, int] = {"policy": 0, "critic": 0}
        self._updates: dict[Role, int] = {"policy": 0, "critic": 0}
        self._probes: dict[Role, WeightProbe] = {}
        self._open: MicroBatch | None = None
        self._log_ratios: DeferredValues[int] = DeferredValues()
        self._changes: DeferredValues[UpdateSource] = DeferredValues()
        self._rollout_values: list[RolloutValues] = []
        self._intact: dict[int, bool] = {}
        """Whether old log-probs came unaltered, by micro-batch."""
        self._tokens: dict[int, bool] = {}
        """Whether tokens did."""
        self.writer.emit(attached)

    def begin(self, name: PhaseName) -> int:
        """A call of the controller begins.

        Returns:
            Its number, counting calls of this name from 0.
        """
        number = self._calls.get(name, 0)
        self._calls[name] = number + 1
        self.writer.emit(Phase(at=self.writer.now(), name=name, number=number))
        return number

    def end(self, name: PhaseName) -> None:
        """The latest call of a name is about to return."""
        self.writer.emit(PhaseEnded(at=self.writer.now(), name=name, number=self._calls[name] - 1))

    def calls(self, name: PhaseName) -> int:
        """Calls of this name that have begun."""
        return self._calls.get(name, 0)

    # Old log-probs

    def refreshed(self, samples: RefreshedSamples, positions: int, *, number: int | None = None) -> None:
        """Old log-probs were computed.

        Args:
            samples: The samples that could be identified.
            positions: Token positions covered.
            number: Samples covered, where not all could be identified.
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

    def measured(self, values: RolloutValues) -> None:
        """Numbers of a rollout, by the number of its refresh."""
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
            self._intact[index] = found.old_intact
        if found.tokens_intact is not None:
            self._tokens[index] = found.tokens_intact

    def see_log_probs(self, log_probs: Any, old_log_probs: Any, mask: Any) -> None:
        """The policy loss is about to be computed: both log-probs of the micro-batch, on the device, padded to one length."""
        if self._open is None or self._open.role == "critic":
            return
        with torch.no_grad():
            real = mask.bool()
            distance = (log_probs.detach().float() - old_log_probs.float()).abs()
            distance = torch.where(real, distance, 0.0)
            vector = torch.stack([real.sum().float(), distance.max(), distance.sum()])
        self._log_ratios.add(self._open.index, vector)

    def close_microbatch(self) -> None:
        """The forward is done and its loss known; the backward follows."""
        event, self._open = self._open, None
        if event is not None:
            self._window[event.role] += 1
            self.writer.emit(msgspec.structs.replace(event, at=self.writer.now()))

    def abandon_microbatch(self) -> None:
        """The forward that began led to no backward."""
        self._open = None

    # Updates

    def probe(self, role: Role, parameters: Iterable[Any]) -> None:
        """Look at some of these weights around each optimizer step."""
        self._probes[role] = WeightProbe(parameters)

    def before_step(self, role: Role) -> None:
        """The optimizer is about to step; gradients are final."""
        if role in self._probes:
            self._probes[role].before_step()

    def after_step(self, role: Role, rate: Any) -> None:
        """The optimizer has stepped."""
        if role in self._probes:
            self._probes[role].after_step(self._updates[role], rate)

    def updated(
        self, role: Role, *, applied: bool, rate: float, by_loop: bool = True, tick: int | None = None, reason: str = ""
    ) -> None:
        """An update was made or left out."""
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
        """Weights went to the rollout engine."""
        self.writer.emit(WeightSync(at=self.writer.now(), policy_version=self.version, label=label))

    def send_numbers(self) -> None:
        """Start fetching what the device has: the framework synchronises with it before `write_numbers`."""
        for role, probe in self._probes.items():
            worked = probe.work_up()
            if worked is not None:
                updates, values = worked
                self._changes.add(UpdateSource(updates, probe.size, role), values)
        self._log_ratios.send()
        self._changes.send()

    def write_numbers(self) -> None:
        """Write what has arrived."""
        microbatches = tuple(
            MicroBatchValues(
                index=index,
                tokens=int(tokens),
                # Padding alone has no ratio.
                max_abs_log_ratio=maximum if tokens else None,
                mean_abs_log_ratio=total / tokens if tokens else None,
                old_intact=self._intact.pop(index, None),
                tokens_intact=self._tokens.pop(index, None),
            )
            for index, (tokens, maximum, total) in self._log_ratios.ready()
        )
        updates = [values for source, numbers in self._changes.ready() for values in source.values(numbers)]
        rollouts, self._rollout_values = tuple(self._rollout_values), []
        if microbatches or updates or rollouts:
            self.writer.emit(
                Measured(at=self.writer.now(), rollouts=rollouts, microbatches=microbatches, updates=tuple(updates))
            )
