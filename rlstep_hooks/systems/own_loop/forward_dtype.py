"""The dtype in which a loop's forwards compute: that of autocast, else that of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class ForwardDtype:
    """Finds the dtype out, to be told once.

    Args:
        known: The dtype that the run's facts have already; None if they have none.
    """

    def __init__(self, known: Any) -> None:
        self._dtype = known
        self._told = known is not None

    def see(self, log_probs: Tensor) -> None:
        """Look at autocast where log-probs were computed: it computes in another dtype than the weights have."""
        kind = log_probs.device.type
        if self._dtype is None and torch.is_autocast_enabled(kind):
            self._dtype = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")

    def tell(self, parameters: Sequence[Tensor]) -> str | None:
        """The dtype of forwards with these weights; None where it was told before."""
        if self._told:
            return None
        self._told = True
        return self._dtype or _dtype_of(parameters)


def _dtype_of(parameters: Sequence[Tensor]) -> str:
    """The dtype in which forwards with these weights compute; "tf32" if matmuls, or convolutions (by torch's default), use it."""
    first = parameters[0]
    if first.dtype == torch.float32 and first.is_cuda:
        convolves = any(parameter.dim() > 2 for parameter in parameters)
        if torch.backends.cuda.matmul.allow_tf32 or (convolves and torch.backends.cudnn.allow_tf32):
            return "tf32"
    return str(first.dtype).removeprefix("torch.")
