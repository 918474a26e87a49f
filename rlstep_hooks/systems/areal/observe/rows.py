"""Rows of a rollout and of its mini-batches. S samples of a rollout, B of a mini-batch, T tokens of the longest sample, L of a pack.

A mini-batch is cut into micro-batches by its tokens, and the samples of each are packed one behind the other (areal 1.0.4,
areal/engine/fsdp_engine.py `_prepare_mb_list`). A column with the place of each sample in its rollout travels with them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

if TYPE_CHECKING:
    from collections.abc import Iterable

PLACE = "rlstep_place"
"""Column with the place of each sample in its rollout, from when its advantages are there until it is packed for the model."""


def joined(samples: Iterable[Tensor]) -> Tensor:
    """(S, T), the rows of several groups, which are as long as the longest of their own."""
    groups = list(samples)
    width = max(of.shape[1] for of in groups)
    return torch.cat([pad(of, (0, width - of.shape[1])) for of in groups])


def before(of: Tensor) -> Tensor:
    """(S, T), what belongs to each token at the place before it, where the loss has it."""
    return torch.roll(of, -1, 1)


class Sampled:
    """What a rollout came with: copies, since the trainer writes to its own.

    Args:
        groups: The samples of each prompt, as the rollout engine handed them over.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.tokens = joined(of["input_ids"] for of in groups).clone()
        there = joined(of["attention_mask"] != 0 for of in groups)
        self.versions = torch.where(there, joined(of["versions"] for of in groups), -1)
        """The number of the weights that drew each token; -1 where none did."""
        self.log_probs = joined(of["logprobs"] for of in groups).clone()
        """Log-probs of the tokens, by the engine that drew them."""
        self.rewards = torch.cat([of["rewards"] for of in groups]).clone()
        self.counts = joined(of["loss_mask"] != 0 for of in groups)
        """(S, T), whether the token counts in the loss."""
        self.sizes = [len(of["input_ids"]) for of in groups]
        """The samples of each prompt."""
        self.groups = torch.arange(len(groups)).repeat_interleave(torch.tensor(self.sizes))
        """(S,), the number of each sample's prompt."""

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.tokens)

    @property
    def drawn(self) -> Tensor:
        """(S, T), whether the policy drew the token."""
        return self.versions >= 0

    @property
    def oldest(self) -> int | None:
        """The number of the oldest weights that drew a token; None where no token was drawn."""
        drawn = self.versions[self.drawn]
        return int(drawn.min()) if len(drawn) else None


@dataclass
class Trained:
    """One mini-batch: what its micro-batches show of it."""

    width: int
    """T."""
    loss: Tensor | None = None
    """What the micro-batches gave, added up; the gradient of each is 1."""
    columns: dict[str, list[Tensor]] = field(default_factory=dict)
    """(B', T) by name, of one micro-batch after the other."""
    gradients: dict[int, Tensor] = field(default_factory=dict)
    """Micro-batch -> the gradient that arrived at the log-probs of its tokens, (B', T)."""
    factors: list[Tensor] = field(default_factory=list)
    """The gradient that arrived at each loss."""

    @property
    def microbatches(self) -> int:
        """How many there were so far."""
        return len(next(iter(self.columns.values()), ()))

    def add(self, packed: dict[str, Tensor], ends: Tensor, loss: Tensor) -> None:
        """Add a micro-batch.

        Args:
            packed: (L,) by name.
            ends: (B' + 1,), where each sample begins, and the end of the last.
            loss: Its share of the loss.
        """
        for name, of in packed.items():
            self.columns.setdefault(name, []).append(unpacked(of, ends, self.width))
        share = loss.detach()
        self.loss = share if self.loss is None else self.loss + share

    def column(self, name: str) -> Tensor:
        """(B, T), one column of all micro-batches."""
        return torch.cat(self.columns[name])

    def gradient(self) -> Tensor:
        """(B, T), what arrived at the log-probs of tokens; 0 where nothing did."""
        pieces = enumerate(self.columns["new"])
        return torch.cat([self.gradients.get(number, torch.zeros_like(of)) for number, of in pieces])

    def factor(self) -> Tensor:
        """The factor of the loss in the backward that is farthest from 1; 0 where no backward reached it."""
        factors = torch.stack(self.factors) if self.factors else torch.zeros(1)
        return factors[(factors - 1).abs().argmax()]


def unpacked(packed: Tensor, ends: Tensor, width: int) -> Tensor:
    """(B', T) of a pack."""
    bounds = ends.tolist()
    pieces = [packed[begin:end] for begin, end in itertools.pairwise(bounds)]
    return torch.stack([pad(piece, (0, width - len(piece))) for piece in pieces])
