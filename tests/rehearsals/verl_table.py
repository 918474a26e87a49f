"""The table of `nox -s rehearse-verl`: scripts of verl's repository are proved within their budget, and broken launches are caught.

python -m tests.rehearsals.verl_table [a checkout of verl 0.9.0] [part of a name ...]
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from tests.rehearsals.table import rehearsed
from tests.rehearsals.verl import BROKEN, HEALTHY, OPTIONS, SCRIPTS


def main(words: list[str]) -> int:
    """Print both tables; the exit status."""
    checkout = next((Path(word) for word in words if (Path(word) / "examples").is_dir()), None)
    parts = [word for word in words if checkout is None or Path(word) != checkout]
    failed, times = [], []
    print("| launch | result | seconds |\n|---|---|---|")
    for name, script in SCRIPTS.items() if checkout is not None else ():
        if parts and not any(part in name for part in parts):
            continue
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(checkout / script, folder)
            status, output, seconds = rehearsed(["bash", Path(script).name], Path(folder), *OPTIONS)
        times.append(seconds)
        if status:
            failed.append((name, output))
        print(f"| {name} | {'proved' if not status else f'status {status}'} | {seconds:.0f} |", flush=True)
    for name, broken in ({"healthy": HEALTHY} | BROKEN).items():
        if parts and not any(part in name for part in parts):
            continue
        with tempfile.TemporaryDirectory() as folder:
            status, output, seconds = rehearsed(broken.write(Path(folder)), Path(folder), *broken.options)
        right = status == broken.status and broken.said in output
        if not right:
            failed.append((name, output))
        print(f"| {name} | {'as it should be' if right else f'status {status}'} | {seconds:.0f} |", flush=True)
    for name, output in failed:
        print(f"\n{name}:\n{output[-3000:]}")
    if times:
        print(f"\nmedian of the scripts of verl: {statistics.median(times):.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
