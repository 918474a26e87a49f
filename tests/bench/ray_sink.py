"""What recording through Ray costs a trainer, and how soon its lines are where the controller reads them.

    python tests/bench/ray_sink.py [--ledgers 256]

Ray and the actor are real, all on this machine. Many ledgers stand for as many trainers: each has its own thread and its own file.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import ray

from rlstep_hooks.record.events import MicroBatch, PhaseEnded, SampleRows
from rlstep_hooks.record.ledger import FolderLedger
from rlstep_hooks.session.ray_sink import RayLedger, Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlstep_hooks.record.ledger import Ledger

MICRO_BATCH = MicroBatch(
    index=3,
    samples=8,
    policy_version=4,
    trained=(SampleRows(3, tuple(range(8))),),
    old_version=4,
    old_source="recompute",
)
END = PhaseEnded(name="policy_updates", number=0)
BETWEEN = 0.002
"""Seconds between two events."""


def write_times(ledger: Ledger, events: int) -> list[float]:
    times = []
    for _ in range(events):
        begun = time.perf_counter()
        ledger.write(MICRO_BATCH)
        times.append(time.perf_counter() - begun)
        time.sleep(BETWEEN)
    return times


def seconds_until(condition: Callable[[], bool]) -> float:
    begun = time.perf_counter()
    while not condition():
        time.sleep(0.0005)
    return time.perf_counter() - begun


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def show(what: str, seconds: Sequence[float], unit: str, scale: float) -> None:
    late = sorted(seconds)[int(0.99 * len(seconds))]
    print(f"{what}: median {median(seconds) * scale:.3g} {unit}, 99 % within {late * scale:.3g} {unit}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledgers", type=int, default=256)
    ledgers = parser.parse_args().ledgers
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sink = Sink(folder, "bench")
        one, path = RayLedger("bench", "rank0"), folder / "bench.rank0.jsonl"
        events = 2000
        show("a write to a file", write_times(FolderLedger(folder, "files", "rank0"), events), "us", 1e6)
        show("a write through Ray", write_times(one, events), "us", 1e6)
        seconds_until(lambda: lines(path) == events)
        arrivals = []
        for number in range(1, 201):
            one.write(END)
            arrivals.append(seconds_until(lambda number=number: lines(path) == events + number))  # type: ignore[misc]
        show("from a call's end to its line in the file", arrivals, "ms", 1e3)

        many = {RayLedger("bench", f"rank{rank}"): folder / f"bench.rank{rank}.jsonl" for rank in range(1, ledgers + 1)}
        for _ in range(20):
            for ledger in many:
                ledger.write(MICRO_BATCH)
            time.sleep(0.1)
        for ledger in many:
            ledger.write(END)
        late = seconds_until(lambda: all(lines(path) == 21 for path in many.values()))
        print(
            f"{ledgers} ledgers with 20 micro-batches and a call's end each: all in their files {late:.2f} s after the last write"
        )
        del sink


if __name__ == "__main__":
    main()
