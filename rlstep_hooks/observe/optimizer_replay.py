"""The optimizer's own formula, replayed on a probe of the weights: did the step do what it documents?

Sources: the algorithms on the pages of torch.optim.SGD, Adam and AdamW, and torch/optim/{sgd,adam,adamw}.py 2.13.0. Their foreach,
fused and capturable forms compute the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.deferred import finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.optim import Optimizer

COVERED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Optimizers whose formula is replayed. Subclasses are not replayed, because they may compute anything."""

DEEPSPEED = ("deepspeed.ops.adam.fused_adam.FusedAdam", "deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam")
"""DeepSpeed's own forms of Adam and AdamW, whose state has the same names (ops/adam/*.py of 0.19.6)."""

ROUNDINGS = 8
"""Units of the weights' own rounding that a step may be away from the exact one."""
RELATIVE = {torch.float32: 1e-4, torch.float64: 1e-4}
"""Relative error of a step where moments are kept in this dtype; bf16 and float16 keep two to three digits of each moment."""
RELATIVE_REDUCED = 0.1


class Constants(msgspec.Struct, frozen=True):
    """The settings of one parameter group that a formula needs."""

    rate: float
    decay: float
    decoupled: bool
    """Whether the decay shrinks the weights (AdamW), or is added to the gradient."""
    adaptive: bool
    """Whether steps are divided by the root of the second moment (Adam, AdamW)."""
    beta1: float = 0.0
    beta2: float = 0.0
    epsilon: float = 0.0
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    sign: float = 1.0
    """-1 where the objective is maximised."""


class ReplaySource(msgspec.Struct, frozen=True):
    """What a vector of `OptimizerReplay` means."""

    updates: tuple[int, ...]

    def values(self, numbers: list[float]) -> dict[int, dict[str, Any]]:
        """The vector's numbers, as fields of `UpdateValues`."""
        count = len(self.updates)
        rows = zip(*(numbers[start : start + count] for start in range(0, 3 * count, count)), strict=True)
        return {
            update: {
                "optimizer_off": finite(off),
                "optimizer_share": finite(share),
                "moments_lost": int(lost) if lost >= 0 else None,
            }
            for update, (off, share, lost) in zip(self.updates, rows, strict=True)
        }


class OptimizerReplay:
    """Replays the steps of one optimizer on probed weights.

    Args:
        probed: Tensors with the number and distance of their probed weights (`WeightProbe.probed`).
        optimizer: The torch optimizer.
    """

    def __init__(self, probed: Sequence[tuple[Any, int, int]], optimizer: Optimizer) -> None:
        groups = {id(held): group for group in optimizer.param_groups for held in group["params"]}
        self._optimizer = optimizer
        # The optimizer knows a parameter, of which a shard is the part that this process holds.
        owned = [(*of, getattr(of[0], "parameter", of[0])) for of in probed]
        self._probed = [(*of, whole, groups[id(whole)]) for *of, whole in owned if id(whole) in groups]
        self.uncovered = self._why_uncovered()
        """Why steps cannot be replayed; empty where they can."""
        self._before: list[_State] | None = None
        self._left: Tensor | None = None
        """The moments right after the latest replayed step."""
        self._lost: Tensor | None = None
        self._held: list[_Step] = []

    def _why_uncovered(self) -> str:
        kind = type(self._optimizer)
        if kind not in COVERED and _name(kind) not in DEEPSPEED:
            return f"the formula of {kind.__module__}.{kind.__name__} is not replayed"
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

    def look_at_state(self) -> None:
        """Compare the moments with those that the latest replayed step left. Before the optimizer steps."""
        left, self._left, self._lost = self._left, None, None
        if left is not None:
            moments = self._moments()
            self._lost = (
                (moments != left).count_nonzero() if moments.shape == left.shape else torch.tensor(left.shape[0])
            )

    def before_step(self) -> None:
        """Read weights, gradients and state of the probe just before the optimizer steps."""
        if getattr(self._optimizer, "grad_scale", None) is None:  # else a fused step divides the gradients itself
            self._before = [self._state(*of) for of in self._probed]

    def after_step(self, update: int) -> None:
        """Read the weights after the step; `work_up` compares them later."""
        before, self._before = self._before, None
        if before is not None:
            after = [_part(parameter, count, stride) for parameter, count, stride, _, _ in self._probed]
            self._held.append(_Step(update, before, torch.cat(after), self._lost))
            self._left = self._moments()

    def work_up(self) -> tuple[ReplaySource, Tensor] | None:
        """The numbers of all replayed steps since the last call: float32 of shape (3 * updates,). None without any."""
        held, self._held = self._held, []
        if not held:
            return None
        rows = torch.stack([step.numbers() for step in held])
        return ReplaySource(tuple(step.update for step in held)), rows.T.flatten().float()

    def _state(self, parameter: Any, count: int, stride: int, whole: Any, group: dict[str, Any]) -> _State:
        state = self._optimizer.state.get(whole, {})
        moments = tuple(None if (of := state.get(name)) is None else _part(of, count, stride) for name in _MOMENTS)
        gradient = parameter.grad
        step = state.get("step", group.get("step", 0.0))
        return _State(
            constants=_constants(group, self._optimizer),
            weights=_part(parameter, count, stride),
            gradient=None if gradient is None else _part(gradient, count, stride),
            step=step.clone() if isinstance(step, Tensor) else step,
            moments=moments,
        )

    def _moments(self) -> Tensor:
        """The moments of the probe in one vector; shorter where there are none yet."""
        found = [
            _part(of, count, stride)
            for _, count, stride, whole, _ in self._probed
            for name in _MOMENTS
            if (of := self._optimizer.state.get(whole, {}).get(name)) is not None
        ]
        return torch.cat(found) if found else torch.empty(0)


_MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")


class _State(msgspec.Struct, frozen=True):
    """The probed part of one tensor before a step."""

    constants: Constants
    weights: Tensor
    gradient: Tensor | None
    step: Any
    """Steps made so far, a number or a tensor of one."""
    moments: tuple[Tensor | None, ...]
    """Those of `_MOMENTS`."""

    def documented(self) -> Tensor:
        """The weights after the documented step, float64."""
        weights = self.weights.double()
        if self.gradient is None:
            return weights  # torch skips a tensor without a gradient, decay included
        of = self.constants
        gradient = of.sign * self.gradient.double()
        if of.decoupled:
            weights = weights * (1 - of.rate * of.decay)
        elif of.decay:
            gradient = gradient + of.decay * weights
        first, second, buffer = (None if moment is None else moment.double() for moment in self.moments)
        if not of.adaptive:
            if of.momentum:
                buffer = gradient if buffer is None else of.momentum * buffer + (1 - of.dampening) * gradient
                gradient = gradient + of.momentum * buffer if of.nesterov else buffer
            return weights - of.rate * gradient
        zero = torch.zeros_like(weights)
        first = of.beta1 * (zero if first is None else first) + (1 - of.beta1) * gradient
        second = of.beta2 * (zero if second is None else second) + (1 - of.beta2) * gradient**2
        step = torch.as_tensor(self.step, device=weights.device).double() + 1
        divisor = (second / (1 - of.beta2**step)).sqrt() + of.epsilon
        return weights - of.rate / (1 - of.beta1**step) * first / divisor

    def relative(self) -> float:
        """Relative error of a step that the dtype of its moments explains."""
        kept = [moment.dtype for moment in self.moments if moment is not None] or [self.weights.dtype]
        return max(RELATIVE.get(dtype, RELATIVE_REDUCED) for dtype in kept)


class _Step(msgspec.Struct, frozen=True):
    """One step of the probe."""

    update: int
    before: list[_State]
    after: Tensor
    lost: Tensor | None

    def numbers(self) -> Tensor:
        """As `ReplaySource` names them, float64."""
        weights = torch.cat([state.weights for state in self.before])
        documented = torch.cat([state.documented() for state in self.before])
        relative = torch.cat([torch.full_like(state.weights, state.relative()).double() for state in self.before])
        made, planned = self.after.double() - weights.double(), documented - weights.double()
        rounding = ROUNDINGS * torch.finfo(weights.dtype).eps * (weights.double().abs() + planned.abs())
        tolerance = rounding + relative * planned.abs() + torch.finfo(torch.float32).tiny
        off = ((made - planned).abs() / tolerance).max()
        share = (made * planned).sum() / (planned * planned).sum()
        lost = torch.full_like(off, -1) if self.lost is None else self.lost.to(off)
        return torch.stack([off, share, lost])


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _constants(group: dict[str, Any], optimizer: Optimizer) -> Constants:
    kind = type(optimizer)
    decoupled = kind is torch.optim.AdamW or bool(group.get("decoupled_weight_decay", False))
    if _name(kind) in DEEPSPEED:
        decoupled = bool(getattr(optimizer, "adam_w_mode", True))
    beta1, beta2 = map(float, group.get("betas", (0.0, 0.0)))
    return Constants(
        rate=float(group["lr"]),
        decay=float(group["weight_decay"]),
        decoupled=decoupled,
        adaptive=kind is not torch.optim.SGD,
        beta1=beta1,
        beta2=beta2,
        epsilon=float(group.get("eps", 0.0)),
        momentum=float(group.get("momentum", 0.0)),
        dampening=float(group.get("dampening", 0.0)),
        nesterov=bool(group.get("nesterov", False)),
        sign=-1.0 if group.get("maximize") else 1.0,
    )


def _on_device(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type != "cpu"


def _part(tensor: Tensor, count: int, stride: int) -> Tensor:
    """A copy of the probed numbers of a tensor."""
    values = tensor.detach()
    if hasattr(values, "to_local"):
        values = values.to_local()
    if values.is_contiguous():
        return values.as_strided((count,), (stride,), values.storage_offset()).clone()
    return values.reshape(-1)[::stride][:count].clone()
