"""Which rows of the training set go into rollouts: none more often than the passes of the loader allow, and none of another set.

A row is known by its source, its ground truth and what else the data set says of it. Only when a row comes a second time in a
pass, or looks like one of the validation set, are the rows of the training set counted, once.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

FIELDS = ("data_source", "reward_model", "extra_info")
LARGEST = 200_000
"""Rows of the training set that are counted at most: more would keep training waiting for seconds."""
LARGEST_VALIDATION = 20_000
"""Rows of the validation set, which are counted in every run."""


ANY_NUMBER = sys.maxsize


class Rows:
    """Follows the rows that are submitted.

    Args:
        training: verl's data set of training.
        validation: The validation set.
    """

    def __init__(self, training: Any, validation: Any) -> None:
        self._training = training
        self._validation = validation
        self._served: Counter[int] = Counter()
        self._known: Counter[int] | None = None
        self._others: Counter[int] | None = None
        self.repeated = 0
        """Rows submitted more often than the passes allow, since `take`."""
        self.foreign = 0
        """Rows of the validation set that are none of the training set, since `take`."""
        self._looked = False

    def submit(self, rows: Iterable[tuple[str, ...]], passes: int) -> None:
        """Rows go into rollouts.

        Args:
            rows: The fields of the rows, as text.
            passes: Passes of the loader that have begun; `ANY_NUMBER` where a sampler may give a row as often as it likes.
        """
        if self._others is None:
            self._others = _counted(self._validation)
        for row in rows:
            self._looked = True
            key = hash(row)
            self._served[key] += 1
            if self._served[key] > passes:
                there = self._in_training(key)
                # A data set of one's own may hand out rows that are not those of its table.
                self.repeated += 0 < passes * there < self._served[key]
            if key in self._others:
                self.foreign += not self._in_training(key)

    def _in_training(self, key: int) -> int:
        """How often a row is in the training set."""
        if self._known is None:
            self._known = _counted(self._training)
        return self._known[key]

    def take(self) -> tuple[int | None, int | None]:
        """What was found since the last call; None where nothing was submitted."""
        found = (self.repeated, self.foreign) if self._looked else (None, None)
        self.repeated, self.foreign, self._looked = 0, 0, False
        return found


def countable(dataset: Any, largest: int = LARGEST) -> bool:
    """Whether the rows of a data set can be counted: one of verl's own, and not too large."""
    columns = getattr(getattr(dataset, "dataframe", None), "column_names", ())
    return all(name in columns for name in FIELDS) and len(dataset.dataframe) <= largest


def _counted(dataset: Any) -> Counter[int]:
    columns = dataset.dataframe.select_columns(list(FIELDS))
    return Counter(hash(tuple(text(row[name]) for name in FIELDS)) for row in columns)


def text(value: Any) -> str:
    """A field of a row as text. verl hands out an empty one where there is none (rl_dataset.py 0.9.1:400)."""
    return "{}" if value is None else str(value)
