"""Models beside the policy that only compute, a reference or a reward model: their processes record what they hold and give.

The controller reads these records.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.events import Attached, FactsRead, Unobserved
from rlstep_hooks.record.ledger import FolderLedger
from rlstep_hooks.record.tail import Tail
from rlstep_hooks.record.writer import EventWriter
from rlstep_hooks.systems.openrlhf.observe.fingerprint import label_of, sums_of, total
from rlstep_hooks.systems.openrlhf.observe.process import folder, introduce, run_name

if TYPE_CHECKING:
    from pathlib import Path

LOOKED_AT = 1 << 14
"""Numbers of each tensor, from its middle. A model that follows the policy changes everywhere, so these are enough."""


class ModelRecord:
    """One process of such a model.

    Args:
        process: The name of its record.
        model: Whose weights are looked at.
    """

    def __init__(self, process: str, model: Any) -> None:
        self._model = model
        self._label: int | None = None
        self._writer = EventWriter(FolderLedger(folder(), run_name(), process))
        self._writer.emit(introduce(process))
        self.why_not_alone = ""
        """Why no row of this run can be computed again alone; empty where rows can, or none was looked at."""

    def cannot(self, what: str, why: str) -> None:
        """Record once that a topic cannot be observed."""
        self._writer.cannot(what, why)

    def begins(self) -> None:
        """The model is about to compute: record its weights, if they differ from the last ones."""
        # ZeRO-3 keeps the part of this process beside the parameter.
        held = (getattr(parameter, "ds_tensor", parameter).detach() for parameter in self._model.parameters())
        label = label_of(total(sums_of(map(_middle, held))))
        if label != self._label:
            self._label = label
            self.tell(weights=label)

    def cannot_compare(self, why: str) -> None:
        """No row of this run can be computed again alone: what the controller believes of the weights does not depend on it."""
        self.why_not_alone = why
        self.tell(why_not_alone=why)

    def tell(self, **facts: Any) -> None:
        """Record facts for the controller: "alone", with what was found of rows alone, is one."""
        self._writer.emit(FactsRead(at=self._writer.now(), facts=facts))


class Told:
    """Takes what cannot be computed again of one such model.

    Args:
        record: Its record.
    """

    def __init__(self, record: ModelRecord) -> None:
        self._record = record

    def cannot(self, what: str, why: str) -> None:
        """Record it."""
        self._record.cannot_compare(why)


def _middle(tensor: Any) -> Any:
    flat = tensor.reshape(-1)
    start = max(flat.numel() - LOOKED_AT, 0) // 2
    return flat[start : start + LOOKED_AT]


class ModelRecords:
    """The records of all processes of such a model, as the controller reads them.

    Args:
        folder: Where records are.
        run: The run's name.
        name: What the processes' names begin with.
        processes: How many there are.
        gap: Which of the numbers of a row alone says how far it is.
    """

    def __init__(self, folder: Path, run: str, name: str, processes: int, *, gap: str) -> None:
        self._tails = [Tail(folder / f"{run}.{name}{number}.jsonl") for number in range(processes)]
        self._labels: list[list[int]] = [[] for _ in range(processes)]
        self._gap = gap
        self._believed = True
        self._alone: list[dict[str, Any]] = []
        """What was found of the rows that were computed alone since the latest look."""
        self.why_not_alone = ""
        """Why no row is computed alone; empty where rows are."""

    def alone(self) -> dict[str, Any]:
        """Fields of `Inspected` about the farthest of the rows that were computed alone for the latest rollout; none where none was."""
        found, self._alone = self._alone, []
        return max(found, key=lambda of: of[self._gap], default={}) if self._believed else {}

    def intact(self) -> bool | None:
        """Whether all of them still have their first weights; None if they do not say.

        A record of another machine may arrive late through a shared folder, so only processes on this one are believed.
        """
        for number, tail in enumerate(self._tails):
            for event in tail.read():
                if isinstance(event, FactsRead):
                    self._read(number, event.facts)
                elif isinstance(event, Unobserved) or (
                    isinstance(event, Attached) and event.host != os.uname().nodename
                ):
                    self._believed = False
        if not self._believed or not self._labels or not all(self._labels):
            return None
        return all(labels[0] == labels[-1] for labels in self._labels)

    def _read(self, number: int, facts: dict[str, Any]) -> None:
        if "weights" in facts:
            self._labels[number] = [*self._labels[number][:1], facts["weights"]]
        if "alone" in facts:
            self._alone.append(facts["alone"])
        self.why_not_alone = facts.get("why_not_alone", self.why_not_alone)
