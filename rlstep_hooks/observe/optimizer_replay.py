"""The optimizer's own formula, replayed on a probe of the weights: did the step do what it documents?

At a step only copies are taken; many steps are worked up at once, later. Shapes: N steps, K probed tensors, P probed weights of all
tensors in a row.

Sources: the algorithms on the pages of torch.optim.SGD, Adam, AdamW and RMSprop, and torch/optim/{sgd,adam,adamw,rmsprop}.py 2.13.0.
Their foreach, fused and capturable forms compute the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.bits import bits
from rlstep_hooks.observe.deferred import on_device
from rlstep_hooks.observe.numbers import Columns
from rlstep_hooks.record.events import UpdateValues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.optim import Optimizer

COVERED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)
"""Optimizers whose formula is replayed. Subclasses are not replayed, because they may compute anything."""

TENSORFLOW = "stable_baselines3.common.sb2_compat.rmsprop_tf_like.RMSpropTFLike"
"""TensorFlow's form of RMSprop: it adds epsilon within the root, and its mean square begins with 1 (2.7.0 and 2.9.2, 97-152)."""

DEEPSPEED = ("deepspeed.ops.adam.fused_adam.FusedAdam", "deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam")
"""DeepSpeed's own forms of Adam and AdamW, whose state has the same names (ops/adam/*.py of 0.19.6)."""

ROUNDINGS = 8
"""Units of the weights' own rounding that a step may be away from the exact one."""
RELATIVE = {torch.float32: 1e-4, torch.float64: 1e-4}
"""Relative error of a step where moments are kept in this dtype; bf16 and float16 keep two to three digits of each moment."""
RELATIVE_REDUCED = 0.1


class Constants(msgspec.Struct, frozen=True, gc=False):
    """What the formula takes for one tensor at one step, besides its numbers."""

    rate: float
    shrinks: float
    """The factor by which the weights are multiplied first (the decay of AdamW)."""
    adds: float
    """How much of the weights is added to the gradient (the decay of SGD and Adam)."""
    sign: float
    """-1 where the objective is maximised."""
    stepped: bool
    """Whether there is a gradient; else torch leaves the tensor out, decay included."""
    relative: float
    """Relative error of a step that the dtype of its moments explains."""
    roundings: float
    """Relative error of the terms that a step is the sum of: they can cancel, and their rounding stays."""
    beta1: float = 0.0
    beta2: float = 0.0
    """beta2 of Adam and its relatives, alpha of RMSprop."""
    epsilon: float = 0.0
    keeps: float = 0.0
    """SGD and RMSprop: the part of the momentum that stays."""
    takes: float = 1.0
    """The part of the gradient that comes to it."""
    by_gradient: float = 0.0
    """How much of the gradient itself is in the step (Nesterov)."""
    by_momentum: float = 1.0
    """How much of the momentum is."""
    within: float = 0.0
    """RMSprop: what is added within the root."""


_REPLAYED = ("optimizer_off", "optimizer_share", "moments_off", "steps_idle")
"""Numbers of each replayed update, as fields of `UpdateValues`."""


class ReplaySource(msgspec.Struct, frozen=True):
    """What a vector of `OptimizerReplay` means: some numbers of each replayed update, then two of each whose moments were seen."""

    of: ClassVar = UpdateValues
    updates: tuple[int, ...]
    looked_at: tuple[int, ...]

    def values(self, numbers: list[float]) -> dict[int, dict[str, Any]]:
        """The vector's numbers, as fields of `UpdateValues`."""
        replayed = Columns(self.of, self.updates, _REPLAYED)
        seen = Columns(self.of, self.looked_at, ("moments_lost", "steps_lost"))
        cut = len(_REPLAYED) * len(self.updates)
        fields = replayed.values(numbers[:cut])
        for update, more in seen.values(numbers[cut:]).items():
            fields.setdefault(update, {}).update(more)
        return fields


