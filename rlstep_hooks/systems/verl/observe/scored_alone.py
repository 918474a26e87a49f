"""Rows of one micro-batch, scored again alone (`clean_forward`), beside what the engine of verl computed.

The engine pads or packs the rows of a micro-batch, and scores them by one forward of the model with all that wraps it
(workers/engine/fsdp/transformer_impl.py 0.9.1:1549). A row is scored by another call of the same in evaluation mode, and with the same
weights: behind a forward of old log-probs or of the reference, and before one of training, whose backward comes next.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.judge.rules.precision import precision_class
from rlstep_hooks.judge.rules.ratio.values import MEAN_TOLERANCE
from rlstep_hooks.observe.clean_entropies import entropy_fields
from rlstep_hooks.observe.clean_forward import (
    CleanForward,
    Row,
    WholeModel,
    fields_of,
    hooked_by_others,
    why_not_at_all,
)
from rlstep_hooks.observe.model_modes import adapters, evaluating, merged_adapters
from rlstep_hooks.observe.scored_rows import SHARED_OUT, Scored, ScoredRows
from rlstep_hooks.systems.verl.observe.ranks import ranks_of
from rlstep_hooks.systems.verl.observe.samples import completion_rows, rows_of, unbound

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.observe.guard import GapRecorder


def look(
    scored: ScoredRows, engine: Any, data: Any, result: Any, temperature: float | None, *, reference: bool = False
) -> None:
    """A forward of old log-probs or of the reference was made: score rows of it again, if it is the one that is looked at.

    Args:
        scored: Says so, and compares.
        engine: verl's, in evaluation mode.
        data: The micro-batch, on the CPU.
        result: What the forward returned, on the device.
        temperature: The one that is configured; None where it is not known.
        reference: Whether the reference scores: the model without its adapters, where it has any (docs/advance/ppo_lora.rst).
    """
    if not scored.wants():
        return
    if why := why_not(engine, data, reference=reference):
        scored.cannot(why)
        return
    rows, lengths = rows_and_lengths(engine, data)
    observed = completion_rows(result[1]["model_output"]["log_probs"], lengths)
    with adapters(engine.module, switched_off=True) if reference else nullcontext():
        scored.compare(_clean(engine, data, temperature), rows, observed, tolerance_of(engine))


class TrainedAlone:
    """Scores rows of two micro-batches that a rollout is trained with: in the first updates, and in later ones.

    Args:
        recorder: Is told what cannot be scored.
    """

    def __init__(self, recorder: GapRecorder) -> None:
        self.rows = ScoredRows(recorder, looks=2)
        """Says which micro-batches are looked at."""
        self._scored: list[Scored] = []

    def begin(self) -> None:
        """The updates on a rollout begin."""
        self.rows.begin()

    def end(self) -> None:
        """The updates on a rollout are made."""
        self.rows.end()

    def before(self, engine: Any, data: Any, temperature: float | None) -> None:
        """A forward of training comes next.

        Args:
            engine: verl's, in training mode.
            data: The micro-batch, on the CPU.
            temperature: The one that is configured; None where it is not known.
        """
        self._scored = []
        if not self.rows.wants():
            return
        if why := why_not(engine, data) or noise_of(engine):
            self.rows.cannot(why)
            return
        rows, _ = rows_and_lengths(engine, data)
        with evaluating(engine.module):
            self._scored = self.rows.score(_clean(engine, data, temperature), rows)

    def after(self, engine: Any, data: Any, output: Any, temperature: float | None) -> dict[str, Any]:
        """The forward is done.

        Args:
            engine: verl's.
            data: The micro-batch, on the CPU.
            output: The model's, detached, which its loss was computed from.
            temperature: The one that is configured; None where it is not known.

        Returns:
            Fields of `MicroBatchValues`; none where no row was scored.
        """
        scored, self._scored = self._scored, []
        if not scored:
            return {}
        clean, tolerance = _clean(engine, data, temperature), tolerance_of(engine)
        lengths = [int(row.numel()) for row in rows_of(data, "responses") or ()]
        observed = completion_rows(output["log_probs"], lengths)
        with evaluating(engine.module):
            found = [
                (
                    "the loss",
                    clean.compare(each.row, each.log_probs, observed[each.place], tolerance, each.neighbours),
                )
                for each in scored
            ]
        entropies = []
        if output.get("entropy") is not None:
            of_loss = completion_rows(output["entropy"], lengths)
            entropies = [entropy_fields(each.entropies, of_loss[each.place], tolerance) for each in scored]
        return fields_of(found) | max(entropies, key=lambda of: of["entropy_gap"], default={})


def _clean(engine: Any, data: Any, temperature: float | None) -> CleanForward:
    """What scores rows of a micro-batch alone."""
    model = WholeModel(engine.module, autocast_of(engine), packs=packs(data))
    return CleanForward(model, temperature_of(data, temperature))


def temperature_of(data: Any, configured: float | None) -> float:
    """The temperature of a micro-batch: the one that is configured, or where that is not known the one that comes with it."""
    return float(data["temperature"]) if configured is None else configured


def packs(data: Any) -> bool:
    """Whether the rows of a micro-batch are packed."""
    return _asks_for(data, "use_remove_padding", default=True)


def rows_and_lengths(engine: Any, data: Any) -> tuple[list[Row], list[int]]:
    """The rows of a micro-batch on the device, and the lengths of their completions."""
    device = next(engine.module.parameters()).device
    lengths = [int(row.numel()) for row in rows_of(data, "responses") or ()]
    sequences = [tokens.to(device) for tokens in unbound(data["input_ids"])]
    return [_row(tokens, length) for tokens, length in zip(sequences, lengths, strict=True)], lengths


def tolerance_of(engine: Any) -> float:
    """The mean distance that rounding explains."""
    return MEAN_TOLERANCE[precision_class(str(dtype_of(engine)).removeprefix("torch."))]


def _row(tokens: Any, length: int) -> Row:
    """A row, prompt and completion; verl has taken its padding off."""
    count = int(tokens.numel())
    return Row(tokens, torch.arange(count, device=tokens.device), length, count - length)


def dtype_of(engine: Any) -> torch.dtype:
    """The dtype in which the engine's forward computes (transformer_impl.py:1558)."""
    dtype: torch.dtype = getattr(engine, "_autocast_dtype", torch.bfloat16)
    return dtype


