"""What SkyRL's `loss_reduction` documents: advantages divided so that sums over micro-batches add up to it. S samples, T tokens.

Source: skyrl 0.3.0, skyrl/train/config/config.py `AlgorithmConfig.loss_reduction`, and the documentation of the loss. Divisions are
made in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

REDUCTIONS = ("token_mean", "token_mean_legacy", "sequence_mean", "seq_mean_token_sum_norm", "prompt_mean")


@dataclass(frozen=True)
class Reduction:
    """The settings that decide by what losses of tokens are divided."""

    name: str
    samples: int
    """Samples of a mini-batch."""
    group: int
    """Samples of a prompt."""
    microbatch: int
    """Samples of a micro-batch."""
    longest: int | None
    """`max_seq_len`."""

    def of_all(self, advantages: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """(S, T) by the name of each reduction that the settings admit.

        Args:
            advantages: (S, T), of a rollout whose mini-batches follow each other.
            mask: (S, T), not 0 on tokens that count.
        """
        names = [name for name in REDUCTIONS if name != "seq_mean_token_sum_norm" or self.longest]
        return {name: advantages / self._divisors(name, (mask != 0).float()) for name in names}

    def _divisors(self, name: str, mask: Tensor) -> Tensor:
        """(S, 1)."""
        counted = mask.sum(1)
        if name == "token_mean":
            divisors = _over(counted, self.samples)
        elif name == "token_mean_legacy":
            divisors = _over(counted, self.microbatch) * (self.samples // self.microbatch)
        elif name == "sequence_mean":
            divisors = self.samples * counted.clamp(min=1)
        elif name == "prompt_mean":
            divisors = _over(counted, self.group) * (self.samples // self.group)
        else:
            divisors = torch.full_like(counted, float(self.samples * (self.longest or 1)))
        return divisors[:, None]


def _over(counted: Tensor, samples: int) -> Tensor:
    """(S,), the tokens of each sample's pack of so many samples, at least 1."""
    sums = counted.reshape(-1, samples).sum(1).clamp(min=1)
    return sums.repeat_interleave(samples)


def settled(used: Tensor, known: dict[str, Tensor], name: str) -> Tensor:
    """Advantages of a loss, or the due ones in their place where they are these but for rounding, by whatever reduction: which one it
    is shows in the loss's value.

    Args:
        used: (B, T), what the loss got.
        known: (B, T) by reduction.
        name: The configured one.
    """
    close = torch.stack([(used - of).abs() <= 1e-6 * of.abs() for of in known.values()])
    return torch.where(close.flatten(1).all(1).any(), known[name], used)
