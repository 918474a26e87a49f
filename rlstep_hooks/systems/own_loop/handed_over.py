"""What a loop hands over of its latest rollout, sample by sample: old log-probs, rewards and advantages, kept until it is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.systems.own_loop.advantages import Asked, Comparison, compared_with, differs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rlstep_hooks.systems.own_loop.advantages import EstimatorName

ON_A_DEVICE = "indices are on a device, and reading them would make the loop wait for it"
"""Why the samples of a micro-batch are not known."""


class HandedOver:
    """Numbers of one rollout of S samples. Each is a copy, and None where it was not handed over or has another shape."""

    def __init__(self) -> None:
        self.samples = 0
        """The number of samples, S."""
        self.advantages: Tensor | None = None
        """The advantages, (S, ...)."""
        self._old: Tensor | None = None
        """Old log-probs, (S, ...)."""
        self._rewards: Tensor | None = None
        """Rewards in the loop's own shape, until the advantages come."""
        self._counted: Tensor | None = None
        """(S,), which advantages count; None where all do."""

    def begin(self, samples: int) -> None:
        """Forget the numbers: another rollout was sampled."""
        self.samples = samples
        self.advantages = self._old = self._rewards = self._counted = None

    def rows(self, indices: Tensor | Sequence[int]) -> tuple[int, ...] | None:
        """Samples by number, from 0; negative ones count from the end, as for torch and numpy. None where they are on a device."""
        if isinstance(indices, torch.Tensor) and indices.device.type != "cpu":
            return None
        rows = tuple(indices.tolist() if hasattr(indices, "tolist") else map(int, indices))
        return tuple(row + self.samples if row < 0 else row for row in rows)

    def refreshed(self, old_logprobs: Tensor | None) -> None:
        """Old log-probs of the rollout were computed."""
        self._old = None if old_logprobs is None else _by_sample(old_logprobs, self.samples)

    def refreshed_rows(self, indices: Any, old: Tensor) -> Tensor | None:
        """What the refresh computed for these samples; None where it was not handed over."""
        if self._old is None:
            return None
        known = self._old[torch.as_tensor(indices, device=self._old.device)]
        return known if known.shape == old.shape else None

    def rewarded(self, rewards: Tensor | None) -> None:
        """Rewards of the rollout came; None where its advantages are not compared."""
        self._rewards = None if rewards is None else rewards.detach().clone()

    def advantaged(self, advantages: Tensor, estimator: EstimatorName, **given: Any) -> Comparison:
        """Keep the advantages of the rollout, and compare them with the formula; see `LoopAudit.advantages`.

        Raises:
            ValueError: There are no rewards, or what the loop says does not fit together.
        """
        rewards, self._rewards = self._rewards, None
        self.advantages = _by_sample(advantages, self.samples)
        mask = given.get("mask")
        self._counted = None if mask is None else _by_sample(mask != 0, self.samples)
        if rewards is None:
            raise ValueError("audit.advantages was called without audit.rewards before it")
        return compared_with(Asked(estimator, **given), rewards, advantages.detach().clone())

    def differing(self, indices: Any, advantages: Tensor) -> Tensor | None:
        """Whether a loss takes other advantages than the rollout has for these samples, (); None where that is not known."""
        if self.advantages is None:
            return None
        places = torch.as_tensor(indices, device=self.advantages.device)
        known, used = self.advantages[places], advantages.detach()
        if known.shape != used.shape:
            return None
        if self._counted is not None:
            counted = self._counted[places.to(self._counted.device)]
            known, used = known[counted.to(known.device)], used[counted.to(used.device)]
        return differs(known, used) if len(known) else None


def _by_sample(numbers: Tensor, samples: int) -> Tensor | None:
    """A copy with one row for each sample of the rollout; None if the shape does not fit."""
    own = numbers.detach().clone()
    if own.shape[:1] == (samples,):
        return own
    return own.reshape(samples) if own.numel() == samples else None