class OptimizerReplay:
    """Replays the steps of one optimizer on probed weights.

    Args:
        probed: Tensors with the number and distance of their probed weights (`WeightProbe.probed`).
        optimizer: The torch optimizer.
    """

    def __init__(self, probed: Sequence[tuple[Any, int, int]], optimizer: Optimizer) -> None:
        groups = {id(held): place for place, group in enumerate(optimizer.param_groups) for held in group["params"]}
        # The optimizer knows a parameter, of which a shard is the part that this process holds.
        owned = [(of, getattr(of[0], "parameter", of[0])) for of in probed]
        held = [of for of, whole in owned if id(whole) in groups]
        self._optimizer = optimizer
        self._kind: type = getattr(optimizer, "stands_for", type(optimizer))
        self._moments = _moments_of(self._kind)
        """Names of the moments in the optimizer's state."""
        self._begin_with = (0.0, float(_name(self._kind) == TENSORFLOW), *[0.0] * (len(self._moments) - 1))
        """What gradients and moments are where there are none."""
        self._probed = held
        self._parameters = [whole for _, whole in owned if id(whole) in groups]
        """The tensors of the optimizer that the probed weights belong to."""
        self._places_of_groups = [groups[id(whole)] for whole in self._parameters]
        """The places of the tensors' groups, and not the groups themselves: `load_state_dict` puts others in their places, and
        schedulers then write to those."""
        self._places = torch.arange(len(held)).repeat_interleave(torch.tensor([count for _, count, _ in held]).long())
        """(P,): the tensor of each probed weight."""
        self.uncovered = self._why_uncovered()
        """Why steps cannot be replayed; empty where they can."""
        self._before: _Before | None = None
        self._left: tuple[Tensor, Tensor] | None = None
        """The moments that the step before left, and how many steps it had counted, if it was replayed."""
        self._look: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
        """Moments and counted steps that the step before left, and both before the step that is being made."""
        self._steps: list[tuple[int, _Before, Tensor, Tensor | None]] = []
        """Replayed steps: update, what it was computed from, weights and moments after it."""
        self._looks: list[tuple[int, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]] = []
        """Update, the moments and steps that the step before it had left, those before its own."""

    @property
    def _groups(self) -> list[dict[str, Any]]:
        """The group of each replayed tensor, as it is now."""
        groups = self._optimizer.param_groups
        return [groups[place] for place in self._places_of_groups]

    def _why_uncovered(self) -> str:
        if self._kind not in COVERED and _name(self._kind) not in (*DEEPSPEED, TENSORFLOW):
            return f"the formula of {self._kind.__module__}.{self._kind.__name__} is not replayed"
        if any(group.get("centered") for group in self._optimizer.param_groups):
            # The difference of two means that are nearly equal has no digits left.
            return "the formula of RMSprop with a centred mean is not replayed"
        if any(group.get("amsgrad") for group in self._optimizer.param_groups):
            return "the formula with amsgrad is not replayed"
        if not all(group.get("bias_correction", True) for group in self._optimizer.param_groups):
            return "the formula without a correction of the bias is not replayed"
        if any(
            _on_device(value)
            for group in self._optimizer.param_groups
            for value in (group["lr"], *group.get("betas", ()))
        ):
            return "rate or betas are held on the device, and reading them would wait for it"
        return "" if self._probed else "the optimizer holds none of the probed weights"

    def before_step(self, *, compared: bool) -> None:
        """Read what the step is computed from, just before the optimizer makes it.

        Args:
            compared: Whether to replay it.
        """
        left, self._left, self._before, self._look = self._left, None, None, None
        if left is None and not compared:
            return
        moments = self._parts_of_moments()
        if left is not None:
            self._look = left, (torch.cat(self._filled(moments)), self._steps_made())
        # With a gradient scale, a fused step divides the gradients itself.
        if compared and getattr(self._optimizer, "grad_scale", None) is None:
            self._before = self._read(moments)

    def after_step(self, update: int) -> None:
        """Read weights and moments after the step; `work_up` compares them later."""
        before, self._before = self._before, None
        if self._look is not None:
            self._looks.append((update, *self._look))
        if before is None:
            return
        moments = self._parts_of_moments()
        begun = any(part is not None for parts in moments for part in parts)
        self._left = (torch.cat(self._filled(moments)), self._steps_made()) if begun else None
        self._steps.append((update, before, torch.cat(self._weights()), self._left[0] if self._left else None))

    def work_up(self) -> tuple[ReplaySource, Tensor] | None:
        """The numbers of all steps since the last call, float32, as `ReplaySource` says. None without any."""
        steps, self._steps = self._steps, []
        looks, self._looks = self._looks, []
        columns = self._compare(steps) if steps else []
        if looks:
            pairs = [look[1] for look in looks] + [look[2] for look in looks]
            left, now = bits(torch.stack([moments for moments, _ in pairs])).chunk(2)
            columns.append((left != now).sum(1))
            before, counted = torch.stack([made for _, made in pairs]).chunk(2)
            columns.append((before != counted).sum(1).to(left.device, non_blocking=True))
        source = ReplaySource(tuple(step[0] for step in steps), tuple(look[0] for look in looks))
        return (source, torch.cat([column.float() for column in columns])) if columns else None

    # Reading

    def _of_state(self, name: str) -> list[Any]:
        """What the optimizer keeps for each tensor under this name; None where it keeps nothing."""
        held = self._optimizer.state
        return [held[parameter].get(name) if parameter in held else None for parameter in self._parameters]

    def _decoupled(self, group: dict[str, Any]) -> bool:
        """Whether the decay shrinks the weights (AdamW), or is added to the gradient."""
        if _name(self._kind) in DEEPSPEED:
            return bool(getattr(self._optimizer, "adam_w_mode", True))
        return self._kind is torch.optim.AdamW or bool(group.get("decoupled_weight_decay", False))

    def _parts_of_moments(self) -> list[list[Tensor | None]]:
        return [self._parts(self._of_state(name)) for name in self._moments]

    def _weights(self) -> list[Tensor]:
        return [_part(parameter, count, stride) for parameter, count, stride in self._probed]

    def _parts(self, tensors: list[Any]) -> list[Tensor | None]:
        """The probed numbers of what belongs to each tensor; None where there is nothing."""
        return [
            None if tensor is None else _part(tensor, count, stride)
            for tensor, (_, count, stride) in zip(tensors, self._probed, strict=True)
        ]

    def _filled(self, kinds: list[list[Tensor | None]]) -> list[Tensor]:
        """All parts in a row; where there is nothing yet, what it begins with."""
        return [
            parameter.detach().new_full((count,), first) if part is None else part
            for parts, first in zip(kinds, self._begin_with[-len(kinds) :], strict=True)
            for part, (parameter, count, _) in zip(parts, self._probed, strict=True)
        ]

    def _read(self, moments: list[list[Tensor | None]]) -> _Before:
        weights = self._weights()
        gradients = self._parts([parameter.grad for parameter, _, _ in self._probed])
        numbers = weights + self._filled([gradients, *moments])
        constants = tuple(
            _constants(
                group,
                weight,
                gradient,
                moment,
                decoupled=self._decoupled(group),
                tensorflow=_name(self._kind) == TENSORFLOW,
            )
            for group, weight, gradient, moment in zip(self._groups, weights, gradients, moments[0], strict=True)
        )
        return _Before(torch.cat(numbers), constants, self._steps_made())

    def _steps_made(self) -> Tensor:
        """(K,): the steps that each tensor has made, as the optimizer counts them."""
        made = [
            group.get("step") if steps is None else steps  # DeepSpeed's FusedAdam counts in the group
            for steps, group in zip(self._of_state("step"), self._groups, strict=True)
        ]
        none = next((torch.zeros_like(steps) for steps in made if isinstance(steps, Tensor)), torch.zeros(()))
        return torch.stack([none if steps is None else torch.as_tensor(steps) for steps in made])

    # Computing

    def _compare(self, steps: list[tuple[int, _Before, Tensor, Tensor | None]]) -> list[Tensor]:
        """The largest distance of a weight from where the formula puts it, in units of what rounding explains; how many times the
        documented step was made; the largest distance of a moment, nan where there are none; how many steps had been counted that left
        no moment: each (N,) float64."""
        after = torch.stack([step[2] for step in steps])
        weights, gradient, *moments = torch.stack([step[1].numbers for step in steps]).double().split(after.shape[1], 1)
        of = _Factors([step[1].constants for step in steps], self._places, after.device)
        made_so_far = torch.stack([step[1].steps for step in steps]).to(after.device, torch.float64, non_blocking=True)
        documented = self._documented(of, made_so_far, weights, gradient, moments)
        planned = _where_stepped(of, documented.weights, weights) - weights
        made = after.double() - weights
        rounding = ROUNDINGS * torch.finfo(after.dtype).eps * (weights.abs() + planned.abs())
        rounding += of("relative") * planned.abs() + of("roundings") * documented.terms
        tolerance = rounding + torch.finfo(torch.float32).tiny
        off = ((made - planned).abs() / tolerance).amax(1)
        share = (made * planned).sum(1) / (planned * planned).sum(1)
        moments_off = self._moments_off(of, documented, moments, [step[3] for step in steps])
        moved = sum(kind.count_nonzero(1) for kind in moments) > 0
        idle = torch.where(moved, 0, made_so_far.amax(1))
        return [off, share, moments_off, idle]

    def _moments_off(
        self, of: _Factors, documented: _Documented, moments: list[Tensor], left: list[Tensor | None]
    ) -> Tensor:
        """(N,): the largest distance of a moment from the documented one, in units of what rounding explains."""
        size = moments[0].shape[1]
        unknown = torch.full((len(moments) * size,), torch.nan, device=moments[0].device)
        kinds = torch.stack([unknown if of_step is None else of_step for of_step in left]).double().split(size, 1)
        distances = []
        for (expected, terms), before, after in zip(documented.moments, moments, kinds, strict=False):
            tolerance = of("relative") * expected.abs() + of("roundings") * terms + torch.finfo(torch.float32).tiny
            distances.append(((after - _where_stepped(of, expected, before)).abs() / tolerance).amax(1))
        return torch.stack(distances).amax(0)

    def _documented(
        self, of: _Factors, made_so_far: Tensor, weights: Tensor, gradient: Tensor, moments: list[Tensor]
    ) -> _Documented:
        """The documented step.

        Args:
            of: The constants.
            made_so_far: (N, K), steps that each tensor has made.
            weights: (N, P), as gradient and moments.
            gradient: The gradient of the loss.
            moments: The moments that the step before left, by their names in the optimizer.
        """
        terms = gradient.abs() + of("adds") * weights.abs()
        gradient = of("sign") * gradient + of("adds") * weights
        kept: tuple[tuple[Tensor, Tensor], ...]
        if self._moments == _OF_SGD:
            buffer = of("keeps") * moments[0] + of("takes") * gradient
            step = of("by_gradient") * gradient + of("by_momentum") * buffer
            of_buffer = of("keeps") * moments[0].abs() + of("takes") * terms
            terms = of("by_gradient") * terms + of("by_momentum") * of_buffer
            kept = ((buffer, of_buffer),)
        elif self._moments == _OF_RMSPROP:
            square = of("beta2") * moments[0] + (1 - of("beta2")) * gradient**2
            divisor = (square + of("within")).sqrt() + of("epsilon")
            step = gradient / divisor + of("keeps") * moments[1]
            kept = ((square, of("beta2") * moments[0] + (1 - of("beta2")) * terms**2),)
            terms = terms / divisor + of("keeps") * moments[1].abs()
        else:
            first = of("beta1") * moments[0] + (1 - of("beta1")) * gradient
            second = of("beta2") * moments[1] + (1 - of("beta2")) * gradient**2
            bias1, bias2 = (of.spread(1 - of.each(name) ** (made_so_far + 1)) for name in ("beta1", "beta2"))
            divisor = bias1 * ((second / bias2).sqrt() + of("epsilon"))
            step = first / divisor
            # torch computes m + (1 - beta1) (g - m), whose terms have the sizes of m and g themselves.
            kept = (
                (first, moments[0].abs() + terms),
                (second, of("beta2") * moments[1] + (1 - of("beta2")) * terms**2),
            )
            terms = (of("beta1") * moments[0].abs() + (1 - of("beta1")) * terms) / divisor
        return _Documented(weights * of("shrinks") - of("rate") * step, of("rate") * terms, kept)


