"""Rows of one micro-batch, scored alone beside the forward of policy or reference that computes its log-probs, with ZeRO-3.

ZeRO-3 gathers the weights of each module for its forward, so a forward of one process alone would wait for the others. Rows go through
the modules while the forward of a micro-batch uses them (`rlstep_hooks.observe.scored_beside`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.clean_forward import fields_of
from rlstep_hooks.observe.forward_beside import is_sharded_by_modules, told_by_others, why_not_beside
from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.scored_beside import PlacedRow, ScoringBeside
from rlstep_hooks.observe.scored_rows import OLD, SHARED_OUT, TOPIC
from rlstep_hooks.systems.openrlhf.observe.scored_alone import of_answer, rows_of, tolerance_of, why_not_of_rows

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.observe.forward_beside import Beside
    from rlstep_hooks.observe.guard import GapRecorder
    from rlstep_hooks.observe.hooks import Call
    from rlstep_hooks.observe.scored_beside import ScoredBeside
    from rlstep_hooks.observe.scored_rows import ScoredRows


class LogProbsBeside:
    """Scores rows beside forwards that compute log-probs.

    Args:
        scored: Says which micro-batches are looked at, and is told what cannot be scored.
        recorder: Is told what went wrong.
    """

    def __init__(self, scored: ScoredRows, recorder: GapRecorder) -> None:
        self._scored = scored
        self._guard = Guard(recorder, (TOPIC,))
        self._scoring: ScoringBeside | None = None
        """Has the rows of the forward that is being made; None where it is not looked at."""
        self._found: list[ScoredBeside] = []
        """The rows that were scored beside the latest forward that was looked at, until they are compared."""
        self._beside: Beside | None = None
        """The hooks of the forward that is being made."""

    def begins(self, call: Call, temperature: float, *, whole_rows: bool) -> None:
        """A forward begins: send rows of it beside it, if it is the one that is looked at.

        Args:
            call: Of OpenRLHF's `Actor.forward`.
            temperature: By which logits are to be divided, as it is configured.
            whole_rows: Whether this process has whole rows, and whole matrices.
        """
        self._leave()
        self._scoring = None
        if not self._scored.wants():
            return
        model = call.owner.model.module
        if why := _why_not(call.owner, model, whole_rows=whole_rows):
            self._scored.cannot(why)
            return
        given = call.named("sequences", "action_mask", "attention_mask")
        rows = rows_of(given["sequences"], given["attention_mask"], given["action_mask"])
        self._scoring = ScoringBeside(model, temperature, self._guard)
        placed = [PlacedRow(place, rows[place]) for place, _ in self._scored.chosen(rows)]
        self._beside = self._scoring.beside(placed)
        self._beside.__enter__()

    def ends(self) -> bool:
        """The forward is done.

        Returns:
            Whether rows were scored beside it, which `compare` compares.
        """
        self._leave()
        scoring, self._scoring = self._scoring, None
        if scoring is None:
            return False
        self._found = scoring.take()
        return bool(self._found)

    def compare(self, actor: Any, log_probs: Tensor, dtype: str, of: str = OLD) -> None:
        """Compare what the forward gave with what rows gave beside it; waits for the device.

        Args:
            actor: OpenRLHF's `Actor`.
            log_probs: (B, L - 1), log-probs of the tokens that count, 0 elsewhere.
            dtype: In which the model computes, as torch names it.
            of: What the log-probs are.
        """
        scored, self._found = self._found, []
        tolerance = tolerance_of(dtype)
        given = ((each, of_answer(each.row, log_probs[each.place])) for each in scored)
        found = [(of, each.gap_to(observed.to(each.log_probs.device), tolerance)) for each, observed in given]
        if any(gap.mean > tolerance for _, gap in found) and (why := told_by_others(actor.model.module)):
            self._scored.cannot(why)
        elif found:
            self._scored.tell(fields_of(found))

    def _leave(self) -> None:
        """Take the hooks off, also of a forward that raised."""
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.__exit__()


def _why_not(actor: Any, model: Any, *, whole_rows: bool) -> str:
    """Why no row can go beside a forward; empty where rows can."""
    if not whole_rows or not is_sharded_by_modules(model):
        return SHARED_OUT
    return why_not_of_rows(actor) or why_not_beside(model)
