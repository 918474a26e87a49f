"""Derivatives that the audit takes for itself, in the middle of somebody else's training."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


@contextmanager
def own_graph() -> Iterator[None]:
    """A context that records operations for `torch.autograd.grad`, whatever the host has switched off.

    Hooks on saved tensors that the host has placed, such as activation offloading, are for the host's own graph and see nothing of it.
    """
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(_unchanged, _unchanged):
        yield


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor
