"""Mistakes of the forward that computes log-probs, in single rollouts: in the refresh and in the loss alike, so that the ratio is 1.

verl imports this module in every process. `RLSTEP_TEST_FORWARD=positions_of_completion@1,temperature_left_out@2` names mistakes and the
rollouts (from 0) that they are made in.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from collections.abc import Callable

MODULE = __name__
VARIABLE = "RLSTEP_TEST_FORWARD"
ENGINE = "verl.workers.engine.fsdp.transformer_impl"
WORKERS = "verl.workers.engine_workers"


def _positions_of_completion(data: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    """Positions begin again at the completion."""
    lengths = data["input_ids"].offsets().diff() - data["responses"].offsets().diff()
    positions = inputs["position_ids"] = inputs["position_ids"].clone()
    for row, prompt in enumerate(lengths.tolist()):
        positions[row, prompt:] -= prompt


def _temperature_left_out(data: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    """Logits are not divided by the temperature."""
    for name in ("temperature", "temperature_rmpad"):
        if name in outputs:
            outputs[name] = outputs[name] * 0 + 1


def _prompt_not_attended_to(data: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    """The first tokens of each prompt are masked."""
    mask = inputs["attention_mask"] = inputs["attention_mask"].clone()
    mask[:, :4] = 0


def _rows_not_apart(data: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    """Packed rows have the positions of one long row, so that each attends to those before it."""
    positions = inputs["position_ids"]
    inputs["position_ids"] = positions.new_tensor(range(positions.shape[-1])).unsqueeze(0)


FAULTS: dict[str, Callable[[Any, dict[str, Any], dict[str, Any]], None]] = {
    "positions_of_completion": _positions_of_completion,
    "temperature_left_out": _temperature_left_out,
    "prompt_not_attended_to": _prompt_not_attended_to,
    "rows_not_apart": _rows_not_apart,
}


def _install() -> None:
    wanted = dict(pair.split("@") for pair in os.environ.get(VARIABLE, "").split(",") if pair)
    refreshes = itertools.count()
    now = [-1]

    def refresh(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        now[0] = next(refreshes)
        return wrapped(*args, **kwargs)

    def prepared(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        inputs, outputs = wrapped(*args, **kwargs)
        data = kwargs.get("micro_batch", args[0] if args else None)
        for name, at in wanted.items():
            if int(at) == now[0]:
                FAULTS[name](data, inputs, outputs)
        return inputs, outputs

    wrapt.register_post_import_hook(
        lambda module: wrapt.wrap_function_wrapper(module, "ActorRolloutRefWorker.compute_log_prob", refresh), WORKERS
    )
    wrapt.register_post_import_hook(
        lambda module: wrapt.wrap_function_wrapper(module, "FSDPEngineWithLMHead.prepare_model_inputs", prepared),
        ENGINE,
    )


_install()
