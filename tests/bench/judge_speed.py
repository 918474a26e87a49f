"""Events a second through encoding, ledger, reading back and judging, bytes of an event, and memory over a million events.

    python -m tests.bench.judge_speed [--events N] [--repeats N]

Rates are of one core, in processor time, the best of some repeats over 50 000 events. Two kinds of runs, without a framework: one
process as TRL's (two passes over rollouts of 8 samples, micro-batches of 4), and a controller with two trainers as verl's. Memory is
that of a process of its own that judges a run of N events from its files. The time of a report is the processor time of
`rlstep report` from start to end, for a run of nearly 100 000 events, with and without `--html`.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.judge.controlled.live import recorded_phases
from rlstep_hooks.judge.controlled.run import ControlledRun
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.record.events import (
    AnyEvent,
    EpochEnd,
    Measured,
    MicroBatch,
    MicroBatchValues,
    Refresh,
    Rollout,
    RolloutValues,
    RunEnded,
    SampleRows,
    Update,
    UpdateValues,
)
from rlstep_hooks.record.ledger import CONTROLLER, FolderLedger, Record, read_lines, records
from rlstep_hooks.record.tail import Tail
from rlstep_hooks.record.wire import encode
from tests.scripted import make_plan, started
from tests.scripted_phases import Live, PhaseCase, phase_plan, scripted_phases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EVENTS = 50_000
EARLY = 10_000
REPORTED = 105_500
"""Asks for 96 693 events of TRL, and 105 532 of verl."""
GOAL = 500_000
Written = list[tuple[str, AnyEvent]]
"""Events, each with the process that writes it."""


def as_trl(count: int) -> Iterator[tuple[str, AnyEvent]]:
    """About `count` events as one process of TRL writes them: numbers come once for four rollouts."""
    rollouts = count // 9 // 4 * 4
    plan = make_plan(rows=None, iterations=2, max_steps=2 * rollouts)
    yield "rank0", started(plan)
    values: list[MicroBatchValues] = []
    updates: list[UpdateValues] = []
    generated: list[RolloutValues] = []
    for rollout in range(rollouts):
        version, at = 2 * rollout, 0.654321 + rollout
        yield (
            "rank0",
            Rollout(
                at=at,
                index=rollout,
                samples=8,
                policy_version=version,
                sampler_version=version,
                groups_intact=True,
                digest=2**31,
            ),
        )
        yield "rank0", Refresh(at=at, rollout=rollout, samples=8, positions=64, policy_version=version)
        generated.append(RolloutValues(index=rollout, max_abs_advantage=1.33388))
        for number in range(2):
            for half in range(2):
                microbatch = 4 * rollout + 2 * number + half
                rows = SampleRows(rollout, (3, 1, 0, 2) if half else (7, 6, 4, 5))
                event = MicroBatch(
                    at=at,
                    index=microbatch,
                    samples=4,
                    trained=(rows,),
                    policy_version=version + number,
                    sampled_version=version,
                    old_version=version,
                )
                yield "rank0", event
                values.append(
                    MicroBatchValues(
                        index=microbatch,
                        tokens=32,
                        max_abs_log_ratio=0.193897 * number,
                        mean_abs_log_ratio=0.0674214 * number,
                        clipped=0.03125 * number,
                        old_intact=True,
                        tokens_intact=True,
                    )
                )
            index = version + number
            yield (
                "rank0",
                Update(at=at, index=index, version=index + 1, microbatches=2, learning_rate=1e-6, lr_tick=index),
            )
            updates.append(
                UpdateValues(
                    index=index, probed=320, changed=320, with_gradient=320, visible=315, max_change=0.00791728
                )
            )
        if rollout % 4 == 3:
            yield (
                "rank0",
                Measured(at=at, rollouts=tuple(generated), microbatches=tuple(values), updates=tuple(updates)),
            )
            generated, values, updates = [], [], []
    yield "rank0", EpochEnd(epoch=1)
    yield "rank0", RunEnded(status="completed", updates=2 * rollouts)


def as_verl(count: int) -> Iterator[tuple[str, AnyEvent]]:
    """About `count` events of a controller and two trainers: four updates of two micro-batches on each rollout."""
    plan = phase_plan(world_size=2, samples=64, minibatches=(16,) * 4, microbatch=8, rollouts=max(count // 38, 1))
    yield from scripted_phases(PhaseCase(schedule=plan))


KINDS: dict[str, Callable[[int], Iterator[tuple[str, AnyEvent]]]] = {"TRL": as_trl, "verl": as_verl}


def write(folder: Path, written: Iterator[tuple[str, AnyEvent]] | Written) -> None:
    """Each event with a write of its own, as a run does it."""
    ledgers: dict[str, FolderLedger] = {}
    for process, event in written:
        if process not in ledgers:
            ledgers[process] = FolderLedger(folder, "run", process)
        ledgers[process].write(event)
    for ledger in ledgers.values():
        ledger.close()


def read(folder: Path) -> None:
    """Every event of every file."""
    for record in found(folder):
        for _ in read_lines(record.path):
            pass


def found(folder: Path) -> list[Record]:
    """The records of the only run in a folder."""
    (run,) = records(folder).values()
    return run


def judge_live(written: Written) -> None:
    """Judge events in memory, as they come."""
    judge: Judge | ControlledRun = Judge()
    if any(process == CONTROLLER for process, _ in written):
        judge = Live().play(written).run
    else:
        for _, event in written:
            judge.observe(event)
    assert judge.report().verdict == "PASS"


def judge_files(folder: Path) -> None:
    """Judge a recorded run from its files, and print what memory that took early and at its end."""
    run = found(folder)
    controller = next((record for record in run if record.process == CONTROLLER), None)
    judge = ControlledRun(lambda rank: recorded_phases(folder, "run", rank)) if controller else Judge()
    early = 0
    for number, event in enumerate(Tail((controller or run[0]).path).read()):
        judge.observe(event)
        if number == EARLY:
            early = peak()
    print(json.dumps({"early": early, "end": peak(), "verdict": judge.report().verdict}))


def peak() -> int:
    """Most memory of this process so far, in KiB. Not `ru_maxrss`, which begins with that of the process that started this one."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])  # type: ignore[index]


