"""The norm of gradients that are clipped together."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor


def norm_of_gradients(parameters: Iterable[Any]) -> Tensor | None:
    """The norm of the gradients of these parameters, as far as this process holds them.

    Args:
        parameters: The parameters whose gradients are clipped together. An optimizer may hold only some of them, or others.

    Returns:
        None where there is no gradient, or torch computes no norm without waiting for the device (before 2.6).
    """
    if not hasattr(torch.nn.utils, "get_total_norm"):
        return None
    gradients = [p.grad for p in parameters if p.grad is not None]
    local = [gradient.to_local() if hasattr(gradient, "to_local") else gradient for gradient in gradients]
    return torch.nn.utils.get_total_norm([gradient.detach() for gradient in local]).float() if local else None


def parameters_of(optimizer: Any) -> Iterator[Any]:
    """All parameters that an optimizer updates."""
    for group in optimizer.param_groups:
        yield from group["params"]


def clipped_with(parameters: Iterable[Any], optimizer: Any) -> Iterator[Any]:
    """The parameters of a model, of which an optimizer may hold a part, and what the optimizer updates beside them: a wrapper may have
    left others in the model's places."""
    seen: set[int] = set()
    for parameter in chain(parameters, parameters_of(optimizer)):
        if id(parameter) not in seen:
            seen.add(id(parameter))
            yield parameter
