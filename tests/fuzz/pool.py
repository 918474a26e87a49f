"""Damaged records by the thousand, each within bounds of time and memory: `python -m tests.fuzz.pool [--records N] [--seed N]`.

Each worker reads one record after another under a limit of address space. A record that takes more processor time than `SECONDS`, that
waits for as long as nobody would, or that ends in anything else than an answer, is named with the number that makes it again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tests.fuzz import views
from tests.fuzz.damage import Damaged
from tests.fuzz.files import RECORDS
from tests.fuzz.limits import time_limit

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

MEMORY = 2 << 30
"""Bytes of address space."""
SECONDS = 5
"""Processor time for one view of a record: a command."""
PATIENCE = 60
"""Seconds of any clock after which a record hangs: a pipe takes no processor time, and this machine may be busy."""


class Outcome(msgspec.Struct):
    """What became of one record."""

    seed: int
    what: str
    failure: str = ""
    seconds: float = 0.0
    memory: int = 0
    """Bytes that the worker had at most, with all records so far."""


def check(seed: int, folder: Path, *, most: int) -> Outcome:
    """Damage a record, and look at it in some views.

    Args:
        seed: The number that the damage and the views follow from.
        folder: A folder that is emptied.
        most: Views that are looked at, beside the report.
    """
    record, whole = folder / "record", folder / "whole"
    shutil.rmtree(folder, ignore_errors=True)
    record.mkdir(parents=True)
    whole.mkdir()
    for name, content in RECORDS[0].items():
        (whole / f"whole.{name}.jsonl").write_bytes(content)
    damaged = Damaged(RECORDS, seed)
    damaged.write(record)
    chosen = ["report", *random.Random(seed).sample(views.names(), most)]
    outcome = Outcome(seed, "; ".join(damaged.what))
    began = time.process_time()
    outcome.failure = look(record, whole, folder / "out", chosen)
    outcome.seconds = time.process_time() - began
    outcome.memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return outcome


def look(record: Path, whole: Path, out: Path, names: list[str]) -> str:
    """Look at a record in some views, each within the limit of time; what failed, or nothing."""
    for name in dict.fromkeys(names):
        try:
            with time_limit(SECONDS):
                views.shown(name, record, whole, out)
        except BaseException:  # noqa: BLE001 - each is what is looked for
            return f"{name}: {traceback.format_exc()}"
    return ""


def _work(pipe: Connection, folder: str, most: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    os.environ["COLUMNS"] = "120"
    while (seed := pipe.recv()) is not None:
        pipe.send(check(seed, Path(folder), most=most))


class _Worker:
    """One process and the record that it reads."""

    def __init__(self, folder: Path, most: int) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=_work, args=(theirs, str(folder), most))
        self.process.start()
        theirs.close()
        self.seed = -1
        self.since = 0.0

    def read(self, seed: int) -> None:
        """Have it read a record."""
        self.seed, self.since = seed, time.monotonic()
        self.pipe.send(seed)

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.join()


def run(seeds: range, *, workers: int, most: int) -> list[Outcome]:
    """Look at the records of these numbers."""
    outcomes: list[Outcome] = []
    left = iter(seeds)
    with tempfile.TemporaryDirectory() as scratch:
        places = [Path(scratch, str(number)) for number in range(workers)]
        active = [_Worker(place, most) for place in places]
        busy = {number for number, worker in enumerate(active) if _next(worker, left)}
        while busy:
            for number in sorted(busy):
                worker = active[number]
                try:
                    found = worker.pipe.recv() if worker.pipe.poll(0.05) else None
                except EOFError:
                    found = Outcome(worker.seed, "", "the process ended")
                if found is None and time.monotonic() - worker.since > PATIENCE:
                    found = Outcome(worker.seed, "", f"it hangs for {PATIENCE} s")
                if found is None:
                    continue
                outcomes.append(found)
                if found.failure:
                    print(
                        f"seed {found.seed}: {found.what[:200]}\n  {found.failure.strip().splitlines()[-1][:200]}",
                        flush=True,
                    )
                elif len(outcomes) % 1000 == 0:
                    print(f"{len(outcomes)} records", flush=True)
                if not worker.process.is_alive() or time.monotonic() - worker.since > PATIENCE:
                    worker.end()
                    active[number] = worker = _Worker(places[number], most)
                if not _next(worker, left):
                    busy.discard(number)
        for worker in active:
            worker.end()
    return outcomes


def _next(worker: _Worker, left: object) -> bool:
    seed = next(left, None)  # type: ignore[call-overload]
    if seed is None:
        return False
    worker.read(seed)
    return True


def main() -> None:
    """Look at many records, and say what they took."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--records", type=int, default=20_000)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--workers", type=int, default=min(os.cpu_count() or 1, 2))
    arguments.add_argument("--views", type=int, default=2, help="views of each record beside its report")
    given = arguments.parse_args()
    began = time.monotonic()
    found = run(range(given.seed, given.seed + given.records), workers=given.workers, most=given.views)
    failed = [each for each in found if each.failure]
    kinds = Counter(each.failure.strip().splitlines()[-1][:110] for each in failed)
    slowest = max(found, key=lambda each: each.seconds)
    print(
        f"{len(found)} damaged records in {time.monotonic() - began:.0f} s; slowest {slowest.seconds:.2f} s of processor time "
        f"({slowest.seed}: {slowest.what}); most memory {max(each.memory for each in found) >> 20} MiB; {len(failed)} failures"
    )
    for kind, count in kinds.most_common(20):
        first = next(each for each in failed if each.failure.strip().splitlines()[-1][:110] == kind)
        print(f"\n{count} x {kind}\n  seed {first.seed}: {first.what}\n{first.failure[-2500:]}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