def best(repeats: int, do: Callable[[], object]) -> float:
    """The least processor time of some repeats, in seconds."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        do()
        times.append(time.process_time() - began)
    return min(times)


def rates(kind: str, repeats: int) -> None:
    """Print the rates of one kind of run."""
    written = list(KINDS[kind](EVENTS))
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch, str(number)) for number in range(repeats)]
        fresh = iter(folders)
        seconds = {
            "encode": best(repeats, lambda: [encode(event) for _, event in written]),
            "write": best(repeats, lambda: write(next(fresh), written)),
            "read back": best(repeats, lambda: read(folders[0])),
            "judge": best(repeats, lambda: judge_live(written)),
        }
        size = sum(record.path.stat().st_size for record in found(folders[0]))
    print(f"{kind}: {len(written):,} events, {size / len(written):.0f} bytes each")
    for name, took in seconds.items():
        print(
            f"  {name:<10} {1e6 * took / len(written):5.2f} us an event, {len(written) / took:>9,.0f} events a second"
        )


def reports(kind: str, repeats: int) -> None:
    """Print how long `rlstep report` takes, with and without a page."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, page = Path(scratch, "run"), Path(scratch, "page.html")
        write(folder, KINDS[kind](REPORTED))
        size = sum(1 for record in found(folder) for _ in record.path.open("rb"))
        command = [
            sys.executable,
            "-c",
            "import sys; from rlstep_hooks.cli import main; sys.exit(main())",
            "report",
            str(folder),
        ]
        seconds = {
            name: min(_processor_seconds([*command, *more]) for _ in range(repeats))
            for name, more in (("text", []), ("with --html", ["--html", str(page)]))
        }
    print(
        f"{kind}: a report of {size:,} events takes {seconds['text']:.2f} s, {seconds['with --html']:.2f} s with --html"
    )


def _processor_seconds(command: list[str]) -> float:
    """Processor time of a command, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def memory(kind: str, count: int) -> None:
    """Print the memory of a process that judges a long run from its files; another one writes them."""
    with tempfile.TemporaryDirectory() as scratch:
        this = [sys.executable, "-m", "tests.bench.judge_speed", "--kind", kind, "--folder", scratch]
        subprocess.run([*this, "--write", str(count)], check=True)
        answer: dict[str, Any] = json.loads(
            subprocess.run([*this, "--judge"], check=True, stdout=subprocess.PIPE).stdout
        )
    print(
        f"{kind}: {answer['verdict']}, {answer['early'] / 1024:.1f} MiB after {EARLY:,} events of the first file, "
        f"{answer['end'] / 1024:.1f} MiB after all of {count:,} events"
    )


def main() -> None:
    """Print all figures; or do one of the parts that need a process of their own."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--events", type=int, default=1_000_000)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    arguments.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments.add_argument("--write", type=int, help=argparse.SUPPRESS)
    arguments.add_argument("--judge", action="store_true", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.write:
        write(options.folder, KINDS[options.kind](options.write))
    elif options.judge:
        judge_files(options.folder)
    else:
        print(f"Python {platform.python_version()}, {platform.machine()}; the goal is {GOAL:,} events judged a second")
        for kind in KINDS:
            rates(kind, options.repeats)
        for kind in KINDS:
            reports(kind, options.repeats)
        for kind in KINDS:
            memory(kind, options.events)


if __name__ == "__main__":
    main()
