"""Whether training's own backward pass through a model's layers gives the slope of what their forward computes.

`rlstep_hooks.observe.layer_slope` makes forwards and backward passes of its own to see that. Where weights are shared out, none can
be made: here moved copies of one row go beside training's forward (`rlstep_hooks.observe.forward_beside`), and the gradients are those
that training's backward pass brings, at the output of the layers and at the embeddings. There is no second look, so few copies have
to tell the slope. Shapes: L tokens of the row, H numbers of each, S lengths of the step, K directions.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.forward_beside import Beside, RowsBeside, base_of
from rlstep_hooks.observe.layer_slope import FIRST_DIRECTIONS, FIRST_STEPS, Slope, explained_by
from rlstep_hooks.record.values import SLOPE_EXPLAINED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.clean_forward import Row
    from rlstep_hooks.observe.guard import Guard

LONGEST = 256
"""Tokens of a row that is looked at: 9 copies of it go through the layers."""
SAME = 1e-3
"""Distance of what the layers gave the row from what they give it alone, over the largest of the latter, below which both are one
forward. Where they are not, its log-probs are others too (RLS314), and slopes tell nothing more."""
KNOWN = 0.005
WRONG = 3
"""Distance, over the typical size of a slope, up to which two steps agree, and how many times as far as rounding and they explain the
backward pass is from what they found where it is wrong. Of 4 500 models of 5 architectures whose weights are 1 to 30 times as large as
they are drawn, none was accused so, and 8 of 750 with weights that are a hundred times too large, which have places that are smaller
than any step."""
_SEED = 813


class SlopeBeside:
    """The slope at one row of a batch that training makes a forward and a backward pass of.

    Args:
        model: For which `why_not_beside` is empty.
        row: Of no more than `LONGEST` tokens.
        place: Its place in the batch.
        guard: Contains errors inside the hooks.
    """

    def __init__(self, model: Any, row: Row, place: int, guard: Guard) -> None:
        self._model = model
        self._row = row
        self._place = place
        self._guard = guard
        self._directions: Tensor | None = None
        """(K, L, H)."""
        self._steps: Tensor | None = None
        """(S,), by which they are moved."""
        self._moved: Tensor | None = None
        """(2, S, K, L, H), the output of the layers for moves to either side."""
        self._at_outputs: Tensor | None = None
        """(L, H), the gradient at the output of the layers."""
        self._given: Tensor | None = None
        """(L, H), what the layers gave the row in its batch."""
        self._distance: Tensor | None = None
        """() how far that is from what they give the row alone."""
        self._elsewhere: Tensor | None = None
        """The size of what the loss teaches the row at padding: () above 0 where it does."""
        self._found: tuple[Tensor, Tensor, Tensor] | None = None

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Move copies of the row beside the first forward that is made in this context, and follow its gradients."""
        base = base_of(self._model)
        copies = 1 + 2 * len(FIRST_STEPS) * FIRST_DIRECTIONS
        rows = RowsBeside(self._model, self._row.tokens.expand(copies, -1), at_embeddings=self._move)

        def embedded(module: Any, args: Any, output: Any) -> None:
            with self._guard:
                self._follow(output, self._arrives_at_embeddings)

        def came_out(module: Any, args: Any, output: Any) -> None:
            with self._guard:
                hidden = output.last_hidden_state
                if self._follow(hidden, self._arrives_at_outputs):
                    self._given = hidden.detach()[self._place, self._row.places]

        handles = [
            base.get_input_embeddings().register_forward_hook(embedded),
            base.base_model.register_forward_hook(came_out),
        ]
        try:
            with Beside(self._model, [rows], self._guard):
                yield
            if rows.hidden is not None and self._given is not None:
                alone, self._moved = (
                    rows.hidden[0],
                    rows.hidden[1:].unflatten(0, (2, len(FIRST_STEPS), FIRST_DIRECTIONS)),
                )
                self._distance = (alone - self._given).abs().amax() / alone.abs().amax()
            self._given = None
        finally:
            for handle in handles:
                handle.remove()

    def slope(self) -> Slope | None:
        """The slope that the backward pass gave, beside that of the outputs; waits for the device.

        Returns:
            None where no gradient has come through, where the loss teaches padding too, where the layers gave the row something else
            in its batch than alone, or no length of the step tells the slope.
        """
        if self._found is None or self._elsewhere is None or self._distance is None:
            return None
        if float(self._elsewhere) or not float(self._distance) <= SAME:
            return None
        return slope_by(*self._found)

    def _move(self, numbers: Tensor) -> Tensor:
        draw = torch.Generator(device=numbers.device).manual_seed(_SEED)
        one = numbers[0]
        self._directions = torch.randn((FIRST_DIRECTIONS, *one.shape), generator=draw, device=one.device)
        size = one.square().mean().sqrt()
        self._steps = size * torch.tensor(FIRST_STEPS, device=one.device)
        moves = self._steps.view(-1, 1, 1, 1) * self._directions
        return numbers + torch.cat([torch.zeros_like(one).unsqueeze(0), torch.stack([moves, -moves]).flatten(0, 2)])

    def _follow(self, numbers: Tensor, arrives: Any) -> bool:
        """Whether the gradient at these numbers will be seen."""
        follows = bool(numbers.requires_grad and numbers.dim() == 3 and numbers.shape[1] >= self._row.padded.shape[0])
        if follows:
            numbers.register_hook(arrives)
        return follows

    def _of_row(self, gradient: Tensor) -> Tensor:
        return gradient.detach()[self._place, self._row.places].double()

    def _arrives_at_outputs(self, gradient: Tensor) -> None:
        with self._guard:
            self._at_outputs = self._of_row(gradient)
            elsewhere = gradient.detach()[self._place].abs().sum(1)
            elsewhere[self._row.places] = 0
            self._elsewhere = elsewhere.sum()

    def _arrives_at_embeddings(self, gradient: Tensor) -> None:
        with self._guard, torch.no_grad():
            moved, outputs, directions, steps = self._moved, self._at_outputs, self._directions, self._steps
            self._moved = self._at_outputs = self._directions = None
            if moved is None or outputs is None or directions is None or steps is None:
                return
            ahead, behind = moved.double()
            by_outputs = ((ahead - behind) * outputs).flatten(2).sum(2) / (2 * steps.double().unsqueeze(1))
            at_row = self._of_row(gradient)
            by_backward = (directions.double() * at_row).flatten(1).sum(1)
            self._found = by_outputs, by_backward, at_row.norm()


def slope_by(by_outputs: Tensor, by_backward: Tensor, typical: Tensor) -> Slope | None:
    """Compare slopes in some directions.

    Args:
        by_outputs: (S, K), as outputs tell them, by steps that become shorter.
        by_backward: (K,), as the backward pass tells them.
        typical: (), the size of its gradient.

    Returns:
        The slope by the first step that finds that of the backward pass; else by the first two that agree in all directions. None where
        none do, where what is between them and the backward pass may come from a steep place that is smaller than the steps, or
        nothing was taught.
    """
    for slopes in by_outputs:
        if (found := explained_by(slopes, by_backward, typical)) is not None:
            return found
    for before, slopes in itertools.pairwise(by_outputs):
        own = slopes.square().mean().sqrt()
        doubt = float(((slopes - before).abs() / own).amax())
        gap = float((slopes - by_backward).abs().amax() / torch.maximum(typical, own))
        if doubt <= KNOWN and gap >= WRONG * (SLOPE_EXPLAINED + doubt):
            return Slope(gap, doubt)
    return None
