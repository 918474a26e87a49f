"""The variables that connect an engine process of vLLM with its run. Imports nothing heavy, because vLLM loads it wherever it runs."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

FOLDER = "RLSTEP_DIR"
"""Where the run is recorded."""
RUN = "RLSTEP_RUN"
"""The run's name."""
ENGINES = "RLSTEP_ENGINES"
"""Where a server that a user starts records: it knows no run, and serves one after the other."""


class Place(NamedTuple):
    """Where an engine process records."""

    folder: str
    run: str
    served: bool
    """Whether the process belongs to a server, which knows no run."""


def place() -> Place | None:
    """Where this process records; None if nobody asked for that."""
    folder, run = os.environ.get(FOLDER), os.environ.get(RUN)
    if folder and run:
        return Place(folder, run, served=False)
    folder = os.environ.get(ENGINES)
    return Place(folder, time.strftime("served-%Y%m%d-%H%M%S"), served=True) if folder else None
