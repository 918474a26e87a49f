"""What the audit costs a TRL run: training with and without it, paired, events per second, bytes per event.

Paired. Two trainings of one process, one of them audited, take turns cycle by cycle; cycles of both are compared in groups of
sixteen neighbours, and quoted is the median over the groups of all runs, by the wall's time and by the thread's processor time (each
training is on one thread; other programs of the machine are not in it). This counts everything, and is as exact as the machine is
quiet. No audit is switched off in the middle of a run: it would then look for the rows that it did not see. Each turn collects the
garbage that it made, within its time: left to itself, Python collects what both trainings left behind in whichever of them comes to
its threshold, and that decided about two percent.

Timed. Each call of a hook is timed, by the wall's and by the thread's processor time, without what it wraps. This does not vary with
the machine, and so tells what is too small for pairs; caches that hooks leave cold for the framework are not in it.

    python -m tests.bench.trl_overhead [--runs N] [--updates N]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import logging
import platform
import statistics
import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.record.cadence import ALL_OF_FIRST
from rlstep_hooks.record.ledger import records
from rlstep_hooks.record.wire import encode
from rlstep_hooks.testing.tiny_trl import tiny_model, tiny_tokenizer, tiny_trainer
from tests.bench.hook_meter import Stopwatch, watched

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Run:
    """What is trained.

    Attributes:
        name: For the reader.
        model: Arguments of `tiny_model`.
        settings: Of the GRPOConfig, besides those of every tiny run.
        updates_per_cycle: Updates on one rollout.
    """

    name: str
    model: dict[str, int]
    settings: dict[str, int]
    updates_per_cycle: int


TINY = {"hidden_size": 64, "layers": 4}
PASSES = {"gradient_accumulation_steps": 2, "num_iterations": 2}
ONE_PASS = Run("tiny, one pass", TINY, {}, 1)
TWO_PASSES = Run("tiny, two passes and accumulation", TINY, PASSES, 2)
LARGER = Run("larger, two passes and accumulation", {"hidden_size": 1024, "layers": 6}, PASSES, 2)


@dataclass(frozen=True)
class Group:
    """Neighbouring cycles: the mean of those with the audit and of those without it.

    Attributes:
        wall: Seconds with and without.
        processor: Seconds of the thread's processor time with and without.
    """

    wall: tuple[float, float]
    processor: tuple[float, float]

    @classmethod
    def of(cls, cycles: list[tuple[bool, float, float]]) -> Group:
        """The means of these cycles."""
        audited, bare = ([cycle for cycle in cycles if cycle[0] is on] for on in (True, False))
        wall, processor = ((_mean(audited, column), _mean(bare, column)) for column in (1, 2))
        return cls(wall, processor)


def _mean(cycles: list[tuple[bool, float, float]], column: int) -> float:
    return statistics.mean(cycle[column] for cycle in cycles)


class Turns:
    """Two threads that go on in turns.

    Neighbours are compared because the same program differs by several percent from one second to the next on a shared machine, far
    more than what is measured here.
    """

    PATTERN = (True, False, False, True)
    """Whose turn it is, again and again: a steady drift of the machine cancels, and each follows the other as often as itself."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._turn = 0
        self._alone = False

    def wait(self, *, audited: bool) -> None:
        """Wait until it is the turn of the training that is audited, or of the other one."""
        with self._changed:
            self._changed.wait_for(lambda: self._alone or self.PATTERN[self._turn % len(self.PATTERN)] is audited)

    def end(self) -> None:
        """A turn is over."""
        with self._changed:
            self._turn += 1
            self._changed.notify_all()

    def leave(self) -> None:
        """One training is over, and the other goes on alone."""
        with self._changed:
            self._alone = True
            self._changed.notify_all()


