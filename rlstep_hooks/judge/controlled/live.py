"""Finds the records of a controlled run, during the run and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.controlled.compose import TrainerPhases
from rlstep_hooks.record.ledger import rank_process
from rlstep_hooks.record.tail import Tail

if TYPE_CHECKING:
    from pathlib import Path


def recorded_phases(folder: Path, run: str, rank: int) -> TrainerPhases:
    """A trainer's records in a folder, finished or still growing, with its critic's record if the critic is another process."""
    processes = (rank_process(rank), f"critic{rank}")
    return TrainerPhases(*(Tail(folder / f"{run}.{process}.jsonl").read for process in processes))
