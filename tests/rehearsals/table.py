"""The tables of `nox -s rehearse`, `rehearse-verl` and `rehearse-openrlhf`: healthy launches are proved, and broken ones are caught.

    python -m tests.rehearsals.table trl|verl|openrlhf [CHECKOUT] [part of a name ...]

With a checkout of the framework's repository its own scripts are rehearsed too, as they stand there.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.rehearsals.case import Case

BUDGET = 120


def rehearsed(words: list[str], folder: Path, *options: str) -> tuple[int, str, float]:
    """The exit status, the output and the seconds of one rehearsal."""
    began = time.monotonic()
    command = [sys.executable, "-m", "rlstep_hooks", "rehearse", *options, "--", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10 * BUDGET)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - began


def main(framework: str, parts: list[str]) -> int:
    """Print the table; the exit status."""
    checkout = Path(parts[0]).resolve() if parts and Path(parts[0]).is_dir() else None
    wanted = parts[1:] if checkout is not None else parts
    cases: dict[str, Case] = import_module(f"tests.rehearsals.{framework}").cases(checkout)
    failed, times = [], []
    print("| launch | result | seconds |\n|---|---|---|")
    for name, case in cases.items():
        if wanted and not any(part in name for part in wanted):
            continue
        with tempfile.TemporaryDirectory() as folder:
            status, output, seconds = rehearsed(case.write(Path(folder)), Path(folder), *case.options)
        times += [seconds] if case.status == 0 else []
        right = status == case.status and case.said in output
        if not right:
            failed.append((name, output))
        result = ("as it should be" if case.status else "proved") if right else f"status {status}"
        print(f"| {name} | {result} | {seconds:.0f} |", flush=True)
    for name, output in failed:
        print(f"\n{name}:\n{output[-3000:]}")
    if times:
        print(f"\nmedian of the healthy launches: {statistics.median(times):.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
