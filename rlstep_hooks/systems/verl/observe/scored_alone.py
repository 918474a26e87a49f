"""Rows of one micro-batch of old log-probs, scored again alone (`clean_forward`), beside what the engine of verl computed.

The engine pads or packs the rows of a micro-batch, and scores them by one forward of the model with all that wraps it
(workers/engine/fsdp/transformer_impl.py 0.9.1:1549). A row is scored by another call of the same, right behind it: in evaluation mode,
and with the same weights.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.judge.rules.precision import precision_class
from rlstep_hooks.judge.rules.ratio.values import MEAN_TOLERANCE
from rlstep_hooks.observe.clean_forward import CleanForward, Row, WholeModel, hooked_by_others, why_not_at_all
from rlstep_hooks.observe.scored_rows import SHARED_OUT, ScoredRows
from rlstep_hooks.systems.verl.observe.ranks import ranks_of
from rlstep_hooks.systems.verl.observe.samples import completion_rows, rows_of, unbound

if TYPE_CHECKING:
    from collections.abc import Callable


def look(scored: ScoredRows, engine: Any, data: Any, result: Any) -> None:
    """A forward of old log-probs was made: score rows of it again, if it is the one that is looked at.

    Args:
        scored: Says so, and compares.
        engine: verl's, in evaluation mode.
        data: The micro-batch, on the CPU.
        result: What the forward returned, on the device.
    """
    if not scored.wants():
        return
    if why := _why_not(engine, data):
        scored.cannot(why)
        return
    observed = result[1]["model_output"]["log_probs"]
    lengths = [int(row.numel()) for row in rows_of(data, "responses") or ()]
    sequences = [tokens.to(observed.device) for tokens in unbound(data["input_ids"])]
    model = WholeModel(engine.module, _autocast_of(engine), packs=_asks_for(data, "use_remove_padding", default=True))
    rows = [_row(tokens, length) for tokens, length in zip(sequences, lengths, strict=True)]
    clean = CleanForward(model, float(data["temperature"]))
    tolerance = MEAN_TOLERANCE[precision_class(str(_dtype_of(engine)).removeprefix("torch."))]
    scored.compare(clean, rows, completion_rows(observed, lengths), tolerance)


def _row(tokens: Any, length: int) -> Row:
    """A row, prompt and completion; verl has taken its padding off."""
    count = int(tokens.numel())
    return Row(tokens, torch.arange(count, device=tokens.device), length, count - length)


def _dtype_of(engine: Any) -> torch.dtype:
    """In which the engine's forward computes (transformer_impl.py:1558)."""
    dtype: torch.dtype = getattr(engine, "_autocast_dtype", torch.bfloat16)
    return dtype


def _autocast_of(engine: Any) -> Callable[[], Any]:
    """What gives the context of the engine's own forward (transformer_impl.py:1560)."""
    dtype = _dtype_of(engine)
    if dtype == torch.float32:
        return nullcontext
    device = next(engine.module.parameters()).device.type
    return lambda: torch.autocast(device_type=device, dtype=dtype)


def _why_not(engine: Any, data: Any) -> str:
    """Why no row can be scored alone; empty where rows can."""
    if ranks_of(engine) > 1:
        return SHARED_OUT
    if _asks_for(data, "use_fused_kernels"):
        return "fused kernels return no logits"
    names = set(data.keys())
    images = data["multi_modal_inputs"] if "multi_modal_inputs" in names else ()
    if any(getattr(of, "data", of) for of in images) or data["position_ids"].dim() == 3:
        return "rows with images are not scored alone"
    if (
        rows_of(data, "responses") is None
        or not data["input_ids"].is_nested
        or isinstance(data["temperature"], torch.Tensor)
    ):
        return "the rows of a micro-batch have a form that is not known"
    inner = getattr(engine.module, "_fsdp_wrapped_module", engine.module)
    if hooked_by_others(inner):
        return "somebody's own hooks of the model's modules would see forwards that training does not make"
    return why_not_at_all(inner)


def _asks_for(data: Any, name: str, *, default: bool = False) -> bool:
    """A setting that travels with a micro-batch (transformer_impl.py 0.9.1:1359)."""
    from verl.utils import tensordict_utils

    return bool(tensordict_utils.get_non_tensor_data(data=data, key=name, default=default))
