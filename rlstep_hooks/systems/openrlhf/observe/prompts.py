"""Whether each pass over the prompts serves each of them as often as the set holds it."""

from __future__ import annotations

import zlib
from collections import Counter
from typing import Any

from rlstep_hooks.record.events import Carried
from rlstep_hooks.systems.openrlhf.observe.prompt_rows import differing

FROM_DATA = "from the data set to the engines"

MOST_ROWS = 200_000
"""Rows of a set whose prompts are counted."""


class ServedPrompts:
    """Counts the prompts that one `SamplesGenerator` sends to its engines (samples_generator.py:202 of 0.11.2).

    Args:
        generator: The generator; its data set keeps all prompts as text (prompts_dataset.py:86).
    """

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        rows = getattr(generator.prompts_dataloader.dataset, "prompts", None)
        known = isinstance(rows, list) and 0 < len(rows) <= MOST_ROWS and all(isinstance(row, str) for row in rows)
        self._held = Counter(map(_key, rows)) if known and rows is not None else None
        """How often the set holds each prompt; None where that is not counted."""
        labels = getattr(generator.prompts_dataloader.dataset, "labels", None)
        whole = known and rows is not None and isinstance(labels, list) and len(labels) == len(rows)
        self._pairs = {_key(pair) for pair in zip(rows, labels, strict=True)} if whole and rows and labels else None
        """The prompts of the data set with their labels; None where labels are not compared."""
        self._compared = 0
        self._altered: dict[str, int] = {}
        self._of_rows = differing(generator.prompts_dataloader.dataset) if self._pairs is not None else (0, 0, 0)
        """Of how many rows it was compared what was made of them, and of how many the prompt and the label are others; told once."""
        self._served: Counter[int] = Counter()
        self._passes = 1
        """Passes over the set that have begun."""
        self._within = self._drained = False
        self._repeated = 0

    def begin(self) -> None:
        """A rollout is about to be generated, and no evaluation."""
        self._see_end()
        self._within, self._repeated = True, 0
        self._compared, self._altered = 0, {}

    def dispatched(self, prompts: list[Any], labels: list[Any]) -> None:
        """Compare prompts and labels that go to the engines."""
        if not self._within or self._held is None:
            return
        if self._pairs is not None:
            self._compare(self._held, self._pairs, prompts, labels)
        for prompt in prompts:
            if self._drained:  # the set is begun anew
                self._passes, self._drained = self._passes + 1, False
            key = _key(prompt)
            self._served[key] += 1
            self._repeated += key in self._held and self._served[key] > self._held[key] * self._passes

    def end(self) -> int | None:
        """The rollout was generated. Returns how many prompts of it their passes had served before; None if they are not counted."""
        self._within = False
        self._see_end()
        return None if self._held is None else self._repeated

    def _compare(self, held: Counter[int], pairs: set[int], prompts: list[Any], labels: list[Any]) -> None:
        for prompt, label in zip(prompts, labels, strict=False):
            self._compared += 1
            known = _key(prompt) in held
            if not known or _key((prompt, label)) not in pairs:
                wrong = "labels" if known else "tokens"
                self._altered[wrong] = self._altered.get(wrong, 0) + 1

    def carried(self, rollout: int) -> Carried | None:
        """The prompts of the latest rollout with their labels, compared with those of the set; None if they were not."""
        if not self._compared:
            return None
        rows, prompts, labels = self._of_rows
        self._of_rows = 0, 0, 0
        altered = dict(self._altered)
        for name, count in (("tokens", prompts), ("labels", labels)):
            if count:
                altered[name] = altered.get(name, 0) + count
        compared = self._compared + rows
        return Carried(way=FROM_DATA, rollout=rollout, compared=compared, names=("tokens", "labels"), altered=altered)

    def _see_end(self) -> None:
        """samples_generator.py:131: a generator drops an iterator that is used up."""
        if self._served and getattr(self._generator, "_dataloader_iter", None) is None:
            self._drained = True


def _key(prompt: Any) -> int:
    return zlib.crc32(str(prompt).encode())
