"""Random legal plans of runs in phases, and what controller and trainers of such a run record when it goes as planned.

The run is written out here as loops over rollouts, passes, mini-batches and micro-batches. It counts versions by what its trainers
do and never asks the timeline, so that each checks the other.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from hypothesis import strategies as st

from rlstep_hooks.judge.controlled.compose import TrainerPhases, TrainerStream
from rlstep_hooks.judge.controlled.run import ControlledRun
from rlstep_hooks.judge.timeline import PhasePosition
from rlstep_hooks.planning.schedule import Schedule
from rlstep_hooks.record.events import (
    AnyEvent,
    Attached,
    EpochEnd,
    FactsRead,
    Generated,
    Measured,
    MicroBatch,
    MicroBatchValues,
    Phase,
    PhaseEnded,
    PhaseName,
    Refresh,
    RolloutValues,
    RunEnded,
    RunStarted,
    SampleRows,
    Update,
    UpdateValues,
    WeightSync,
)
from rlstep_hooks.record.ledger import CONTROLLER, rank_process
from rlstep_hooks.record.wire import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.values import Role

Script = list[tuple[str, AnyEvent]]
"""What the processes of a run record, each event with its process, in the order of time."""

NO_REFRESH = -1


# Plans


def phase_plan(
    *,
    world_size: int = 1,
    samples: int = 8,
    minibatches: tuple[int, ...] = (4, 4),
    microbatch: int | None = 2,
    window: int = 0,
    reuse: int = 1,
    rollouts: int | None = 4,
    frozen: int = 0,
    last: int = 0,
    per_epoch: int | None = None,
    kept: bool = False,
    critic: Schedule | None = None,
    **fields: object,
) -> Schedule:
    """A plan with the totals that its sizes give.

    Args:
        world_size: Trainers.
        samples: Samples that a rollout generates.
        minibatches: Samples behind each update of a pass; not used with `window`.
        microbatch: Samples of a micro-batch over all trainers; None where token counts decide.
        window: Micro-batches behind an update where gradients are carried into the next rollout; 0 where they are not.
        reuse: Passes over a rollout.
        rollouts: Rollouts of the run.
        frozen: Rollouts that do not train the policy.
        last: Samples of the last rollout of each pass of the loader; 0 where it is no smaller.
        per_epoch: Rollouts of a pass of the loader.
        kept: Whether samples of frozen rollouts wait for the first that is not frozen.
        critic: The critic's plan.
        fields: Other fields of `Schedule`.
    """
    if window:
        assert microbatch
        minibatches = ()
        updates = (
            None
            if rollouts is None
            else carried_updates(samples, microbatch, window, reuse, rollouts, frozen, last, per_epoch, kept)
        )
        each_rollout = Fraction(reuse * (samples // microbatch), window)
        cut = samples // microbatch
    else:
        each_rollout = Fraction(reuse * len(minibatches))
        updates = None if rollouts is None else reuse * len(minibatches) * max(rollouts - frozen, 0)
        cut = sum(-(-size // microbatch) for size in minibatches) if microbatch else 0
    values: dict[str, object] = {
        "framework": "a framework",
        "version": "1.0",
        "algorithm": "PPO",
        "loop": "phases",
        "world_size": world_size,
        "prompts_per_rollout": Fraction(samples),
        "samples_per_prompt": 1,
        "samples_per_rollout": samples,
        "samples_of_last_rollout": last,
        "samples_per_microbatch": microbatch,
        "reuse_epochs": reuse,
        "microbatches_per_rollout": cut * reuse if microbatch else None,
        "microbatches_per_update": window or (-(-minibatches[0] // microbatch) if microbatch else None),
        "samples_per_update": window * (microbatch or 0) if window else minibatches[0],
        "updates_per_rollout": each_rollout,
        "minibatches": minibatches,
        "remainder": "carry" if window else "error",
        "samples_added_per_rollout": max(sum(minibatches) - samples, 0),
        "samples_dropped_per_rollout": samples % (microbatch or 1) if window else 0,
        "frozen_rollouts": frozen,
        "frozen_samples_kept": kept,
        "syncs": "first_and_after_updates",
        "rows": None,
        "rows_dropped_per_epoch": None,
        "rows_reshuffled": True,
        "rollouts_per_epoch": per_epoch,
        "microbatches_per_epoch": None,
        "rollouts": rollouts,
        "updates": updates,
        "data_epochs": None,
        "loader_epochs": None,
        "old_logprob_source": "recompute",
        "lags": tuple(range(max(int(each_rollout), 1))),
        "ratio_one_updates": (1,),
        "lr_ticks": None,
        "lr_horizon": None,
        "step_unit": "rollout",
        "step_means": "1 step = 1 rollout",
        "critic": critic,
    }
    return Schedule(**(values | fields))  # type: ignore[arg-type]


def carried_updates(
    samples: int,
    microbatch: int,
    window: int,
    reuse: int,
    rollouts: int,
    frozen: int,
    last: int,
    per_epoch: int | None,
    kept: bool,
) -> int:
    """Updates of a run that carries gradients over: its micro-batches, each pass without what fills none, over the window."""
    sizes = [last if last and per_epoch and (r + 1) % per_epoch == 0 else samples for r in range(rollouts)]
    trained = sizes[frozen:]
    if kept and trained:
        trained[0] += sum(sizes[:frozen])
    return sum(reuse * (size // microbatch) for size in trained) // window


class PhaseCase(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, and what of a run the plan leaves open."""

    schedule: Schedule
    skipped: frozenset[int] = frozenset()
    """Updates of the policy that a gradient scaler leaves out."""
    ages: tuple[int, ...] = ()
    """Rollouts by which the sampler is behind, at each rollout in turn."""

    @property
    def rollouts(self) -> int:
        """Rollouts that the run makes."""
        return self.schedule.rollouts or 3


