"""The slope of the policy's layers at one row that is trained, beside what training's own backward pass gives
(`rlstep_hooks.observe.slope_beside`).

verl shards a model on one process as well, so none of its modules is called but by training: moved copies of the row go beside the
forward of a micro-batch (transformer_impl.py 0.9.1:1549), and its backward pass brings the gradients.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.clean_forward import Row, hooked_by_others
from rlstep_hooks.observe.compared import is_sloped
from rlstep_hooks.observe.forward_beside import (
    base_of,
    inside_of,
    is_flat,
    is_sharded_by_modules,
    replaced_forwards,
    why_not_beside,
)
from rlstep_hooks.observe.guard import Guard, contained
from rlstep_hooks.observe.slope_beside import LONGEST, SlopeBeside
from rlstep_hooks.systems.verl.observe.samples import rows_of, unbound
from rlstep_hooks.systems.verl.observe.scored_alone import dtype_of, has_images, noise_of, packs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.guard import GapRecorder

TOPIC = "layer_slope"


class LayerSlopes:
    """Follows one row of a rollout in the cycles in which slopes are measured.

    Args:
        recorder: Is told what cannot be measured.
    """

    def __init__(self, recorder: GapRecorder) -> None:
        self.recorder = recorder
        """Is told what cannot be measured."""
        self._guard = Guard(recorder, (TOPIC,))
        self._impossible = False
        self._cycle = -1
        """The latest cycle in which a row was followed."""
        self._begun: SlopeBeside | None = None

    @contextmanager
    def beside(self, cycle: int, engine: Any, data: Any) -> Iterator[None]:
        """Follow training's forward of a micro-batch, which is made in this context, and its backward pass.

        Args:
            cycle: Of rollouts.
            engine: The policy's.
            data: The micro-batch, on the CPU.
        """
        slope = None
        if not self._impossible and cycle > self._cycle and is_sloped(cycle):
            slope = self._of_micro_batch(engine, data)
        if slope is None:
            yield
            return
        self._cycle, self._begun = cycle, slope
        with slope.beside():
            yield

    @contained(TOPIC)
    def take(self) -> dict[str, Any]:
        """What was found since the last call, as fields of `RolloutValues`; waits for the device."""
        begun, self._begun = self._begun, None
        slope = None if begun is None else begun.slope()
        return {} if slope is None else {"slope_gap": slope.gap, "slope_doubt": slope.doubt}

    @contained(TOPIC)
    def _of_micro_batch(self, engine: Any, data: Any) -> SlopeBeside | None:
        """What follows a row of a micro-batch; None where none can be followed."""
        if why := _why_not(engine, data):
            self._impossible = True
            self.recorder.cannot(TOPIC, why)
            return None
        chosen = _short_row(engine, data)
        return None if chosen is None else SlopeBeside(inside_of(engine.module), chosen[1], chosen[0], self._guard)


def _short_row(engine: Any, data: Any) -> tuple[int, Row] | None:
    """The shortest row with an advantage, and its place before it; None where there is none that is short enough."""
    advantages, sequences = rows_of(data, "advantages"), unbound(data["input_ids"])
    completions = rows_of(data, "responses")
    if advantages is None or completions is None:
        return None
    teaching = [
        place
        for place, (row, tokens) in enumerate(zip(advantages, sequences, strict=True))
        if row.numel() and bool(row.any()) and tokens.numel() <= LONGEST
    ]
    if not teaching:
        return None
    place = min(teaching, key=lambda of: int(sequences[of].numel()))
    tokens = sequences[place].to(next(engine.module.parameters()).device)
    count, length = int(tokens.numel()), int(completions[place].numel())
    return place, Row(tokens, torch.arange(count, device=tokens.device), length, count - length)


def _why_not(engine: Any, data: Any) -> str:
    """Why no slope can be measured; empty where one can."""
    model = inside_of(engine.module)
    if not (is_sharded_by_modules(model) or is_flat(engine.module)):
        return "the engine does not shard its model by FSDP"
    if (
        packs(data)
        or not data["input_ids"].is_nested
        or int(getattr(engine, "ulysses_sequence_parallel_size", 1) or 1) > 1
    ):
        return "the rows of a micro-batch are packed (use_remove_padding), and no copy of one can go beside them"
    if has_images(data):
        return "rows with images are not followed"
    if dtype_of(engine) != torch.float32 or any(of.dtype != torch.float32 for of in engine.module.parameters()):
        return "the layers are not in float32, and a small step would be rounded away"
    if torch.get_float32_matmul_precision() != "highest":
        return "matrices are multiplied in less than float32, which rounds a small step away"
    if noise := noise_of(engine):
        return noise
    if getattr(base_of(model).config, "output_router_logits", False):
        return "a loss of the routers teaches the layers past their output"
    if not all(of.requires_grad for of in base_of(model).get_input_embeddings().parameters()):
        return "the embeddings are not trained, so no gradient arrives there"
    if replaced_forwards(model) or hooked_by_others(model, "verl."):
        return "somebody's own hooks or forwards of the model's modules may change what these give"
    return why_not_beside(model)
