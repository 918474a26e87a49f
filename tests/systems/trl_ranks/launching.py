"""Starts the launches of two ranks that train many cases, and goes on after a case in which they wait for each other without end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import msgspec

from tests.systems.torchrun import torchrun
from tests.systems.trl_ranks.cases import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Named(Protocol):
    """A case, which is written as JSON for the ranks."""

    @property
    def name(self) -> str:
        """Of the folder that gets what the ranks leave of it."""


SCRIPT = Path(__file__).with_name("train_many.py")
ROOT = Path(__file__).parents[3]
PATIENCE = 240.0
"""Seconds that a case may take; the first one of an environment compiles DeepSpeed's operations."""


def outcomes(
    folder: Path,
    deployment: str,
    cases: Sequence[Named],
    *,
    ranks: int = 2,
    patience: float = PATIENCE,
    script: Path = SCRIPT,
    environment: Mapping[str, str] = MappingProxyType({}),
    say: Callable[[str, list[Outcome]], None] = lambda name, of_ranks: None,
) -> dict[str, list[Outcome]]:
    """Train cases on several ranks; the outcomes of each case, by rank.

    Args:
        folder: Where records go; of this deployment alone. Cases whose outcomes are there already are not trained again.
        deployment: How the ranks share the model, as the script is told.
        cases: What is trained, in this order.
        ranks: Number of processes.
        script: Trains them, as `train_many` does.
        environment: More variables of the launch.
        patience: Seconds without a new outcome after which a launch is ended, and begun again with the next case.
        say: Is called with each case that is done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[Outcome]] = {}
    for case in cases:
        if _is_done(folder / case.name, ranks):
            found[case.name] = _read(folder / case.name, ranks)
            say(case.name, found[case.name])
    left = [case for case in cases if case.name not in found]
    while left:
        (folder / "cases.json").write_bytes(msgspec.json.encode(left))
        with (folder / "output.txt").open("ab") as output:
            process = _started([str(script), str(folder), deployment], ranks, output, environment)
            done = _watched(process, folder, left, ranks, found, say, patience)
        if done == len(left):
            break
        stuck = left[done]
        error = (
            "the launch ended in it" if process.returncode is not None and process.returncode >= 0 else "the ranks hung"
        )
        found[stuck.name] = _read(folder / stuck.name, ranks, missing=Outcome(error=error))
        say(stuck.name, found[stuck.name])
        left = left[done + 1 :]
    return found


def _started(command: Sequence[str], ranks: int, output: object, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | more
    return subprocess.Popen(
        torchrun(ranks, *command),
        env=environment,
        stdout=output,  # type: ignore[call-overload]  # an open file
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _watched(
    process: subprocess.Popen[bytes],
    folder: Path,
    cases: Sequence[Named],
    ranks: int,
    found: dict[str, list[Outcome]],
    say: Callable[[str, list[Outcome]], None],
    patience: float,
) -> int:
    """The number of cases that came to their end, in their order."""
    done, since = 0, time.monotonic()
    while done < len(cases):
        ended = process.poll() is not None
        case = cases[done]
        if _is_done(folder / case.name, ranks):
            found[case.name] = _read(folder / case.name, ranks)
            say(case.name, found[case.name])
            done, since = done + 1, time.monotonic()
        elif ended:
            return done
        elif time.monotonic() - since > patience:
            break
        else:
            time.sleep(0.1)
    _end(process, folder / cases[min(done, len(cases) - 1)].name)
    return done


def _is_done(folder: Path, ranks: int) -> bool:
    """Whether all ranks have left an outcome of a case."""
    return all((folder / f"rank{rank}.json").exists() for rank in range(ranks))


def _end(process: subprocess.Popen[bytes], case: Path) -> None:
    """Wait a little for a launch, then end it with all its ranks, each of which is the leader of a session of its own.

    Args:
        process: The launch.
        case: The folder of the case that it is in.
    """
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        ranks = [int(begun.read_text()) for begun in case.glob("begun*")]
        os.killpg(process.pid, signal.SIGKILL)
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
        process.wait()


def _read(folder: Path, ranks: int, missing: Outcome | None = None) -> list[Outcome]:
    paths = [folder / f"rank{rank}.json" for rank in range(ranks)]
    return [
        msgspec.json.decode(path.read_bytes(), type=Outcome) if path.exists() or missing is None else missing
        for path in paths
    ]
