"""The table of `nox -s rehearse`: healthy launches are proved within their budget, and broken ones are caught.

python -m tests.rehearsals.table [part of a name ...]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.rehearsals.broken import BROKEN
from tests.rehearsals.broken import HEALTHY as HEALTHY_SCRIPT
from tests.rehearsals.healthy import HEALTHY

BUDGET = 120


def rehearsed(words: list[str], folder: Path, *options: str) -> tuple[int, str, float]:
    """The exit status, the output and the seconds of one rehearsal."""
    began = time.monotonic()
    command = [sys.executable, "-m", "rlstep_hooks", "rehearse", *options, "--", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10 * BUDGET)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - began


def main(parts: list[str]) -> int:
    """Print both tables; the exit status."""
    failed, times = [], []
    print("| launch | result | seconds |\n|---|---|---|")
    for name, launch in HEALTHY.items():
        if parts and not any(part in name for part in parts):
            continue
        with tempfile.TemporaryDirectory() as folder:
            launch.write(Path(folder))
            status, output, seconds = rehearsed(launch.command.split(), Path(folder))
        times.append(seconds)
        if status:
            failed.append((name, output))
        print(f"| {name} | {'proved' if not status else f'status {status}'} | {seconds:.0f} |", flush=True)
    for name, broken in ({"healthy": HEALTHY_SCRIPT} | BROKEN).items():
        if parts and not any(part in name for part in parts):
            continue
        with tempfile.TemporaryDirectory() as folder:
            broken.write(Path(folder))
            status, output, seconds = rehearsed(["python", "train.py"], Path(folder), *broken.options)
        right = status == broken.status and broken.said in output
        if not right:
            failed.append((name, output))
        print(f"| {name} | {'as it should be' if right else f'status {status}'} | {seconds:.0f} |", flush=True)
    for name, output in failed:
        print(f"\n{name}:\n{output[-3000:]}")
    if times:
        print(f"\nmedian of the healthy launches: {statistics.median(times):.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