class TakesTurns(TrainerCallback):  # type: ignore[misc]
    """Takes the time of each cycle of one of the two trainings, and lets the other go on after it.

    A cycle is one rollout and the updates on it.
    """

    GROUP = 16
    """Cycles that are compared with each other, of both trainings. What the audit does only now and then falls into most groups."""
    SETTLING = ALL_OF_FIRST
    """Cycles at the beginning that are left out: the audit recomputes all numbers of these, and `timed` says what they take."""

    def __init__(self, turns: Turns, updates_per_cycle: int, *, audited: bool) -> None:
        self.audited = audited
        self.cycles: list[tuple[bool, float, float]] = []
        """Whether the training is audited; seconds by the wall and of the thread's processor time."""
        self._turns = turns
        self._updates_per_cycle = updates_per_cycle
        self._began = (0.0, 0.0)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The first cycle begins."""
        self._begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An update ended."""
        cycle, rest = divmod(state.global_step, self._updates_per_cycle)
        if rest:
            return
        gc.collect(0)  # all that came to be in this turn is of the youngest generation: see `collected_in_turns`
        wall, processor = self._began
        if cycle > self.SETTLING:
            self.cycles.append((self.audited, time.perf_counter() - wall, time.thread_time() - processor))
        gc.collect()
        self._turns.end()
        self._begin()

    def _begin(self) -> None:
        self._turns.wait(audited=self.audited)
        self._began = time.perf_counter(), time.thread_time()


def train(folder: Path, run: Run, updates: int) -> list[Group]:
    """Train twice at the same time, with the audit and without it; the full groups of neighbouring cycles."""
    turns = Turns()
    both = [TakesTurns(turns, run.updates_per_cycle, audited=audited) for audited in (True, False)]
    audits = [StepAuditCallback(log_dir=folder / "log")], []
    trainers = [
        trainer_with(folder / str(taking.audited), run, updates, [*audit, taking])
        for audit, taking in zip(audits, both, strict=True)
    ]

    def one(trainer: Any) -> None:
        try:
            trainer.train()
        finally:
            turns.leave()

    with quiet(), collected_in_turns(), ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(one, trainer) for trainer in trainers]:
            done.result()
    size = TakesTurns.GROUP // 2
    starts = range(0, len(both[0].cycles) - size + 1, size)
    return [Group.of([cycle for of in both for cycle in of.cycles[start : start + size]]) for start in starts]


