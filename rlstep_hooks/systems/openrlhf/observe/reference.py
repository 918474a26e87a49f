"""Whether the reference keeps its weights, and gives what they give: its processes record it, and the controller reads that."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.compared import is_compared_whole
from rlstep_hooks.observe.scored_rows import ScoredRows
from rlstep_hooks.record.events import Attached, FactsRead, Unobserved
from rlstep_hooks.record.ledger import FolderLedger
from rlstep_hooks.record.tail import Tail
from rlstep_hooks.record.writer import EventWriter
from rlstep_hooks.systems.openrlhf.observe import scored_alone
from rlstep_hooks.systems.openrlhf.observe.fingerprint import label_of, sums_of, total
from rlstep_hooks.systems.openrlhf.observe.process import folder, introduce, run_name
from rlstep_hooks.systems.openrlhf.observe.settings import DTYPES

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
        self._strategy = actor.strategy
        self._label: int | None = None
        self._writer = EventWriter(FolderLedger(folder(), run_name(), process))
        self._writer.emit(introduce(process))
        self._why_not = ""
        """Why no row of this run can be scored alone; empty where rows can, or none was looked at."""
        self._scored = ScoredRows(_Told(self))
        self._calls = 0

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
            self._tell(weights=label)

    def scored(self, data: Any, part: slice, results: list[Any]) -> None:
        """Log-probs of the reference were computed: score some rows again, each alone, and record what was found.

        Args:
            data: What the models are asked about, one tensor for each micro-batch.
            part: The micro-batches of this process.
            results: (B, L - 1) each, what goes to the controller.
        """
        number, self._calls = self._calls, self._calls + 1
        if self._why_not or not is_compared_whole(number):
            return
        args = self._strategy.args
        dtype, device = str(args.ds.param_dtype), torch.cuda.current_device()
        self._scored.begin()
        batches = zip(
            *(data[name][part] for name in ("sequences", "attention_mask", "action_mask")), results, strict=True
        )
        for batch in batches:
            if self._scored.wants():
                scored_alone.compare(
                    self._scored,
                    self._model,
                    scored_alone.Scored(*(tensor.to(device) for tensor in batch)),
                    shared=int(self._strategy.world_size) > 1,
                    temperature=float(args.rollout.temperature),
                    dtype=DTYPES.get(dtype, dtype),
                    of="the reference's log-probs",
                )
        found = self._scored.end()
        if found:
            self._tell(
                alone={
                    "reference_clean_gap": found["clean_gap"],
                    "reference_clean_max": found["max_clean_gap"],
                    "reference_clean_like": found["clean_like"],
                }
            )

    def cannot_score(self, why: str) -> None:
        """No row of this run can be scored alone: what the controller believes of the weights does not depend on it."""
        self._why_not = why
        self._tell(why_not_alone=why)

    def _tell(self, **facts: Any) -> None:
        self._writer.emit(FactsRead(at=self._writer.now(), facts=facts))


class _Told:
    """Takes what cannot be scored of one reference."""

    def __init__(self, record: ReferenceRecord) -> None:
        self._record = record

    def cannot(self, what: str, why: str) -> None:
        """Record it."""
        self._record.cannot_score(why)


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
        self._alone: list[dict[str, Any]] = []
        """What was found of the rows that were scored alone since the latest look."""
        self.why_not_alone = ""
        """Why no row is scored alone; empty where rows are."""

    def alone(self) -> dict[str, Any]:
        """Fields of `Inspected` about the farthest of the rows that were scored alone for the latest rollout; none where none was."""
        found, self._alone = self._alone, []
        return max(found, key=lambda of: of["reference_clean_gap"], default={}) if self._believed else {}

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