def _where_stepped(of: _Factors, documented: Tensor, before: Tensor) -> Tensor:
    """What the formula gives, and what was there before for tensors without a gradient, which torch leaves out: (N, P)."""
    stepped = of("stepped")
    if isinstance(stepped, Tensor):
        return torch.where(stepped > 0, documented, before)
    return documented if stepped else before


class _Documented(msgspec.Struct, frozen=True):
    """What the formula gives for N steps, each (N, P) float64."""

    weights: Tensor
    terms: Tensor
    """The sizes of the terms of the steps, added up."""
    moments: tuple[tuple[Tensor, Tensor], ...]
    """For each kind of moments that is compared, the documented ones and the sizes of their terms."""


class _Before(msgspec.Struct, frozen=True, gc=False):
    """What one step is computed from."""

    numbers: Tensor
    """The weights, their gradients, and each kind of moments: P numbers each."""
    constants: tuple[Constants, ...]
    """The constants of each tensor."""
    steps: Tensor
    """(K,), steps made so far."""


class _Factors:
    """The constants of N steps.

    Args:
        constants: The constants of each tensor, step by step.
        places: (P,), the tensor of each weight.
        device: The device of the weights.
    """

    def __init__(self, constants: list[tuple[Constants, ...]], places: Tensor, device: torch.device) -> None:
        self._constants = constants
        self._places = places
        self._device = device

    def each(self, name: str) -> Any:
        """Give one constant of all steps: a number where all are the same, else (N, K) float64."""
        rows = [[getattr(of, name) for of in row] for row in self._constants]
        first = rows[0][0]
        same = all(row.count(first) == len(row) for row in rows)
        return first if same else on_device(rows, self._device)

    def spread(self, of_tensors: Any) -> Any:
        """(N, K) as (N, P); a number as it is."""
        if not isinstance(of_tensors, Tensor):
            return of_tensors
        return of_tensors.index_select(1, self._places.to(self._device, non_blocking=True))

    def __call__(self, name: str) -> Any:
        """One constant: a number, or (N, P)."""
        return self.spread(self.each(name))


