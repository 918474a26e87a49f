"""The slope of the policy's layers at one row of a rollout, beside what their backward pass gives (`rlstep_hooks.observe.layer_slope`).

It is measured when a rollout is over: nothing of a loss's graph is held then, and one short row needs less memory than training does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.clean_forward import hooked_by_others, why_not_alone
from rlstep_hooks.observe.compared import is_sloped
from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.layer_slope import faulty_layer, slope_of, why_no_slope
from rlstep_hooks.record.values import SLOPE_EXPLAINED
from rlstep_hooks.systems.trl.observe.facts import forward_noise
from rlstep_hooks.systems.trl.observe.scored_alone import IMAGES, row_at, shared_out
from rlstep_hooks.systems.trl.observe.unwrapped import Unwrapped

if TYPE_CHECKING:
    from rlstep_hooks.session.recorder import Recorder

TOPIC = "layer_slope"


class LayerSlopes:
    """Measures slopes of one trainer's policy.

    Args:
        trainer: A GRPOTrainer or RLOOTrainer whose training begins.
        recorder: Is told what cannot be measured.
    """

    def __init__(self, trainer: Any, recorder: Recorder) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._unwrapped = Unwrapped(trainer.accelerator)
        self._guard = Guard(recorder, (TOPIC,))
        self._looks = False
        """Whether slopes are measured."""
        with self._guard:
            why = shared_out(trainer) or _why_not(trainer, self._unwrapped.of(trainer.model))
            self._looks = not why
            if why:
                recorder.cannot(TOPIC, why)

    def look(self, cycle: int, part: dict[str, Any]) -> dict[str, Any]:
        """Measure the slope at the first row of a rollout; waits for the device.

        Args:
            cycle: Of rollouts.
            part: The rollout, as the trainer holds it.

        Returns:
            Fields that `RolloutValues` has; empty where nothing is measured.
        """
        if not self._looks or not is_sloped(cycle) or any(part.get(name) is not None for name in IMAGES):
            return {}
        with self._guard:
            return self._measured(self._unwrapped.of(self._trainer.model), row_at(part, 0).tokens)
        return {}

    def _measured(self, model: Any, tokens: Any) -> dict[str, Any]:
        # Hooks and adapters may have come since training began.
        why = why_no_slope(model)
        if hooked_by_others(model):
            why = "somebody's own hooks of the model's modules would see forwards that training does not make"
        slope = None if why else slope_of(model, tokens)
        if slope is None:
            self._looks = False
            self._recorder.cannot(
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