@contextlib.contextmanager
def collected_in_turns() -> Iterator[None]:
    """Nothing is collected but where a turn asks for it, and what is there already is not gone through again."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing is printed."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def trainer_with(folder: Path, run: Run, updates: int, callbacks: list[TrainerCallback]) -> Any:
    """A trainer that is ready to train."""
    return tiny_trainer(
        folder / "out",
        callbacks=callbacks,
        model=tiny_model(tiny_tokenizer(), **run.model),
        max_steps=updates,
        logging_steps=10_000,
        **run.settings,
    )


def paired(run: Run, runs: int, updates: int) -> None:
    """Print the ratios of one kind of run."""
    with tempfile.TemporaryDirectory() as scratch:
        groups = [group for _ in range(runs) for group in train(Path(scratch), run, updates)]
    bare = statistics.median(group.wall[1] for group in groups)
    parameters = sum(p.numel() for p in tiny_model(tiny_tokenizer(), **run.model).parameters())
    print(
        f"{run.name}: {parameters:,} parameters, {runs} runs of {updates} updates, {len(groups)} groups, "
        f"{1000 * bare / run.updates_per_cycle:.1f} ms an update without the audit"
    )
    for clock in ("wall", "processor"):
        pairs = [getattr(group, clock) for group in groups]
        ratios = [audited / alone for audited, alone in pairs]
        added = statistics.median(audited - alone for audited, alone in pairs)
        print(
            f"  with / without, {clock}: median {statistics.median(ratios):.4f} (quartiles {_quartiles(ratios)}), "
            f"mean {_mean_with_error(ratios)}, {1e6 * added / run.updates_per_cycle:.0f} us more an update"
        )


class Cycles(TrainerCallback):  # type: ignore[misc]
    """Sums what hooks took, cycle by cycle."""

    def __init__(self, watches: list[Stopwatch], updates_per_cycle: int) -> None:
        self.watches = watches
        self.updates_per_cycle = updates_per_cycle
        self.cycles: list[tuple[float, float, float]] = []
        """Seconds of the cycle, and of hooks in it, by the wall and by the thread's processor time."""
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An update ended."""
        if state.global_step % self.updates_per_cycle:
            return
        now = time.perf_counter()
        wall, processor = (sum(getattr(watch, name) for watch in self.watches) for name in ("wall", "processor"))
        self.cycles.append((now - self._began, wall, processor))
        self.watches.clear()
        self._began = now


def timed(run: Run, updates: int) -> None:
    """Print what hooks take of one kind of run."""
    watches: list[Stopwatch] = []
    cycles = Cycles(watches, run.updates_per_cycle)
    with tempfile.TemporaryDirectory() as scratch, watched(watches), quiet():
        trainer_with(Path(scratch), run, updates, [StepAuditCallback(log_dir=Path(scratch, "log")), cycles]).train()
    # Means: what the audit does only now and then falls into few cycles. The very first one has the imports in it.
    each = 1e6 / run.updates_per_cycle
    _, _, first = _means(cycles.cycles[1 : TakesTurns.SETTLING])
    whole, wall, processor = _means(cycles.cycles[TakesTurns.SETTLING :])
    print(
        f"  timed: hooks take {each * processor:.0f} us of the processor an update ({each * wall:.0f} us by the wall), "
        f"{100 * processor / whole:.2f} % ({100 * wall / whole:.2f} %) of {each * whole / 1000:.1f} ms; "
        f"in the first {TakesTurns.SETTLING} cycles {each * first:.0f} us"
    )


def _means(cycles: list[tuple[float, float, float]]) -> tuple[float, ...]:
    return tuple(statistics.mean(column) for column in zip(*cycles, strict=True))


def _mean_with_error(values: list[float]) -> str:
    """The mean with its standard error: a difference smaller than twice that is not told apart from noise."""
    return f"{statistics.mean(values):.4f} +- {statistics.stdev(values) / len(values) ** 0.5:.4f}"


def _quartiles(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.4f} to {high:.4f}"


def events() -> None:
    """Print what one event costs to encode and to judge, and its size on disk."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with quiet():
            trainer_with(folder, TWO_PASSES, 200, [StepAuditCallback(log_dir=folder / "log", listeners=())]).train()
        (found,) = records(folder / "log").values()
        recorded = list(found[0].events())
        size = found[0].path.stat().st_size
    began = time.process_time()
    rounds = 50
    for _ in range(rounds):
        for event in recorded:
            encode(event)
    encoding = (time.process_time() - began) / rounds / len(recorded)
    began = time.process_time()
    for _ in range(rounds):
        judge = Judge()
        for event in recorded:
            judge.observe(event)
    judging = (time.process_time() - began) / rounds / len(recorded)
    print(
        f"events: {len(recorded)} recorded, {size / len(recorded):.0f} bytes each on disk, "
        f"{1e6 * encoding:.2f} us to encode, {1e6 * judging:.2f} us to judge ({1 / judging:,.0f} a second)"
    )


def main() -> None:
    """Print all figures."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=8)
    arguments.add_argument("--updates", type=int, default=240)
    options = arguments.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print(f"trl {version('trl')}, torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}")
    fewer = max(options.updates // 2, 100)
    for run, runs, updates in (
        (ONE_PASS, options.runs, options.updates),
        (TWO_PASSES, options.runs, options.updates),
        (LARGER, max(options.runs // 4, 2), fewer),
    ):
        paired(run, runs, updates)
        timed(run, updates)
    events()


if __name__ == "__main__":
    main()
