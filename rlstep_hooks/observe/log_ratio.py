"""The log ratio of a micro-batch, in the columns of `MicroBatchValues`."""

from __future__ import annotations

import torch
from torch import Tensor

from rlstep_hooks.observe.token_distances import near_largest, outside


def log_ratio(new: Tensor, old: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """The numbers of |new - old| and of |new| over the tokens that count, each a tensor of one.

    Args:
        new: (B,) or (B, T), log-probs of the current policy.
        old: Old log-probs of the same shape, the denominator of the ratio.
        mask: A mask of the same shape, not 0 where a sample or token counts; None where all do.
    """
    distance = (new.detach().float() - old.to(new.device).float()).abs()
    improbable = new.detach().float().abs()
    if mask is None:
        tokens = torch.full((), distance.numel(), dtype=torch.float32, device=distance.device)
    else:
        real = mask.bool()
        distance, improbable = torch.where(real, distance, 0.0), torch.where(real, improbable, 0.0)
        tokens = real.sum(dtype=torch.float32)
    return {
        "tokens": tokens,
        "max_abs_log_ratio": distance.amax(),
        "sum_abs_log_ratio": distance.sum(),
        "max_abs_log_prob": improbable.amax(),
        "unsure": -torch.expm1(-improbable).sum(),
        "sum_abs_log_prob": improbable.sum(),
    }


def tokens_apart(new: Tensor, old: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """How many tokens are off and how far the farthest hundredth is, where new and old log-probs should be equal.

    Args:
        new: (B,) or (B, T), log-probs of the current policy.
        old: Old log-probs of the same shape.
        mask: A mask of the same shape, not 0 where a sample or token counts; None where all do.
    """
    signed = new.detach().float() - old.to(new.device).float()
    real = torch.ones_like(signed, dtype=torch.bool) if mask is None else mask.bool()
    signed = torch.where(real, signed, 0.0).flatten().unsqueeze(0)
    return {
        "log_ratio_99": near_largest(signed.abs(), real.sum().unsqueeze(0)).squeeze(0),
        "sum_log_ratio_outside": outside(signed).sum(dtype=torch.float32),
    }
