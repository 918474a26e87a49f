"""What the policies of sb3-contrib get beside observations and actions: masks of actions, states of LSTMs, beginnings of episodes.

Source: sb3-contrib 2.7.0 and 2.9.2, ppo_mask.py and ppo_recurrent.py `train`: `evaluate_actions` gets those of the mini-batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

_BESIDE = (("action_masks",), ("lstm_states", "episode_starts"))
"""Fields of a mini-batch that are arguments of the policy too, in their order."""


def beside_of(samples: Any) -> tuple[str, ...]:
    """Which of the numbers beside the samples a mini-batch has."""
    return next((names for names in _BESIDE if hasattr(samples, names[0])), ())


def beside_differ(samples: Any, given: dict[str, Any]) -> Tensor:
    """How many numbers the policy gets otherwise than the buffer gave them, ().

    Args:
        samples: What the buffer gave for a mini-batch.
        given: The policy's arguments by name.
    """
    counts = [torch.zeros((), dtype=torch.int64)]
    for name in beside_of(samples):
        known, used = list(_tensors(getattr(samples, name))), list(_tensors(given.get(name)))
        if [of.shape for of in known] != [of.shape for of in used]:
            return torch.ones((), dtype=torch.int64)
        counts += [(one != other).sum() for one, other in zip(known, used, strict=True)]
    return torch.stack([count.to(counts[-1].device) for count in counts]).sum()


def _tensors(of: Any) -> Iterator[Tensor]:
    """The tensors of a state: that of an LSTM is a tuple of tuples."""
    if isinstance(of, Tensor):
        yield of
    elif isinstance(of, tuple):
        for part in of:
            yield from _tensors(part)
