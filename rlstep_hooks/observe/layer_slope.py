"""Whether the backward pass through a model's layers gives the slope of what their forward computes.

Autograd follows the formulas that each module brings along: a fused kernel, a checkpoint or a `detach()` between two layers can bring
others, and loss and log-probs stay as they are. The slope itself needs no such formula. Embeddings of one row are moved a little to
either side, in directions drawn at random, and the layers' outputs say how they follow.

A first look takes two directions. Where one length of the step finds the slope of the backward pass in both, that is no chance, and
healthy layers cost no more than this. A first look accuses nobody: where it finds another slope, more directions and steps tell whether
the steps were too long or the backward pass is wrong. Shapes: L tokens of the row, H numbers of each, K directions.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.clean_forward import unseen
from rlstep_hooks.record.values import SLOPE_EXPLAINED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TOKENS = 128
"""Tokens of the row, from its beginning: a causal model takes them for a row of its own."""
FIRST_DIRECTIONS = 2
FIRST_STEPS = 3e-3, 1e-3
"""What the first look takes. Of gradients that are wrong by a tenth of their size it misses one in about 1 000, since directions drawn
at random lie across the mistake that seldom."""
FEWEST_TOKENS = 16
TRAINED_PER_TOKEN = 120
"""Tokens of a rollout for each token of the row that the first look takes, so that it costs about a hundredth of a cycle: it makes the
passes of 7 such rows, seldom of 11, and for each token of a rollout a cycle makes about 9."""
DIRECTIONS = 6
ENOUGH = 4
"""Directions whose slope has to be known: in some an expert of a mixture may be chosen on one side and not on the other."""
STEPS = 1e-2, 3e-3, 1e-3, 3e-4, 1e-4
"""Lengths of the steps to either side, over the typical size of what is moved."""
KNOWN = 0.02
"""Two neighbouring steps that agree as well as this tell the slope, if the backward pass says the same of it at the end of the shorter
one; that step is about ten times as near to it."""
_SEED = 813


class Slope(msgspec.Struct, frozen=True):
    """The slopes in some directions, as a backward pass and as the outputs tell them.

    Distances are over the typical size of a slope in a direction drawn at random: the size of the gradient for those of the backward
    pass, their mean square for those of the outputs.
    """

    gap: float
    """The largest distance between what the backward pass and the outputs say in directions where the latter is known, over the
    larger of both sizes."""
    doubt: float
    """The largest distance in these between what two lengths of the step say, over the size of the latter, or between what the backward
    pass says at the row and beside it; 0 where a first look found no gap."""


def why_no_slope(model: Any) -> str:
    """Why the slope of a model's layers cannot be measured; empty where it can."""
    if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
        return "the layers are not in float32, and a small step would be rounded away"
    if torch.get_float32_matmul_precision() != "highest":
        return "matrices are multiplied in less than float32, which rounds a small step away"
    if any(module._backward_hooks or module._backward_pre_hooks for module in model.modules()):
        return "backward hooks of modules would see a backward pass that training does not make"
    base = _base(model)
    if getattr(base, "is_gradient_checkpointing", False) and _is_reentrant(base):
        return "reentrant gradient checkpointing allows no backward pass to a single tensor"
    return ""


