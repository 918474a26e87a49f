"""Starts a script on several ranks of this machine, and reads what each of them left in a file."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.systems.torchrun import torchrun

ROOT = Path(__file__).parents[3]
LIMIT = 900
"""Seconds for one launch; the first one of an environment compiles DeepSpeed's operations."""


def launch(script: Path, folder: Path, *arguments: str, processes: int = 2) -> list[Any]:
    """Run the script with the folder and these arguments; what each rank wrote to `rank*.json` in the folder, in their order."""
    folder.mkdir(exist_ok=True)
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu",
    }  # fmt: skip
    done = subprocess.run(
        torchrun(processes, str(script), str(folder), *arguments),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
    )
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]
    assert len(results) == processes, done.stdout[-3000:]
    return results