def autocast_of(engine: Any) -> Callable[[], Any]:
    """What gives the context of the engine's own forward (transformer_impl.py:1560)."""
    dtype = dtype_of(engine)
    if dtype == torch.float32:
        return nullcontext
    device = next(engine.module.parameters()).device.type
    return lambda: torch.autocast(device_type=device, dtype=dtype)


def noise_of(engine: Any) -> str:
    """Why the forward of training is another one than that in evaluation mode; empty where it is the same."""
    dropout = any(isinstance(of, torch.nn.Dropout) and of.p > 0 for of in engine.module.modules())
    attention = getattr(getattr(engine.module, "config", None), "attention_dropout", 0.0)
    return "dropout makes each forward in training mode another one" if dropout or attention else ""


def why_not(engine: Any, data: Any, *, reference: bool = False) -> str:
    """Why no row can be scored alone; empty where rows can."""
    if ranks_of(engine) > 1:
        return SHARED_OUT
    if reference and merged_adapters(engine.module):
        return "adapters are merged into the weights, and switching them off would write to these"
    if why := why_not_of_rows(data):
        return why
    inner = getattr(engine.module, "_fsdp_wrapped_module", engine.module)
    if hooked_by_others(inner, "verl."):
        return "somebody's own hooks of the model's modules would see forwards that training does not make"
    return why_not_at_all(inner)


def why_not_of_rows(data: Any) -> str:
    """Why rows of a micro-batch cannot be taken out of it and scored; empty where they can."""
    if _asks_for(data, "use_fused_kernels"):
        return "fused kernels return no logits"
    if has_images(data):
        return "rows with images are not scored alone"
    if (
        rows_of(data, "responses") is None
        or not data["input_ids"].is_nested
        or isinstance(data["temperature"], torch.Tensor)
    ):
        return "the rows of a micro-batch have a form that is not known"
    return ""


def has_images(data: Any) -> bool:
    """Whether rows of a micro-batch have images, or positions as only rows with images have them."""
    images = data["multi_modal_inputs"] if "multi_modal_inputs" in set(data.keys()) else ()
    return any(getattr(of, "data", of) for of in images) or bool(data["position_ids"].dim() == 3)


def _asks_for(data: Any, name: str, *, default: bool = False) -> bool:
    """A setting that travels with a micro-batch (transformer_impl.py 0.9.1:1359)."""
    from verl.utils import tensordict_utils

    return bool(tensordict_utils.get_non_tensor_data(data=data, key=name, default=default))
