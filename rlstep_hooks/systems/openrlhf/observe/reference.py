"""Whether the reference keeps its weights: its processes record which weights they compute with, and the controller reads that."""

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
"""Numbers of each tensor, from its middle. A reference that follows the policy changes everywhere, so these are enough."""


def processes_of_reference(args: Any) -> int:
    """Processes that compute log-probs of the reference; 0 where there is none."""
    return int(args.ref.num_nodes) * int(args.ref.num_gpus_per_node)


class ReferenceRecord:
    """One process of the reference.

    Args:
        actor: OpenRLHF's `ReferenceModelActor`.
    """

    def __init__(self, actor: Any) -> None:
        process = f"reference{actor._rank}"
        self._model = actor.model
        self._label: int | None = None
        self._writer = EventWriter(FolderLedger(folder(), run_name(), process))
        self._writer.emit(introduce(process))

    def cannot(self, what: str, why: str) -> None:
        """Record once that a topic cannot be observed."""
        self._writer.cannot(what, why)

    def look(self) -> None:
        """Log-probs are about to be computed: record the weights, if they differ from the last ones."""
        # ZeRO-3 keeps the part of this process beside the parameter.
        held = (getattr(parameter, "ds_tensor", parameter).detach() for parameter in self._model.parameters())
        label = label_of(total(sums_of(map(_middle, held))))
        if label != self._label:
            self._label = label
            self._writer.emit(FactsRead(at=self._writer.now(), facts={"weights": label}))


def _middle(tensor: Any) -> Any:
    flat = tensor.reshape(-1)
    start = max(flat.numel() - LOOKED_AT, 0) // 2
    return flat[start : start + LOOKED_AT]


class ReferenceWeights:
    """The weights that the processes of the reference recorded, as the controller reads them.

    Args:
        folder: Where records are.
        run: The run's name.
        processes: Processes of the reference.
    """

    def __init__(self, folder: Path, run: str, processes: int) -> None:
        self._tails = [Tail(folder / f"{run}.reference{number}.jsonl") for number in range(processes)]
        self._labels: list[list[int]] = [[] for _ in range(processes)]
        self._believed = True

    def intact(self) -> bool | None:
        """Whether all of them still have their first weights; None if they do not say.

        A record of another machine may arrive late through a shared folder, so only processes on this one are believed.
        """
        for number, tail in enumerate(self._tails):
            for event in tail.read():
                if isinstance(event, FactsRead):
                    self._labels[number] = [*self._labels[number][:1], event.facts["weights"]]
                elif isinstance(event, Unobserved) or (
                    isinstance(event, Attached) and event.host != os.uname().nodename
                ):
                    self._believed = False
        if not self._believed or not self._labels or not all(self._labels):
            return None
        return all(labels[0] == labels[-1] for labels in self._labels)
