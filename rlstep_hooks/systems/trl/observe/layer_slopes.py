"""The slope of the policy's layers at one row of a rollout, beside what their backward pass gives (`rlstep_hooks.observe.layer_slope`).

It is measured when a rollout is over: nothing of a loss's graph is held then, and one short row needs less memory than training does.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.clean_forward import hooked_by_others, why_not_alone
from rlstep_hooks.observe.compared import is_sloped
from rlstep_hooks.observe.forward_beside import base_of
from rlstep_hooks.observe.guard import Guard, contained
from rlstep_hooks.observe.layer_slope import faulty_layer, slope_of, why_no_slope
from rlstep_hooks.observe.slope_beside import LONGEST, SlopeBeside
from rlstep_hooks.record.values import SLOPE_EXPLAINED
from rlstep_hooks.systems.trl.observe.facts import compute_dtype, forward_noise
from rlstep_hooks.systems.trl.observe.scored_alone import IMAGES, row_at, shared_out
from rlstep_hooks.systems.trl.observe.sharded import why_no_rows_beside
from rlstep_hooks.systems.trl.observe.unwrapped import Unwrapped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.clean_forward import Row
    from rlstep_hooks.session.recorder import Recorder

TOPIC = "layer_slope"


class LayerSlopes:
    """Measures slopes of one trainer's policy.

    Args:
        trainer: A GRPOTrainer or RLOOTrainer whose training begins.
        recorder: Is told what cannot be measured.
        rows_hidden: Why no row can be taken out of a batch; empty where each can.
    """

    def __init__(self, trainer: Any, recorder: Recorder, rows_hidden: str = "") -> None:
        self._trainer = trainer
        self.recorder = recorder
        """Is told what cannot be measured."""
        self._unwrapped = Unwrapped(trainer.accelerator)
        self._guard = Guard(recorder, (TOPIC,))
        self._looks = False
        """Whether slopes are measured."""
        self._beside = False
        """Whether they are those of training's own passes, where no other may be made."""
        self._begun: SlopeBeside | None = None
        """What was seen of such passes since the latest rollout."""
        self._prepare(rows_hidden)

    @contained(TOPIC)
    def _prepare(self, rows_hidden: str) -> None:
        """Find out whether slopes can be measured, and in which passes."""
        trainer, model = self._trainer, self._unwrapped.of(self._trainer.model)
        self._beside = bool(shared_out(trainer))
        why = rows_hidden or (_why_not_beside(trainer, model) if self._beside else _why_not(trainer, model))
        self._looks = not why
        if why:
            self.recorder.cannot(TOPIC, why)

    @property
    def looks_beside(self) -> bool:
        """Whether training's own passes are followed."""
        return self._looks and self._beside

    def look(self, cycle: int, part: dict[str, Any]) -> dict[str, Any]:
        """Measure the slope at the first row of a rollout; waits for the device.

        Args:
            cycle: Of rollouts.
            part: The rollout, as the trainer holds it.

        Returns:
            Fields that `RolloutValues` has; empty where nothing is measured.
        """
        return self._looked(cycle, part) or {}

    @contained(TOPIC)
    def _looked(self, cycle: int, part: dict[str, Any]) -> dict[str, Any]:
        if self._beside:
            return self._seen_beside()
        if not self._looks or not is_sloped(cycle) or any(part.get(name) is not None for name in IMAGES):
            return {}
        trained = part["prompt_ids"].numel() + part["completion_ids"].numel()
        return self._measured(self._unwrapped.of(self._trainer.model), row_at(part, 0).tokens, trained)

    @contextmanager
    def beside(self, cycle: int, inputs: dict[str, Any]) -> Iterator[None]:
        """Follow training's own forward of a batch, which is made in this context, and its backward pass, where no other may be made.

        What is found is told with the next rollout.

        Args:
            cycle: Of rollouts.
            inputs: The batch, as the loss got it.
        """
        images = any(inputs.get(name) is not None for name in IMAGES)
        chosen = None if images or not (self._looks and self._beside and is_sloped(cycle + 1)) else _short_row(inputs)
        if chosen is None:
            yield
            return
        place, row = chosen
        self._begun = SlopeBeside(self._unwrapped.of(self._trainer.model), row, place, self._guard)
        with self._begun.beside():
            yield

    def _seen_beside(self) -> dict[str, Any]:
        begun, self._begun = self._begun, None
        slope = None if begun is None else begun.slope()
        if slope is None:
            return {}
        return {"slope_gap": slope.gap, "slope_doubt": slope.doubt}

    def _measured(self, model: Any, tokens: Any, trained: int) -> dict[str, Any]:
        # Hooks and adapters may have come since training began.
        why = why_no_slope(model)
        if hooked_by_others(model):
            why = "somebody's own hooks of the model's modules would see forwards that training does not make"
        slope = None if why else slope_of(model, tokens, trained)
        if slope is None:
            self._looks = False
            self.recorder.cannot(
                TOPIC,
                why or "no step is short enough for these layers and long enough for float32, to tell their slope",
            )
            return {}
        found: dict[str, Any] = {"slope_gap": slope.gap, "slope_doubt": slope.doubt}
        if slope.gap > SLOPE_EXPLAINED + slope.doubt:
            found["slope_layer"] = faulty_layer(model, tokens)
        return found


def _why_not(trainer: Any, model: Any) -> str:
    if noise := forward_noise(trainer):
        return f"{noise} makes each forward in training mode another one"
    return why_not_alone(model) or why_no_slope(model)


def _why_not_beside(trainer: Any, model: Any) -> str:
    if why := why_no_rows_beside(trainer, model):
        return why
    if compute_dtype(trainer) != "float32" or any(of.dtype != torch.float32 for of in model.parameters()):
        return "the layers are not in float32, and a small step would be rounded away"
    if torch.get_float32_matmul_precision() != "highest":
        return "matrices are multiplied in less than float32, which rounds a small step away"
    if getattr(base_of(model).config, "output_router_logits", False):
        return "a loss of the routers teaches the layers past their output"
    if not all(of.requires_grad for of in base_of(model).get_input_embeddings().parameters()):
        return "the embeddings are not trained, so no gradient arrives there"
    return ""


def _short_row(inputs: dict[str, Any]) -> tuple[int, Row] | None:
    """The shortest row with an advantage, and its place before it; None where there is none that is short enough."""
    lengths = inputs["prompt_mask"].bool().sum(1) + inputs["completion_mask"].bool().sum(1)
    advantages = (
        inputs["advantages"].detach().abs().flatten(1).amax(1)
        if inputs["advantages"].dim() > 1
        else inputs["advantages"]
    )
    teaches = (advantages != 0) & inputs["completion_mask"].bool().any(1) & (lengths <= LONGEST)
    places = teaches.nonzero().squeeze(1).tolist()
    if not places:
        return None
    place = min(places, key=lengths.tolist().__getitem__)
    return place, row_at(inputs, place)
