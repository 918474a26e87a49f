"""Log-probs that a loop asks the service for after it has drawn its samples: old log-probs that are computed again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlstep_hooks.systems.tinker.observe.origins import checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from rlstep_hooks.systems.tinker.observe.found import Found

    Gives = Callable[[], np.ndarray | None]


@dataclass(frozen=True)
class Said:
    """What the service was asked for of one row."""

    version: int | None
    """Updates that the training client had made to the weights that computed it."""
    by_sampler: bool
    """Whether a sampler did; else the training client."""
    gives: Gives
    """The log-probs; None until they have arrived."""


class Scores:
    """What the service said of rows, in this round and the one before."""

    def __init__(self) -> None:
        self._now: dict[int, list[Said]] = {}
        self._before: dict[int, list[Said]] = {}

    def forwards(self, version: int, data: Iterable[Found], future: Future[Any]) -> None:
        """A forward of the training client, with or without a backward, was asked for."""
        for place, datum in enumerate(data):
            if datum.row is not None:
                self._add(checksum(datum.row.tokens), Said(version, False, _output(future, place)))

    def asked(self, version: int | None, tokens: np.ndarray, future: Future[Any]) -> None:
        """A sampler was asked for the log-probs of a whole row."""
        self._add(checksum(tokens), Said(version, True, _all_but_first(future)))

    def next_round(self) -> None:
        """Forget what was asked before this round."""
        self._before, self._now = self._now, {}

    def computed(self, datum: Found) -> Said | None:
        """What was asked for that the old log-probs of a datum are, bit for bit where they count; None where they are nothing of it."""
        if datum.row is None or datum.old is None:
            return None
        of, counted = checksum(datum.row.tokens), datum.counted
        known: list[Said] = [*self._now.get(of, ()), *self._before.get(of, ())]
        for said in known:
            given = said.gives()
            fits = given is not None and len(given) == len(datum.old)
            if given is not None and fits and np.array_equal(given[counted], datum.old[counted]):
                return said
        return None

    def _add(self, of: int, said: Said) -> None:
        self._now.setdefault(of, []).append(said)


def _output(future: Future[Any], place: int) -> Gives:
    def gives() -> np.ndarray | None:
        if not _arrived(future):
            return None
        outputs = future.result().loss_fn_outputs
        found = outputs[place].get("logprobs") if place < len(outputs) else None
        return None if found is None else np.asarray(found.to_numpy(), np.float32)

    return gives


def _all_but_first(future: Future[Any]) -> Gives:
    def gives() -> np.ndarray | None:
        if not _arrived(future):
            return None
        return np.array([np.nan if one is None else one for one in future.result()[1:]], np.float32)

    return gives


def _arrived(future: Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
