"""One rank of a launch that trains many cases: each leaves an outcome, and an error ends its case alone. Imports no framework."""

from __future__ import annotations

import os
import time
import traceback
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tests.systems.trl_ranks.cases import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Kind = TypeVar("Kind", bound=msgspec.Struct)


def each_case(folder: Path, kind: type[Kind], train: Callable[[Path, Kind], Outcome]) -> None:
    """Train all cases of FOLDER/cases.json on this rank; FOLDER/<case>/rank<N>.json gets the outcome of each.

    Args:
        folder: What `launching.outcomes` was given.
        kind: Of the cases; each has a name.
        train: Trains one, with a folder of its own.
    """
    rank = os.environ["RANK"]
    for case in msgspec.json.decode((folder / "cases.json").read_bytes(), type=list[kind]):  # type: ignore[valid-type]
        place = folder / case.name
        place.mkdir(exist_ok=True)
        (place / f"begun{rank}").write_text(str(os.getpid()))
        started = time.monotonic()
        try:
            outcome = train(place, case)
        except Exception as error:  # noqa: BLE001 - whatever training raises is the outcome
            lines = traceback.format_exc()[-1500:]
            outcome = Outcome(error=f"{type(error).__name__}: {error}"[:500] + "\n" + lines)
        outcome = msgspec.structs.replace(outcome, seconds=time.monotonic() - started)
        (place / f"rank{rank}.tmp").write_bytes(msgspec.json.encode(outcome))
        (place / f"rank{rank}.tmp").rename(place / f"rank{rank}.json")
