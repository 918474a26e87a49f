"""Gradients on their way from autograd to the optimizer: what an update uses is the sum of what its backward passes gave.

Between the two stand the hooks of a parameter, whatever clears, scales or writes to gradients, and the clip, which multiplies all of
them by one factor. A hook of our own, before all others of its tensor, copies a few numbers of each gradient that arrives.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.deferred import finite, on_device
from rlstep_hooks.record.events import UpdateValues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rlstep_hooks.observe.guard import Guard

AT_A_TIME = 8
"""Tensors that are followed through one update: first those with hooks of others, then all of them by turns."""
OWN = f"{__name__.partition('.')[0]}."
"""The beginning of the names of this package's modules."""
PER_TENSOR = 64
"""Gradients that are followed of each."""
ROUNDINGS = 16
"""Roundings of the sizes of all that was added, which an accumulation and the clip explain, besides one for each backward pass. Each
in the dtype of its tensor."""


class GradientWatch:
    """Follows the gradients of some tensors through the windows that it is told to.

    Args:
        parameters: The trained tensors with their names.
        guard: Contains errors inside the hooks, which stand in the backward pass.
        used: Gives what the optimizer is about to use for a tensor, flat, where that is not its `grad`; None where there is nothing.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, Any]],
        guard: Guard,
        used: Callable[[Any], Tensor | None] | None = None,
    ) -> None:
        self._used_of = used
        self.counts_passes = True
        """Whether what the record calls a micro-batch is one backward pass."""
        self._tensors = [(name, p) for name, p in parameters if p.requires_grad and p.numel() and p.is_leaf]
        self._guard = guard
        self._next = 0
        self._followed: Sequence[FollowedTensor] = []
        self._held: list[Window] = []

    def begin_window(self) -> None:
        """Follow some tensors through the window that begins."""
        self.remove()
        self._followed = [_Followed(name, tensor, self._guard, self._used_of) for name, tensor in self._chosen()]

    def _chosen(self) -> list[tuple[str, Any]]:
        alive = [(name, tensor) for name, tensor in self._tensors if tensor.requires_grad]
        hooked = [of for of in alive if _hooked_by_others(of[1])][:AT_A_TIME]
        known = {name for name, _ in hooked}
        others = [of for of in alive if of[0] not in known]
        count = min(AT_A_TIME - len(hooked), len(others))
        turn = [others[(self._next + place) % len(others)] for place in range(count)]
        self._next += count
        return hooked + turn

    @property
    def frozen(self) -> int:
        """Tensors that were trained at first and no longer require a gradient."""
        return sum(not tensor.requires_grad for _, tensor in self._tensors)

    def before_step(self, update: int) -> None:
        """Keep what arrived since the window began, and what the optimizer is about to use."""
        followed = [of for of in self._followed if of.arrived and not of.taken_by_others()]
        self.remove()
        if followed:
            names = tuple(of.name for of in followed)
            used = [of.used() for of in followed]
            self._held.append(Window(update, names, tuple(tuple(of.arrived) for of in followed), tuple(used)))

    def remove(self) -> None:
        """Take the hooks off."""
        for of in self._followed:
            of.remove()
        self._followed = []

    def work_up(self) -> list[tuple[GradientSource, Tensor]]:
        """The numbers of all windows since the last call."""
        held, self._held = self._held, []
        return [(GradientSource(of.update, of.names, self._passes(of)), of.compare()) for of in held]

    def _passes(self, window: Window) -> int | None:
        return min(map(len, window.arrived)) if self.counts_passes else None


class FollowedTensor(Protocol):
    """One tensor in one window."""

    name: str
    arrived: list[Tensor]
    """What each backward pass gave."""

    def taken_by_others(self) -> bool:
        """Whether an optimizer within the backward pass uses up gradients as they come; asked where some arrived."""

    def used(self) -> Tensor:
        """What the optimizer is about to use; 0 where there is nothing. Asked where some arrived."""

    def remove(self) -> None:
        """Take the hook off."""


class GradientSource(msgspec.Struct, frozen=True):
    """What a vector means: of each followed tensor its distance and its factor, then the factor that most of them have."""

    of: ClassVar = UpdateValues
    update: int
    names: tuple[str, ...]
    passes: int | None
    """How many backward passes reached each followed tensor; where a tensor gets its gradient in parts, the fewest. None where
    they were not counted."""

    def values(self, numbers: list[float]) -> dict[int, dict[str, Any]]:
        """The vector's numbers, as fields of `UpdateValues`."""
        count = len(self.names)
        distances, factors, common = numbers[:count], numbers[count : 2 * count], finite(numbers[-1])
        if common is None or any(finite(of) is None for of in (*distances, *factors)):
            return {}  # gradients that are not finite: the update is another rule's
        worst = max(range(count), key=distances.__getitem__)
        return {
            self.update: {
                "gradient_off": distances[worst],
                "gradient_factor": common,
                "gradient_tensor": self.names[worst],
                "gradient_tensor_factor": factors[worst],
                **({} if self.passes is None else {"gradient_passes": self.passes}),
            }
        }


