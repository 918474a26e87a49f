"""Interrupts verl's driver as Ctrl-C does, once some updates are recorded. verl imports this module in every process."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

MODULE = __name__
UPDATES = "RLSTEP_TEST_INTERRUPT_AFTER"
"""A variable: how many updates must be recorded before."""


def _wait_and_interrupt(folder: Path, updates: int) -> None:
    while sum(path.read_text().count('"update"') for path in folder.glob("*rank0.jsonl")) < updates:
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


# Ray's workers run `default_worker.py`; only the driver is `main_ppo`.
if UPDATES in os.environ and not sys.argv[0].endswith("default_worker.py"):
    arguments = (Path(os.environ["RLSTEP_DIR"]), int(os.environ[UPDATES]))
    threading.Thread(target=_wait_and_interrupt, args=arguments, daemon=True).start()
