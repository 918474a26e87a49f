"""Whether the reference keeps its weights, and gives what they give, in its own processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.compared import is_compared_whole
from rlstep_hooks.observe.hooks import Hooks
from rlstep_hooks.observe.scored_rows import TOPIC, ScoredRows, fields_of_reference
from rlstep_hooks.systems.openrlhf.observe import scored_alone
from rlstep_hooks.systems.openrlhf.observe.deployment import has_whole_rows, holds_whole_model
from rlstep_hooks.systems.openrlhf.observe.models_beside import ModelRecord, ModelRecords, Told
from rlstep_hooks.systems.openrlhf.observe.scored_beside import LogProbsBeside
from rlstep_hooks.systems.openrlhf.observe.settings import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rlstep_hooks.observe.hooks import Call


class ReferenceRecord(ModelRecord):
    """One process of the reference.

    Args:
        actor: OpenRLHF's `ReferenceModelActor`.
    """

    def __init__(self, actor: Any) -> None:
        super().__init__(f"reference{actor._rank}", actor.model)
        self._args = actor.strategy.args
        self._scored = ScoredRows(Told(self))
        self._calls = 0
        self._dtype = DTYPES.get(str(self._args.ds.param_dtype), str(self._args.ds.param_dtype))
        self._beside: LogProbsBeside | None = None
        """Scores rows beside the reference's own forwards; None where this process holds the whole model."""
        if not holds_whole_model(self._args):
            self._beside = LogProbsBeside(self._scored, Told(self))
            # launcher.py:127: scores one micro-batch.
            Hooks(Told(self)).forward(actor.model, before=self._forward, after=self._scored_by, topics=(TOPIC,))
        self._forwards = 0
        """Forwards since the reference was last asked."""
        self._looked_at: int | None = None
        """The micro-batch of which rows were scored beside its forward; None without one."""

    def begins(self) -> None:
        """The reference is about to score the micro-batches of a rollout."""
        super().begins()
        self._forwards, self._looked_at = 0, None
        if self._looks:
            self._scored.begin()

    @property
    def _looks(self) -> bool:
        return not self.why_not_alone and is_compared_whole(self._calls)

    def _forward(self, call: Call) -> None:
        if self._beside is not None and self._scored.open:
            temperature = float(self._args.rollout.temperature)
            self._beside.begins(call, temperature, whole_rows=has_whole_rows(self._args))

    def _scored_by(self, call: Call) -> None:
        if self._beside is not None and self._scored.open and self._beside.ends():
            self._looked_at = self._forwards
        self._forwards += 1

    def computed(self, data: Any, part: slice, results: list[Any]) -> None:
        """Log-probs of the reference were computed: score some rows again, each alone, and record what was found.

        Args:
            data: What the models are asked about, one tensor for each micro-batch.
            part: The micro-batches of this process.
            results: (B, L - 1) each, what goes to the controller.
        """
        looks, self._calls = self._looks, self._calls + 1
        if not looks:
            return
        if self._beside is None:
            self._score_again(zip(*(data[name][part] for name in _OF_BATCH), results, strict=True))
        elif self._looked_at is not None:
            self._beside.compare(self._model, results[self._looked_at], self._dtype, _OF)
        found = fields_of_reference(self._scored.end())
        if found:
            self.tell(alone=found)

    def _score_again(self, batches: Iterable[tuple[Any, ...]]) -> None:
        """Score rows of micro-batches again, each alone."""
        device, temperature = torch.cuda.current_device(), float(self._args.rollout.temperature)
        for batch in batches:
            if self._scored.wants():
                scored = scored_alone.Scored(*(tensor.to(device) for tensor in batch))
                scored_alone.compare(
                    self._scored, self._model, scored, temperature=temperature, dtype=self._dtype, of=_OF
                )


_OF = "the reference's log-probs"
_OF_BATCH = ("sequences", "attention_mask", "action_mask")


def records_of_reference(args: Any, folder: Path, run: str) -> ModelRecords:
    """The records of the reference's processes; of none where there is no reference."""
    processes = int(args.ref.num_nodes) * int(args.ref.num_gpus_per_node)
    return ModelRecords(folder, run, "reference", processes, gap="reference_clean_gap")