@st.composite
def minibatches_of(draw: st.DrawFn, total: int, world_size: int) -> tuple[int, ...]:
    """Mini-batches of a role: all of one size, the last one smaller where they do not divide."""
    own = total // world_size
    size = draw(st.integers(max(own // 4, 1), own))
    full, rest = divmod(own, size)
    return (size * world_size,) * full + ((rest * world_size,) if rest else ())


@st.composite
def microbatches_of(draw: st.DrawFn, minibatches: tuple[int, ...], world_size: int) -> int | None:
    """A micro-batch size for these mini-batches, or None for token counts."""
    own = max(minibatches) // world_size
    return draw(st.one_of(st.none(), st.integers(1, own).map(lambda size: size * world_size)))


@st.composite
def phase_cases(
    draw: st.DrawFn, *, dynamic: bool = True, finite: bool = False, critic: bool | None = None
) -> PhaseCase:
    """Every legal combination of sizes that decides the order of events, small enough to enumerate.

    Args:
        draw: Hypothesis's.
        dynamic: Whether token counts may cut mini-batches.
        finite: Whether the length of the run is known.
        critic: Whether a critic is trained; either, if left out.
    """
    world_size = draw(st.integers(1, 3))
    own = draw(st.integers(1, 8))
    carry = draw(st.booleans())
    rollouts = draw(st.integers(1, 5) if carry or finite else st.one_of(st.integers(1, 5), st.none()))
    per_epoch = draw(st.one_of(st.none(), st.integers(1, 3)))
    frozen = draw(st.integers(0, min(2, (rollouts or 3) - 1)))
    source = draw(st.sampled_from(["recompute", "recompute", "at_rollout", "engine", "detach"]))
    syncs = draw(st.sampled_from(["first_and_after_updates", "after_updates", "unseen"]))
    max_age = draw(st.sampled_from([0, 0, 1, 2, None])) if source != "detach" else 0
    fields: dict[str, object] = {
        "world_size": world_size,
        "rollouts": rollouts,
        "per_epoch": per_epoch,
        "frozen": frozen,
        "old_logprob_source": source,
        "syncs": syncs,
        "max_age": max_age,
        "reference_source": draw(st.sampled_from(["none", "at_rollout", "in_loss"])),
        "rows_bound": draw(st.sampled_from(["exact", "exact", "data_dependent"])),
        "epoch_ends_between_rollouts": draw(st.booleans()),
        "lr_clock": "update" if carry else draw(st.sampled_from(["update", "rollout"])),
    }
    if carry:
        each = draw(st.integers(1, own))
        fields |= {
            "samples": own * world_size,
            "microbatch": each * world_size,
            "window": draw(st.integers(1, 4)),
            "reuse": 1 if source == "detach" else draw(st.integers(1, 2)),
            "last": draw(st.integers(0, own)) * world_size if per_epoch else 0,
            "kept": draw(st.booleans()) if frozen and source != "detach" else False,
        }
        trained = own * world_size
    else:
        added = draw(st.integers(0, min(own * world_size - 1, 3)))
        trained = own * world_size
        sizes = (trained,) if source == "detach" else draw(minibatches_of(trained, world_size))
        each_microbatch = draw(microbatches_of(sizes, world_size))
        fields |= {
            "samples": trained - added,
            "minibatches": sizes,
            "microbatch": each_microbatch if each_microbatch or dynamic else world_size,
            "reuse": 1 if source == "detach" else draw(st.integers(1, 3)),
            "remainder": "pad" if added else "keep" if len(set(sizes)) > 1 else "error",
        }
    # Where the loss takes current log-probs for old ones, stale samples are a fault of the plan: one update a rollout then.
    if source == "detach" and carry:
        fields |= {"microbatch": own * world_size, "window": 1, "last": 0}
    planned_critic = None
    if draw(st.booleans()) if critic is None else critic:
        sizes = draw(minibatches_of(trained, world_size))
        each_microbatch = draw(microbatches_of(sizes, world_size))
        of_critic = {
            "minibatches": sizes,
            "microbatch": each_microbatch if each_microbatch or dynamic else world_size,
            "window": 0,
            "last": 0,
            "kept": False,
            "reuse": draw(st.integers(1, 2)),
            "frozen": draw(st.sampled_from([0, 0, 0, 1])),
            "warmup_minibatches": draw(st.sampled_from([(), (trained,)])) if frozen else (),
        }
        if carry and fields["last"]:
            of_critic |= {
                "window": draw(st.integers(1, 3)),
                "microbatch": world_size,
                "last": fields["last"],
                "warmup_minibatches": (),
            }
        planned_critic = phase_plan(**(fields | of_critic))  # type: ignore[arg-type]
    schedule = phase_plan(**fields, critic=planned_critic)  # type: ignore[arg-type]
    ages = (
        draw(st.lists(st.integers(0, 3 if max_age is None else max_age), max_size=rollouts or 3))
        if max_age != 0
        else []
    )
    skipped = draw(st.sets(st.integers(0, 6), max_size=1)) if source != "detach" else set()
    return PhaseCase(schedule=schedule, skipped=frozenset(skipped), ages=tuple(ages))


# Runs


@dataclass
class Buffer:
    """Samples of one rollout on one trainer."""

    refresh: int
    """Number of the refresh that covers them."""
    old_version: int | None
    sampled_version: int | None
    rows: list[int]


@dataclass
class Trainer:
    """One trainer: keeps its own counts and writes what it does."""

    rank: int
    case: PhaseCase
    script: Script
    version: int = 0
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    microbatches: int = 0
    updates: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    windows: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    phases_of_updates: int = 0
    buffer: list[Buffer] = field(default_factory=list)
    before: int = 0
    """Updates of the policy before this run."""
    values: list[MicroBatchValues] = field(default_factory=list)
    update_values: list[UpdateValues] = field(default_factory=list)
    rollout_values: list[RolloutValues] = field(default_factory=list)

    def write(self, event: AnyEvent) -> None:
        self.script.append((rank_process(self.rank), msgspec.structs.replace(event, at=float(len(self.script)))))

    def begin(self, name: PhaseName) -> None:
        self.write(Phase(name=name, number=self.calls[name]))
        self.calls[name] += 1

    def end(self, name: PhaseName) -> None:
        self.write(PhaseEnded(name=name, number=self.calls[name] - 1))

    def attach(self) -> None:
        self.write(Attached(run="run", process=rank_process(self.rank), world_size=self.case.schedule.world_size))
        self.write(FactsRead(facts={"compute_dtype": "float32"}))

    def receive(self, samples: int, sampled_version: int | None) -> None:
        """A rollout's share of samples goes into the buffer, padding included."""
        self.buffer.append(Buffer(NO_REFRESH, None, sampled_version, list(range(samples))))
        self.rollout_values = [RolloutValues(index=NO_REFRESH, max_abs_advantage=1.0)]

    def refresh(self) -> None:
        number = self.calls["refresh"]
        self.begin("refresh")
        newest = self.buffer[-1]
        newest.refresh, newest.old_version = number, self.version
        self.write(Refresh(rollout=number, samples=len(newest.rows), positions=8, policy_version=self.version))
        self.rollout_values = [RolloutValues(index=number, max_abs_advantage=1.0, sampler_gap_mean=0.0)]

    def train(self, role: Role, schedule: Schedule, minibatches: Sequence[int]) -> None:
        """All passes of a role over what is in its buffer."""
        self.begin("policy_updates" if role == "policy" else "critic_updates")
        buffers = self.buffer if role == "policy" else self.buffer[-1:]
        rows = [(buffer, row) for buffer in buffers for row in buffer.rows]
        for _ in range(schedule.reuse_epochs):
            if schedule.remainder == "carry":
                each = (schedule.samples_per_microbatch or 0) // schedule.world_size
                for start in range(0, len(rows) - each + 1, each):
                    self.microbatch(role, rows[start : start + each])
                    if self.windows[role] == schedule.microbatches_per_update:
                        self.update(role, schedule)
                continue
            rest = iter(rows)
            for size in minibatches:
                chunk = list(itertools.islice(rest, size // schedule.world_size))
                if schedule.remainder == "drop" and len(chunk) < size // schedule.world_size:
                    break  # what does not fill an update is left out
                while chunk:
                    count = self.cut(schedule, len(chunk))
                    self.microbatch(role, chunk[:count])
                    chunk = chunk[count:]
                self.update(role, schedule)
        if role == "policy":
            self.buffer.clear()
            self.phases_of_updates += 1

    def cut(self, schedule: Schedule, left: int) -> int:
        """Samples of the next micro-batch; where token counts decide, each trainer's own number."""
        if schedule.samples_per_microbatch is not None:
            return schedule.samples_per_microbatch // schedule.world_size
        return 1 + (self.microbatches * 7 + self.rank) % min(left, 3)

    def microbatch(self, role: Role, rows: list[tuple[Buffer, int]]) -> None:
        index = self.microbatches
        self.microbatches += 1
        self.windows[role] += 1
        if role == "critic":
            self.write(MicroBatch(index=index, role="critic", samples=len(rows), policy_version=self.version))
            return
        source = self.case.schedule.old_logprob_source
        parts: dict[int, list[int]] = {}
        for buffer, row in rows:
            parts.setdefault(buffer.refresh, []).append(row)
        known = NO_REFRESH not in parts
        old = {buffer.old_version for buffer, _ in rows}
        self.write(
            MicroBatch(
                index=index,
                samples=len(rows),
                policy_version=self.version,
                trained=tuple(SampleRows(number, tuple(own)) for number, own in parts.items()) if known else None,
                old_version=old.pop() if known and len(old) == 1 else None,
                old_source=source,
            )
        )
        moved = source != "detach" and self.version not in {buffer.old_version for buffer, _ in rows}
        self.values.append(
            MicroBatchValues(
                index=index,
                tokens=8,
                max_abs_log_ratio=0.1 * moved,
                mean_abs_log_ratio=0.05 * moved,
                old_intact=known or None,
            )
        )

    def update(self, role: Role, schedule: Schedule) -> None:
        index = self.updates[role]
        self.updates[role] += 1
        applied = role == "critic" or self.before + index not in self.case.skipped
        self.version += applied and role == "policy"
        window, self.windows[role] = self.windows[role], 0
        self.write(
            Update(
                index=index,
                role=role,
                applied=applied,
                version=self.version,
                microbatches=window,
                learning_rate=0.01,
                lr_tick=self.phases_of_updates if schedule.lr_clock == "rollout" else index,
                skip_reason="" if applied else "gradient scaler",
            )
        )
        self.update_values.append(
            UpdateValues(
                index=index,
                role=role,
                probed=9,
                changed=9 * applied,
                with_gradient=9,
                visible=9,
                max_change=0.01 * applied,
            )
        )

    def sync(self, label: int) -> None:
        self.begin("sync")
        self.write(WeightSync(policy_version=self.version, label=label))

    def measured(self) -> None:
        """Numbers of what was done since the last time."""
        self.write(
            Measured(
                rollouts=tuple(self.rollout_values), microbatches=tuple(self.values), updates=tuple(self.update_values)
            )
        )
        self.rollout_values, self.values, self.update_values = [], [], []


@dataclass
class Controller:
    """The controller: makes rollouts, calls its trainers, and writes each call when it has returned."""

    case: PhaseCase
    start: PhasePosition
    script: Script = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    synced: list[tuple[int, int]] = field(default_factory=list)
    """Label and version of each weight sync."""
    indices: Iterator[int] = field(default_factory=itertools.count)

    def write(self, event: AnyEvent) -> None:
        self.script.append((CONTROLLER, msgspec.structs.replace(event, at=float(len(self.script)))))

    def call(self, name: PhaseName, trainers: Iterable[Trainer], do: Callable[[Trainer], None]) -> None:
        for trainer in trainers:
            do(trainer)
            trainer.end(name)
        self.write(Phase(name=name, number=self.calls[name]))
        self.calls[name] += 1

    def run(self) -> Script:
        schedule, critic, start = self.case.schedule, self.case.schedule.critic, self.start
        trainers = [Trainer(rank, self.case, self.script, before=start.updates) for rank in range(schedule.world_size)]
        self.write(
            RunStarted(
                run="run",
                rank=0,
                world_size=schedule.world_size,
                schedule=schedule,
                start_updates=start.version,
                facts={"position": msgspec.to_builtins(start), "engine_dtype": "float32"},
            )
        )
        for trainer in trainers:
            trainer.attach()
        if schedule.syncs == "first_and_after_updates" and not start.resumed:
            self.sync(trainers, start.rollouts)
        for rollout in range(start.rollouts, self.case.rollouts):
            if rollout != start.rollouts:
                self.epoch_end(rollout)
            self.generate(trainers, rollout)
            if schedule.reference_source == "at_rollout":
                self.call("reference", trainers, lambda trainer: trainer.begin("reference"))
            if schedule.old_logprob_source in ("recompute", "at_rollout"):
                self.call("refresh", trainers, Trainer.refresh)
            if critic is not None:
                self.call("values", trainers, lambda trainer: trainer.begin("values"))
                if rollout >= critic.frozen_rollouts:
                    warming = rollout < schedule.frozen_rollouts and critic.warmup_minibatches
                    sizes = warming or critic.minibatches
                    self.call("critic_updates", trainers, lambda t, sizes=sizes: t.train("critic", critic, sizes))  # type: ignore[misc]
            if rollout >= schedule.frozen_rollouts:
                self.call("policy_updates", trainers, lambda t: t.train("policy", schedule, schedule.minibatches))
            elif not schedule.frozen_samples_kept:
                for trainer in trainers:
                    trainer.buffer.clear()
            if schedule.syncs != "unseen":
                self.sync(trainers, rollout + 1)
        self.write(RunEnded(status="completed", updates=trainers[0].updates["policy"] + start.updates))
        return self.script

    def generate(self, trainers: list[Trainer], rollout: int) -> None:
        schedule = self.case.schedule
        samples, per_epoch = schedule.samples_per_rollout, schedule.rollouts_per_epoch
        if schedule.samples_of_last_rollout and per_epoch and (rollout + 1) % per_epoch == 0:
            samples = schedule.samples_of_last_rollout
        trained = samples if schedule.remainder == "drop" else sum(schedule.minibatches) or samples
        age = self.case.ages[rollout] if rollout < len(self.case.ages) else 0
        # Only weights that were synced have a label; before that the engine has those it was loaded with.
        first = schedule.syncs == "first_and_after_updates" and not self.start.resumed
        known = self.synced[-1 - age :] if self.synced and (first or len(self.synced) > age) else []
        label, version = known[0] if known else (None, None)
        labels = {} if label is None else {label: samples}
        if len(known) > 1 and samples > 1:
            labels = {label: 1, known[-1][0]: samples - 1}
        self.write(
            Generated(
                index=next(self.indices),
                samples=samples,
                prompts=samples,
                added=trained - samples,
                labels=tuple(sorted((found, count) for found, count in labels.items() if found is not None)),
            )
        )
        for trainer in trainers:
            trainer.receive(trained // schedule.world_size, version)

    def sync(self, trainers: list[Trainer], label: int) -> None:
        def sync(trainer: Trainer) -> None:
            trainer.sync(label)
            trainer.measured()

        self.call("sync", trainers, sync)
        self.synced.append((label, trainers[0].version))

    def epoch_end(self, rollout: int) -> None:
        schedule = self.case.schedule
        if not schedule.rollouts_per_epoch:
            if rollout == 2:  # a pass of unknown length may end anywhere
                self.write(EpochEnd(epoch=1))
        elif rollout % schedule.rollouts_per_epoch == 0:
            self.write(EpochEnd(epoch=rollout // schedule.rollouts_per_epoch))


def scripted_phases(case: PhaseCase, start: PhasePosition | None = None) -> Script:
    """What all processes record of a healthy run."""
    return Controller(case, start or PhasePosition()).run()


def with_critic_processes(script: Script) -> Script:
    """The same run, its critics trained by processes of their own, which count their own micro-batches."""
    split: Script = []
    in_critic: set[str] = set()
    counts: dict[str, int] = defaultdict(int)
    for process, event in script:
        if isinstance(event, Phase) and process != CONTROLLER:
            (in_critic.add if event.name in ("values", "critic_updates") else in_critic.discard)(process)
        if process in in_critic and not isinstance(event, Measured):
            if isinstance(event, MicroBatch):
                event = msgspec.structs.replace(event, index=counts[process])
                counts[process] += 1
            split.append((process.replace("rank", "critic"), event))
        else:
            split.append((process, event))
        if isinstance(event, Attached):
            own = process.replace("rank", "critic")
            split.append((own, msgspec.structs.replace(event, process=own)))
    return split


def composed(script: Script, rank: int = 0) -> list[AnyEvent]:
    """The events of one trainer as its judge reads them."""
    own = deque(event for process, event in script if process == rank_process(rank))
    stream = TrainerStream(rank, TrainerPhases(lambda: _taken_from(own)))
    return [out for process, event in script if process == CONTROLLER for out in stream.feed(event)]


def _taken_from(events: deque[AnyEvent]) -> Iterator[AnyEvent]:
    while events:
        yield events.popleft()


# Judging


class Live:
    """A run that is judged while it goes on: the controller's events as they come, the trainers' records as they grow."""

    def __init__(self) -> None:
        self.records: dict[str, deque[AnyEvent]] = defaultdict(deque)
        self.phases: list[TrainerPhases] = []
        self.run = ControlledRun(self._phases_of)
        self.findings: list[Finding] = []

    def _phases_of(self, rank: int) -> TrainerPhases:
        processes = (rank_process(rank), f"critic{rank}")
        self.phases.append(TrainerPhases(*(partial(self._new, process) for process in processes)))
        return self.phases[-1]

    def _new(self, process: str) -> Iterator[AnyEvent]:
        return _taken_from(self.records[process])

    def play(self, script: Script) -> Live:
        """Let all of it happen."""
        for process, event in script:
            if process == CONTROLLER:
                self.findings += self.run.observe(event)
            else:
                self.records[process].append(event)
        return self


def write_records(folder: Path, script: Script) -> dict[str, Path]:
    """The files that the processes of a run leave."""
    lines: dict[str, list[bytes]] = defaultdict(list)
    for process, event in script:
        lines[process].append(encode(event))
    folder.mkdir(exist_ok=True)
    paths = {process: folder / f"run.{process}.jsonl" for process in lines}
    for process, path in paths.items():
        path.write_bytes(b"".join(lines[process]))
    return paths
