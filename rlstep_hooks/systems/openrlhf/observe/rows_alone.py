"""Which rows of a trainer process are computed again alone, and what was found of them: old log-probs, and the critic's values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.compared import is_compared_whole
from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.scored_rows import TOPIC, ScoredRows
from rlstep_hooks.systems.openrlhf.observe import scored_alone, values_alone
from rlstep_hooks.systems.openrlhf.observe.deployment import has_whole_rows, holds_whole_model
from rlstep_hooks.systems.openrlhf.observe.scored_beside import LogProbsBeside
from rlstep_hooks.systems.openrlhf.observe.values_beside import ValuesBeside

if TYPE_CHECKING:
    from rlstep_hooks.observe.guard import GapRecorder
    from rlstep_hooks.observe.hooks import Call


class RowsAlone:
    """The rows of one trainer process.

    Args:
        args: OpenRLHF's arguments.
        engine: The DeepSpeed engine of the model that is trained.
        dtype: In which the model computes, as torch names it.
        recorder: Learns what is not observed.
    """

    def __init__(self, args: Any, engine: Any, dtype: str, recorder: GapRecorder) -> None:
        self.recorder = recorder
        """Learns what is not observed."""
        self._args = args
        self._engine = engine
        self._dtype = dtype
        self._scored = ScoredRows(recorder)
        self._beside = LogProbsBeside(self._scored, recorder)
        self._values_beside = ValuesBeside(recorder)
        self._values_open = False
        """Whether values are being computed beside which rows go."""
        self._of_log_probs: dict[str, Any] = {}
        """Fields about the rows of the latest refresh that were scored again."""
        self._of_values: dict[str, Any] = {}
        """Fields about the rows whose values were computed again, until a micro-batch is trained on them."""
        self._values_unseen = ""
        """Why no values are computed again; empty where some are, or none was looked at."""

    def begin(self, computes: str, number: int) -> None:
        """Old log-probs ("refresh") or values are about to be computed, by the call of that number."""
        if computes == "refresh":
            if is_compared_whole(number):
                self._scored.begin()
            return
        self._values_open = is_compared_whole(number) and not holds_whole_model(self._args)
        if self._values_open:
            self._values_beside.begin()

    def end_refresh(self) -> None:
        """Old log-probs are computed."""
        self._of_log_probs = self._scored.end()

    def forward_begins(self, call: Call) -> None:
        """The policy's forward begins."""
        if self._scored.open and scored_alone.is_refresh(call) and not holds_whole_model(self._args):
            self._beside.begins(call, self._temperature, whole_rows=has_whole_rows(self._args))

    def forward_ends(self, call: Call) -> None:
        """The policy's forward is done."""
        if not self._scored.open or not scored_alone.is_refresh(call):
            return
        if holds_whole_model(self._args):
            scored_alone.look(self._scored, call, temperature=self._temperature, dtype=self._dtype)
        elif self._beside.ends():
            self._beside.compare(call.owner, call.result, self._dtype)

    @property
    def _temperature(self) -> float:
        return float(self._args.rollout.temperature)

    def take_log_probs(self) -> dict[str, Any]:
        """Fields of `RolloutValues` about the latest refresh, once."""
        found, self._of_log_probs = self._of_log_probs, {}
        return found

    def critic_begins(self, call: Call) -> None:
        """The critic's forward begins."""
        if self._values_open:
            whole_rows = has_whole_rows(self._args)
            self._values_beside.forward_begins(call.owner, lambda: _batch_of(call), whole_rows=whole_rows)

    def critic_ends(self, call: Call) -> None:
        """The critic's forward is done."""
        if self._values_open:
            self._values_beside.forward_ends()

    @contained(TOPIC)
    def see_values(self, number: int, data: Any, part: slice, results: Any) -> None:
        """The critic computed values of this number: compare some with those of rows alone.

        Args:
            number: Of the call.
            data: What the critic was asked about, one tensor for each micro-batch.
            part: The micro-batches of this process.
            results: (B, L - 1) each, the values.
        """
        critic, beside = self._engine.module, self._values_open
        self._of_values, self._values_open = {}, False
        if not is_compared_whole(number) or not results or self._values_unseen:
            return
        if beside:
            self._of_values = self._values_beside.end(critic, results)
            return
        self._values_unseen = values_alone.why_not(critic, whole=holds_whole_model(self._args))
        if self._values_unseen:
            self.recorder.cannot(TOPIC, self._values_unseen)
            return
        place = number % len(results)
        names = ("sequences", "attention_mask", "action_mask")
        tokens, attention, counted = (data[name][part][place].to(self._engine.device) for name in names)
        batch = values_alone.Batch(tokens, attention, counted)
        self._of_values = values_alone.look(critic, batch, results[place], number)

    def take_values(self) -> dict[str, Any]:
        """Fields of `MicroBatchValues` about the values of the rollout that is trained, once."""
        found, self._of_values = self._of_values, {}
        return found


def _batch_of(call: Call) -> values_alone.Batch:
    """What OpenRLHF's `CriticModel.forward` is called with."""
    given = call.named("input_ids", "action_mask", "attention_mask")
    return values_alone.Batch(given["input_ids"], given["attention_mask"], given["action_mask"].bool())