def slope_of(model: Any, tokens: Tensor, trained: int) -> Slope | None:
    """Measure the slope of the layers at one row; waits for the device.

    Args:
        model: A transformers model, or PEFT's wrapper of one, whose layers and head are apart.
        tokens: (L,), the row.
        trained: Tokens of the rollout that the row is of.

    Returns:
        The slope at the embeddings; None where no length of the step tells it.
    """
    base = _base(model)
    layers, place = base.base_model, _OutputOf(base.get_input_embeddings())
    few = min(max(trained // TRAINED_PER_TOKEN, FEWEST_TOKENS), TOKENS)
    return _first_look(layers, place, tokens[:few]) or _measured(layers, place, tokens[:TOKENS])


def explained_by(by_outputs: Tensor, by_backward: Tensor, typical: Tensor) -> Slope | None:
    """What a first look says of slopes in some directions.

    Args:
        by_outputs: (K,), as outputs tell them, by one length of the step.
        by_backward: (K,), as the backward pass tells them.
        typical: (), the size of its gradient.

    Returns:
        None where they are not the same, which may be because of the length of the step, or nothing was taught.
    """
    own = by_outputs.square().mean().sqrt()
    gap = float(((by_outputs - by_backward).abs() / torch.maximum(typical, own)).amax())
    return Slope(gap, 0.0) if gap <= SLOPE_EXPLAINED else None


def faulty_layer(model: Any, tokens: Tensor) -> str:
    """The last layer at whose input the slope is another than the backward pass says, which is the layer with the wrong backward pass;
    empty where none is told. Arguments as in `slope_of`; takes a backward pass for each layer."""
    base = _base(model)
    stacks = [(name, of) for name, of in base.base_model.named_children() if isinstance(of, torch.nn.ModuleList)]
    name, stack = max(stacks, key=lambda of: len(of[1]), default=("", ()))
    for place, layer in reversed([*enumerate(stack)]):
        slope = _measured(base.base_model, _InputOf(layer), tokens[:TOKENS])
        if slope is not None and slope.gap > SLOPE_EXPLAINED + slope.doubt:
            return f"{name}.{place}"
    return ""


def _base(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _is_reentrant(base: Any) -> bool:
    """Whether checkpoints of transformers are reentrant (`gradient_checkpointing_enable`, modeling_utils.py 5.23.0)."""
    functions = (getattr(module, "_gradient_checkpointing_func", None) for module in base.modules())
    return any(getattr(function, "keywords", {}).get("use_reentrant", True) for function in functions if function)


class _Place(Protocol):
    """Numbers between two modules of a model, (rows, L, H)."""

    def through(self, change: Callable[[Tensor], Tensor]) -> Any:
        """Change these numbers in each forward; returns the handle of torch's hook."""


class _OutputOf:
    """What a module gives."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def through(self, change: Callable[[Tensor], Tensor]) -> Any:
        return self._module.register_forward_hook(lambda module, given, output: change(output))


class _InputOf:
    """What a layer of transformers is given: its first argument, by this name in all of its models."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer

    def through(self, change: Callable[[Tensor], Tensor]) -> Any:
        def changed(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            if args:
                return (change(args[0]), *args[1:]), kwargs
            return args, kwargs | {"hidden_states": change(kwargs["hidden_states"])}

        return self._layer.register_forward_pre_hook(changed, with_kwargs=True)


def _first_look(layers: Any, place: _Place, tokens: Tensor) -> Slope | None:
    """The slope, where some directions tell that of the backward pass; None where they do not."""
    device = tokens.device
    with unseen(device, lambda: torch.autocast(device.type, enabled=False)):
        draw = torch.Generator(device=device).manual_seed(_SEED)
        numbers, weights, gradient = _at_row(layers, place, tokens, draw)
        directions = torch.randn((FIRST_DIRECTIONS, *numbers.shape[1:]), generator=draw, device=device)
        by_backward, size = _along(gradient, directions), numbers.square().mean().sqrt()
        for step in FIRST_STEPS:
            [(_, slopes)] = _by_outputs(layers, place, tokens, weights, directions, [size * step])
            if slope := explained_by(slopes, by_backward, gradient.double().norm()):
                return slope
    return None


def _measured(layers: Any, place: _Place, tokens: Tensor) -> Slope | None:
    device = tokens.device
    with unseen(device, lambda: torch.autocast(device.type, enabled=False)):
        draw = torch.Generator(device=device).manual_seed(_SEED)
        numbers, weights, gradient = _at_row(layers, place, tokens, draw)
        size = numbers.square().mean().sqrt()
        directions = torch.randn((DIRECTIONS, *numbers.shape[1:]), generator=draw, device=device)
        at_row, typical = _along(gradient, directions), gradient.double().norm()
        before: Tensor | None = None
        for step, slopes in _by_outputs(layers, place, tokens, weights, directions, [size * of for of in STEPS]):
            # Steps that are too long for a steep place are flat beside the gradient there: they have to agree by their own size.
            own = slopes.square().mean().sqrt().clamp(min=torch.finfo(torch.float32).tiny)
            if before is not None:
                doubts = (slopes - before).abs() / own
                if int((doubts <= KNOWN).sum()) >= ENOUGH:
                    beside = _beside(layers, place, tokens, weights, directions, step)
                    size_of_both = torch.maximum(typical, own)
                    doubts = torch.maximum(doubts, (beside - at_row).abs() / size_of_both)
                    # Simpson's rule: the mean slope along the way from one side to the other.
                    gaps = (slopes - (4 * at_row + 2 * beside) / 6).abs() / size_of_both
                    known = doubts <= KNOWN
                    if int(known.sum()) >= ENOUGH:
                        return Slope(float(gaps[known].amax()), float(doubts[known].amax()))
            before = slopes
    return None


def _at_row(layers: Any, place: _Place, tokens: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers of this place, (1, L, H), weights of the outputs, which are drawn, and the gradient at these numbers of the weighed
    sum of the outputs."""
    there: list[Tensor] = []
    moves: list[Tensor] = []

    def moved(numbers: Tensor) -> Tensor:
        if not there:  # checkpoints compute again
            there.append(numbers.detach())
            moves.append(torch.zeros_like(there[0], requires_grad=True))
        return numbers + moves[0]

    with torch.enable_grad(), _through(place, moved):
        outputs = _outputs(layers, tokens, 1)
        weights = torch.randn(outputs.shape, generator=draw, device=tokens.device)
        (gradient,) = torch.autograd.grad((outputs * weights).sum(), moves, allow_unused=True)
    return there[0], weights, torch.zeros_like(moves[0]) if gradient is None else gradient


def _gradients(layers: Any, place: _Place, tokens: Tensor, weights: Tensor, moves: Tensor) -> Tensor:
    """(rows, L, H), the gradient of the weighed sum of the outputs at the numbers of this place, moved in each row by these."""
    with torch.enable_grad():
        moves = moves.detach().requires_grad_()
        with _through(place, lambda numbers: numbers + moves):  # also while checkpoints compute again
            summed = (_outputs(layers, tokens, len(moves)) * weights).sum()
            (gradient,) = torch.autograd.grad(summed, moves, allow_unused=True)
    return torch.zeros_like(moves) if gradient is None else gradient


def _along(gradient: Tensor, directions: Tensor) -> Tensor:
    """(K,) float64, the slopes in these directions, each of its own gradient or all of one."""
    return (gradient.double() * directions.double()).flatten(1).sum(1)


def _beside(layers: Any, place: _Place, tokens: Tensor, weights: Tensor, directions: Tensor, step: Tensor) -> Tensor:
    """(K,) float64, the mean of the slopes that the backward pass gives a step to either side of each direction.

    Where they are others than at the row, the slope is one of a place that is smaller than the steps. Several directions of a short row
    share a pass, which then holds no more tokens than one direction of the longest row does.
    """
    found = []
    for some in directions.split(max(TOKENS // len(tokens), 1)):
        gradients = _gradients(layers, place, tokens, weights, torch.cat([some, -some]) * step)
        found += [_along(of, some) for of in gradients.chunk(2)]
    return torch.cat(found[::2]).add(torch.cat(found[1::2])) / 2


def _by_outputs(
    layers: Any, place: _Place, tokens: Tensor, weights: Tensor, directions: Tensor, lengths: Sequence[Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Give each length of the step to either side, and (K,) float64, how the weighed sum of the outputs follows the numbers of this
    place in each direction.

    Two steps of a short row share a forward, which then has no more tokens than one step of the longest row does.
    """
    many = min(max(TOKENS // len(tokens), 1), 2)
    for first in range(0, len(lengths), many):
        steps = lengths[first : first + many]
        moves = torch.cat([way * step for step in steps for way in (directions, -directions)])
        with _through(place, moves.add):
            outputs = _outputs(layers, tokens, len(moves)).double()
        summed = (outputs * weights.double()).flatten(1).sum(1)
        for step, of_step in zip(steps, summed.split(2 * len(directions)), strict=True):
            ahead, behind = of_step.chunk(2)
            yield step, (ahead - behind) / (2 * step.double())


def _outputs(layers: Any, tokens: Tensor, rows: int) -> Tensor:
    """(rows, L, H), the layers' outputs of as many equal rows."""
    every = tokens.unsqueeze(0).expand(rows, -1)
    output: Tensor = layers(input_ids=every, attention_mask=torch.ones_like(every), use_cache=False).last_hidden_state
    return output


@contextmanager
def _through(place: _Place, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    handle = place.through(change)
    try:
        yield
    finally:
        handle.remove()
