"""Rows of one micro-batch of a compared cycle, scored again alone (`rlstep_hooks.observe.clean_forward`), beside what the loss got."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.judge.rules.precision import precision_class
from rlstep_hooks.judge.rules.ratio.values import MEAN_TOLERANCE
from rlstep_hooks.observe.clean_forward import (
    CleanForward,
    CleanGap,
    LayersAndHead,
    Row,
    fields_of,
    hooked_by_others,
    row_of,
    why_not_alone,
)
from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.record.cadence import ALL_OF_FIRST
from rlstep_hooks.systems.trl.observe.facts import compute_dtype, forward_noise

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.session.recorder import Recorder

_IMAGES = ("pixel_values", "image_grid_thw", "token_type_ids", "mm_token_type_ids")
TOPIC = "clean_forward"


class ScoredAlone:
    """Scores rows of one trainer's micro-batches.

    Args:
        trainer: A GRPOTrainer or RLOOTrainer whose training begins.
        recorder: Is told what cannot be scored.
    """

    def __init__(self, trainer: Any, recorder: Recorder) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self.guard = Guard(recorder, (TOPIC,))
        self._why = ""
        self._in_turn = False
        with self.guard:
            self._why = _why_not(trainer)
        if self._why:
            recorder.cannot(TOPIC, self._why)
        self._temperature = float(getattr(trainer, "temperature", 1.0))  # 0.16.0 has none in the loss

    def look(self, cycle: int, inputs: dict[str, Any], new: Tensor, old: Tensor | None) -> dict[str, Any]:
        """The fields of `MicroBatchValues`; of the loss's log-probs or the old ones, whichever are farther from the clean ones.

        Args:
            cycle: Of rollouts.
            inputs: What the loss got.
            new: (B, T), log-probs of the loss, before any update on them.
            old: (B, T), old log-probs that the weights of the loss should give; None where they should not.
        """
        if self._why or any(inputs.get(name) is not None for name in _IMAGES):
            if not self._why:
                self._recorder.cannot(TOPIC, "rows with images are not scored alone")
            return {}
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        if hooked_by_others(model):
            self._recorder.cannot(
                TOPIC, "somebody's own hooks of the model's modules would see forwards that training does not make"
            )
            return {}
        lengths = inputs["completion_mask"].bool().sum(1).tolist()
        prompts = inputs["prompt_mask"].bool().sum(1).tolist()
        places = [place for place, length in enumerate(lengths) if length]
        if not places:
            return {}
        # The row with the most padding, and one that changes from cycle to cycle; later one of the two in turn.
        most_padding, changing = min(places, key=prompts.__getitem__), places[cycle % len(places)]
        self._in_turn = not self._in_turn
        later = (most_padding,) if self._in_turn else (changing,)
        chosen = {most_padding, changing} if cycle < ALL_OF_FIRST else later
        rows = {place: _row(inputs, place) for place in places}
        clean = CleanForward(LayersAndHead(model, self._trainer.accelerator.autocast), self._temperature)
        tolerance = MEAN_TOLERANCE[precision_class(compute_dtype(self._trainer))]
        found: list[tuple[str, CleanGap]] = []
        for place in chosen:
            row = rows[place]
            scored = clean.score(row)
            others = [rows[near] for near in sorted(places, key=lambda of: abs(of - place)) if near != place]
            for of, observed in (("the loss", new), ("the old log-probs", old)):
                if observed is not None:
                    seen = observed[place, : row.length]
                    found.append((of, clean.compare(row, scored, seen, tolerance, others)))
        return fields_of(found)


def _row(inputs: dict[str, Any], place: int) -> Row:
    names = "prompt_ids", "prompt_mask", "completion_ids", "completion_mask"
    return row_of(*(inputs[name][place] for name in names))


def _why_not(trainer: Any) -> str:
    if (
        trainer.accelerator.num_processes > 1
        or getattr(trainer, "is_fsdp_enabled", False)
        or getattr(trainer, "is_deepspeed_enabled", False)
    ):
        return (
            "the model may be shared out among processes, and a forward of one of them alone would wait for the others"
        )
    if noise := forward_noise(trainer):
        return f"{noise} makes each forward in training mode another one"
    return why_not_alone(trainer.accelerator.unwrap_model(trainer.model))
