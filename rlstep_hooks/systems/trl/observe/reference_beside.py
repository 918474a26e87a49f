"""Rows scored alone beside the forward that the trainer makes of its reference, whose weights are shared out among processes.

The reference scores a rollout before anybody has the batch that is trained, so its rows are those that `_generate` returned: lists of
the tokens of prompts and completions (grpo_trainer.py 1.16.0:2193, rloo_trainer.py 1.16.0:1492).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.judge.rules.precision import precision_class
from rlstep_hooks.judge.rules.ratio.values import MEAN_TOLERANCE
from rlstep_hooks.observe.clean_forward import Row
from rlstep_hooks.observe.forward_beside import told_by_others
from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.scored_beside import PlacedRow, ScoringBeside
from rlstep_hooks.systems.trl.observe.facts import compute_dtype
from rlstep_hooks.systems.trl.observe.fused_head import told_of_fused_heads
from rlstep_hooks.systems.trl.observe.masks import ends_of
from rlstep_hooks.systems.trl.observe.sharded import why_no_rows_beside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.trl.observe.unwrapped import Unwrapped

TOPIC = "clean_reference"


class ReferenceBeside:
    """Scores two rows of a rollout beside the forward of one trainer's reference.

    Args:
        trainer: A GRPOTrainer or RLOOTrainer whose training begins.
        recorder: Is told what cannot be scored.
        unwrapped: Gives models inside of their wrappers.
        temperature: By which logits are divided.
    """

    def __init__(self, trainer: Any, recorder: Recorder, unwrapped: Unwrapped, temperature: float) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._reference = getattr(trainer, "ref_model", None)
        self._model = None if self._reference is None else unwrapped.of(self._reference)
        self._scoring: ScoringBeside | None = None
        """None where rows cannot be scored."""
        self._looks_in: int | None = None
        """The rollout that is looked at; None while none is."""
        self._rows: list[PlacedRow] = []
        if why := self._why_not():
            recorder.cannot(TOPIC, why)
        else:
            self._scoring = ScoringBeside(self._model, temperature, Guard(recorder, (TOPIC,)))

    def _why_not(self) -> str:
        if self._model is None:
            return (
                "the reference is the policy with its adapters switched off, and weights are shared out among processes"
            )
        if not hasattr(self._trainer, "_generate"):
            return "rows are not seen before the reference scores them in this release, and weights are shared out among processes"
        return why_no_rows_beside(self._trainer, self._model)

    def attach(self, hooks: Hooks) -> None:
        """Place the hook."""
        if self._scoring is not None:
            hooks.wrap(self._trainer, "_generate", after=self._generated, topics=(TOPIC,))

    def begin(self, rollout: int | None) -> None:
        """A rollout begins; None where its rows are not scored."""
        self._looks_in, self._rows = rollout, []

    def _generated(self, call: Call) -> None:
        if self._looks_in is None or not isinstance(call.result, tuple) or len(call.result) < 2:
            return
        prompts, completions = call.result[:2]
        _, pad = ends_of(self._trainer)
        self._rows = _chosen(prompts, completions, self._looks_in, pad or 0, self._trainer.accelerator.device)

    @contextmanager
    def beside(self, model: Any) -> Iterator[None]:
        """Score rows beside the forward that is made in this context, if it is the reference's."""
        rows, scoring = self._rows, self._scoring
        if scoring is None or not rows or model is not self._reference:
            yield
            return
        self._rows = []
        with scoring.beside(rows) as beside, told_of_fused_heads(beside):
            yield

    def look(self, part: dict[str, Any], observed: Tensor | None) -> dict[str, Any]:
        """Compare the reference's log-probs of a rollout with those of rows alone; waits for the device.

        Args:
            part: The rollout, as the trainer holds it.
            observed: (B, T), its log-probs of the reference; None where they were not seen.

        Returns:
            Fields that `RolloutValues` has; empty where none of these rows are in the rollout.
        """
        if self._scoring is None:
            return {}
        scored = self._scoring.take()
        if observed is None or observed.shape != part["completion_ids"].shape:
            return {}
        tolerance = MEAN_TOLERANCE[precision_class(compute_dtype(self._trainer))]
        gaps = [each.gap(observed, tolerance) for each in scored if _is_in(part, each.place, each.row)]
        if not gaps:
            return {}
        farthest = max(gaps, key=lambda gap: gap.mean)
        if farthest.mean > tolerance and (why := told_by_others(self._model)):
            self._recorder.cannot(TOPIC, why)
            return {}
        return {
            "reference_clean_gap": farthest.mean,
            "reference_clean_max": farthest.largest,
            "reference_clean_like": farthest.like,
        }


def _chosen(prompts: Sequence[Any], completions: Sequence[Any], rollout: int, pad: int, device: Any) -> list[PlacedRow]:
    """The row with the most padding, and one that changes from rollout to rollout."""
    places = [place for place, completion in enumerate(completions) if len(completion)]
    if not places:
        return []
    wide = max(len(prompt) for prompt in prompts)
    most_padding = min(places, key=lambda place: len(prompts[place]))
    found = []
    for place in dict.fromkeys((most_padding, places[rollout % len(places)])):
        prompt, completion = [*prompts[place]], [*completions[place]]
        padding = wide - len(prompt)
        tokens = torch.tensor([pad] * padding + prompt + completion, device=device)
        real = torch.arange(padding, wide + len(completion), device=device)
        found.append(PlacedRow(place, Row(tokens, real, len(completion), wide)))
    return found


def _is_in(part: dict[str, Any], place: int, row: Row) -> bool:
    """Whether the rollout has this row at its place, and its forward gets the completion. Tokens that were altered since are another
    rule's (RLS306).

    With `mask_truncated_completions` TRL hides a completion that was cut off from the forward too (rloo_trainer.py 1.16.0:1522).
    """
    completion = part["completion_ids"][place, : row.length]
    if not bool(part["completion_mask"][place, : row.length].all()):
        return False
    prompt = part["prompt_ids"][place][part["prompt_mask"][place].bool()]
    return bool(torch.equal(torch.cat([prompt, completion]), row.tokens))