class Window(msgspec.Struct, frozen=True, gc=False):
    """The followed gradients of one update."""

    update: int
    names: tuple[str, ...]
    arrived: tuple[tuple[Tensor, ...], ...]
    """What each backward pass gave for each tensor."""
    used: tuple[Tensor, ...]
    """What the optimizer used for each tensor."""

    def compare(self) -> Tensor:
        """Give the vector that `GradientSource` describes, float32."""
        count = max(part.numel() for part in self.used)
        passes = [len(parts) for parts in self.arrived]
        # All tensors as rows of one width, so that few operations compare them; 0 where a tensor or a pass is missing.
        rows = _rows([part for parts in self.arrived for part in parts], count)
        used = _rows(list(self.used), count)
        sums, sizes = (
            torch.stack([part.sum(0) for part in of.split(passes)]) if max(passes) > 1 else of
            for of in (rows, rows.abs())
        )
        tiny = torch.finfo(torch.float64).tiny
        factors = (used * sums).sum(1) / (sums * sums).sum(1).clamp(min=tiny)
        median = torch.where(sums.count_nonzero(1) > 0, factors, torch.nan).nanmedian(0)
        common = median.values.nan_to_num(1.0)
        # FSDP may gather weights in a finer dtype than that in which it keeps them and their gradients.
        pairs = zip(self.arrived, self.used, strict=True)
        epsilons = [max(torch.finfo(of.dtype).eps for of in (parts[0], used)) for parts, used in pairs]
        passed, epsilon = (on_device(of, used.device).unsqueeze(1) for of in (passes, epsilons))
        # The clip's factor is rounded in the dtype of each tensor, and that of the most is known as well as the tensor that it is read
        # from: a head in float32 beside layers in bf16 may differ from it by the roundings of bf16.
        read_from = ((1 + passed) * epsilon * (sizes * sums.abs()).sum(1, keepdim=True))[median.indices]
        known_within = read_from / (sums * sums).sum(1)[median.indices].clamp(min=tiny)
        coarser = epsilon[median.indices] > epsilon
        rounding = (ROUNDINGS + passed) * epsilon * sizes + coarser * known_within * sums.abs()
        allowed = rounding * common.abs().clamp(min=1e-30) + torch.finfo(torch.float32).tiny
        distances = ((used - common * sums).abs() / allowed).amax(1)
        return torch.cat([distances, factors, common.reshape(1)]).float()


def _hooked_by_others(tensor: Any) -> bool:
    """Whether somebody else stands between autograd and a tensor's gradient: other watches of this package have hooks there too."""
    hooks = getattr(tensor, "_backward_hooks", None) or {}
    return not all(getattr(_called(hook), "__module__", "").startswith(OWN) for hook in hooks.values())


def _called(hook: Any) -> Any:
    """The function that a hook calls in the end."""
    while isinstance(hook, partial):
        hook = hook.func
    return hook


def _rows(parts: list[Tensor], count: int) -> Tensor:
    """Vectors as rows of float64, filled up with 0."""
    if any(part.numel() < count for part in parts):
        parts = [torch.nn.functional.pad(part, (0, count - part.numel())) for part in parts]
    return torch.stack(parts).double()


class _Followed:
    """One tensor in one window."""

    def __init__(self, name: str, tensor: Any, guard: Guard, used: Callable[[Any], Tensor | None] | None) -> None:
        self.name = name
        self._used_of = used
        self.arrived: list[Tensor] = []
        self._tensor = tensor
        self._guard = guard
        self._count = min(tensor.numel(), PER_TENSOR)
        self._stride = tensor.numel() // self._count
        # torch calls a tensor's hooks in the order in which they entered this dict, right before the gradient is accumulated (torch
        # 2.6 to 2.13), so the others enter it again: the first hook sees what autograd computed.
        self._handle = tensor.register_hook(self._arrives)
        hooks = tensor._backward_hooks
        for key in [key for key in hooks if key != self._handle.id]:
            hooks[key] = hooks.pop(key)

    def _arrives(self, gradient: Tensor) -> None:
        with self._guard:
            self.arrived.append(self._part(gradient).clone())

    def taken_by_others(self) -> bool:
        """Whether an optimizer within the backward pass uses up gradients as they come."""
        if self._used_of is not None:
            return self._used_of(self._tensor) is None
        return self._tensor.grad is None and bool(getattr(self._tensor, "_post_accumulate_grad_hooks", None))

    def used(self) -> Tensor:
        """What the optimizer is about to use; 0 where there is nothing."""
        gradient = self._tensor.grad if self._used_of is None else self._used_of(self._tensor)
        return torch.zeros_like(self.arrived[0]) if gradient is None else self._part(gradient).clone()

    def _part(self, gradient: Tensor) -> Tensor:
        values = gradient.detach()
        if values.is_contiguous():
            return values.as_strided((self._count,), (self._stride,), values.storage_offset())
        return values.reshape(-1)[:: self._stride][: self._count]

    def remove(self) -> None:
        """Take the hook off."""
        self._handle.remove()
