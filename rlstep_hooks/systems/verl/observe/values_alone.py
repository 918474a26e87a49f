"""Values of two rows of one micro-batch, computed again alone, beside those that verl's critic gave.

The critic is a model of transformers with a head of one number, whose output the engine takes for values
(workers/engine/fsdp/transformer_impl.py 0.9.1:1595). A row is computed by another call of the same model in evaluation mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.clean_forward import WholeModel
from rlstep_hooks.observe.clean_values import farthest, fields_of_values
from rlstep_hooks.systems.verl.observe import scored_alone
from rlstep_hooks.systems.verl.observe.samples import completion_rows, rows_of, unbound

if TYPE_CHECKING:
    from rlstep_hooks.observe.scored_rows import ScoredRows

HEADS = ("score", "classifier")
"""Names of the head of transformers' models for token classification."""
UNKNOWN_HEAD = "the critic's head is not known"


def look(scored: ScoredRows, engine: Any, data: Any, result: Any) -> dict[str, Any]:
    """The values of a micro-batch were computed: compute two rows of it again, if it is the one that is looked at.

    Args:
        scored: Says so, and is told what cannot be computed.
        engine: verl's, in evaluation mode.
        data: The micro-batch, on the CPU.
        result: What the forward returned, on the device.

    Returns:
        Fields of `MicroBatchValues`; none where no row was looked at.
    """
    if not scored.wants():
        return {}
    head = head_of(engine.module)
    if why := scored_alone.why_not(engine, data) or ("" if head is not None else UNKNOWN_HEAD):
        scored.cannot(why)
        return {}
    lengths = [int(row.numel()) for row in rows_of(data, "responses") or ()]
    sequences = unbound(data["input_ids"])
    given = completion_rows(result[1]["model_output"]["values"], lengths)
    places = [place for place, length in enumerate(lengths) if length]
    chosen = {max(places, key=lengths.__getitem__), places[len(places) // 2]} if places else set[int]()
    model = WholeModel(engine.module, scored_alone.autocast_of(engine), packs=scored_alone.packs(data))
    device = next(engine.module.parameters()).device
    return farthest(
        _of_row(model, head, sequences[place].to(device), lengths[place], given[place], scored_alone.dtype_of(engine))
        for place in chosen
    )


def head_of(module: Any) -> Any | None:
    """The critic's head; None where it has none of the known names."""
    inner = getattr(module, "_fsdp_wrapped_module", module)
    return next(
        (getattr(inner, name) for name in HEADS if isinstance(getattr(inner, name, None), torch.nn.Linear)), None
    )


def _of_row(
    model: WholeModel, head: Any, tokens: Tensor, length: int, given: Tensor, dtype: torch.dtype
) -> dict[str, Any]:
    seen: list[Tensor] = []

    def before(module: Any, inputs: tuple[Tensor, ...]) -> None:
        # The weights of a head that is shared out are whole within the forward alone.
        seen.append(inputs[0][0].detach().abs().float() @ module.weight.detach().abs().float().squeeze(0))

    hook = head.register_forward_pre_hook(before)
    try:
        values = model.outputs(tokens).squeeze(-1)
    finally:
        hook.remove()
    return fields_of_row(given, values, seen[0], length, dtype)


def fields_of_row(given: Tensor, values: Tensor, sizes: Tensor, length: int, dtype: torch.dtype) -> dict[str, Any]:
    """Compare the values of one row with those of the row alone; waits for the device.

    Args:
        given: (C,), what the critic gave for the completion.
        values: (L,), of the row alone, at each of its tokens.
        sizes: (L,), the sizes of what each value is added up from.
        length: C, the tokens of the completion.
        dtype: In which the engine computes.

    Returns:
        Fields of `MicroBatchValues`.
    """
    counted = torch.zeros(values.shape, dtype=torch.bool)
    counted[-length - 1 : -1] = True
    return fields_of_values(given.detach().float().cpu(), values.float().cpu(), sizes.cpu(), counted, dtype)
