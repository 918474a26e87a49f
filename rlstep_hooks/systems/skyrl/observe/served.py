"""Whether each pass over the rows serves each of them once. SkyRL's data set names rows by their place (skyrl 0.3.0,
train/dataset/dataset.py `__getitem__`)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from skyrl.train.dataset import PromptDataset

if TYPE_CHECKING:
    from collections.abc import Iterable


class ServedRows:
    """Counts the rows that are submitted for generation.

    Args:
        dataset: The training set; the rows of a class of somebody's own are not counted, since it may name them otherwise.
    """

    def __init__(self, dataset: Any) -> None:
        self._counts = type(dataset) is PromptDataset
        self._served: Counter[str] = Counter()

    def again(self, rows: Iterable[str], passes: int) -> int | None:
        """How many rows of a rollout had been served in each of the passes before; None if they are not counted.

        Args:
            rows: The name of each sample's row.
            passes: Passes over the set that have begun.
        """
        if not self._counts:
            return None
        names = set(rows)
        self._served.update(names)
        return sum(self._served[name] > passes for name in names)