_OF_SGD = ("momentum_buffer",)
_OF_ADAM = ("exp_avg", "exp_avg_sq")
_OF_RMSPROP = ("square_avg", "momentum_buffer")


def _moments_of(kind: type) -> tuple[str, ...]:
    """What an optimizer keeps for each tensor, by the names in its state."""
    if kind is torch.optim.SGD:
        return _OF_SGD
    return _OF_RMSPROP if kind is torch.optim.RMSprop or _name(kind) == TENSORFLOW else _OF_ADAM


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _constants(
    group: dict[str, Any],
    weight: Tensor,
    gradient: Tensor | None,
    moment: Tensor | None,
    *,
    decoupled: bool,
    tensorflow: bool,
) -> Constants:
    """The constants of a tensor with these settings, whose decay shrinks the weights or is added to the gradient."""
    rate, decay = float(group["lr"]), float(group["weight_decay"])
    beta1, beta2 = map(float, group.get("betas", (0.0, group.get("alpha", 0.0))))
    momentum = float(group.get("momentum", 0.0))
    begun = momentum != 0 and moment is not None
    nesterov = momentum != 0 and bool(group.get("nesterov"))
    precise = weight if moment is None else moment
    return Constants(
        rate=rate,
        shrinks=1 - rate * decay if decoupled else 1.0,
        adds=0.0 if decoupled else decay,
        sign=-1.0 if group.get("maximize") else 1.0,
        stepped=gradient is not None,
        relative=RELATIVE.get(precise.dtype, RELATIVE_REDUCED),
        roundings=ROUNDINGS * torch.finfo(precise.dtype).eps,
        beta1=beta1,
        beta2=beta2,
        epsilon=0.0 if tensorflow else float(group.get("eps", 0.0)),
        within=float(group["eps"]) if tensorflow else 0.0,
        keeps=momentum if begun else 0.0,  # the first gradient is the momentum (SGD)
        takes=1 - float(group.get("dampening", 0.0)) if begun else 1.0,
        by_gradient=1.0 if nesterov else 0.0,
        by_momentum=momentum if nesterov else 1.0,
    )


def _on_device(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type != "cpu"


def _part(tensor: Tensor, count: int, stride: int) -> Tensor:
    """A view of the probed numbers of a tensor, or a copy."""
    values = tensor.detach()
    if hasattr(values, "to_local"):
        values = values.to_local()
    if values.is_contiguous():
        return values.as_strided((count,), (stride,), values.storage_offset())
    return values.reshape(-1)[::stride][:count]
