"""What a training does, as digests: the gradients and settings of each optimizer step, the weights after it, and what is logged."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TIMES = ("runtime", "per_second", "step_time", "fps", "time_elapsed")
"""Parts of names of logged numbers that are times."""


@dataclass
class Training:
    """What an optimizer was given and left behind.

    Attributes:
        steps: Of each step, a digest of gradients, settings and the weights after it.
        weights: Digest of the weights at the end.
        logs: What was logged, without times.
    """

    steps: list[str] = field(default_factory=list)
    weights: str = ""
    logs: list[dict[str, str]] = field(default_factory=list)

    def log(self, entries: Iterable[dict[str, Any]]) -> None:
        """Keep what a trainer logged."""
        self.logs += [
            {name: repr(value) for name, value in entry.items() if not any(part in name for part in TIMES)}
            for entry in entries
        ]

    def watch(self) -> None:
        """Follow every optimizer of this process from now on."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: self._step(optimizer))
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self._after(optimizer))

    def _step(self, optimizer: Any) -> None:
        self.steps.append(_step_of(optimizer, lambda parameter: parameter.grad))

    def _after(self, optimizer: Any) -> None:
        self.steps[-1] += " " + _step_of(optimizer, lambda parameter: parameter)

    def to_json(self) -> dict[str, Any]:
        """As it is sent to the process that compares."""
        return {"steps": self.steps, "weights": self.weights, "logs": self.logs}


def _step_of(optimizer: Any, read: Callable[[Any], Any]) -> str:
    """A digest of each parameter's tensor with its group's settings, whatever the order of parameters and groups."""
    found = []
    for group in optimizer.param_groups:
        settings = repr({name: value for name, value in sorted(group.items()) if name != "params"})
        found += [f"{digest([read(parameter)])} {settings}" for parameter in group["params"]]
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()[:16]


def digest(tensors: Iterable[Any]) -> str:
    """A digest of tensors' bits."""
    import torch

    found = hashlib.sha256()
    for tensor in tensors:
        if tensor is None:
            found.update(b"none")
        else:
            tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            found.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
            found.update(tensor.detach().contiguous().cpu().view(-1).view(dtype=torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Where two trainings part: "" (nowhere), "logs", or the first update that differs, as "update 3"."""
    for index, (left, right) in enumerate(zip(one["steps"], other["steps"], strict=False)):
        if left != right:
            return f"update {index}"
    if len(one["steps"]) != len(other["steps"]):
        return f"update {min(len(one['steps']), len(other['steps']))}"
    if one["weights"] != other["weights"]:
        return "weights at the end"
    return "logs" if one["logs"] != other["logs"] else ""
