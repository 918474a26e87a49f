"""Advantages of pieces of episodes that stand one behind another, and are standardised together.

After each piece stands one row more, which only gives the value of its last observation. Shapes: N rows of all pieces, these included;
P pieces of at most T timesteps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlstep_hooks.observe.advantages import Estimate, Estimator, Rewards
from rlstep_hooks.observe.alternative_advantages import Documented
from rlstep_hooks.observe.roundings import ROUNDINGS

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Pieces:
    """What a rollout of such pieces came with, all on one device."""

    rewards: Sequence[Tensor]
    """The rewards of each piece."""
    ended: Tensor
    """(P,), whether its episode ended with it, so that nothing follows."""
    values: Tensor
    """(N,), the critic's."""
    targets: Tensor
    """(N,), the targets of its values."""
    advantages: Tensor
    """(N,), standardised."""

    @property
    def _sizes(self) -> list[int]:
        return [len(of) + 1 for of in self.rewards]

    @property
    def counted(self) -> Tensor:
        """(N,), whether the row is a timestep."""
        return torch.cat([torch.arange(size) < size - 1 for size in self._sizes])

    def gae(self, gamma: float, lam: float) -> Documented:
        """Targets and advantages before they are standardised, beside GAE's."""

        def padded(rows: Tensor) -> Tensor:
            return pad_sequence([of[:-1] for of in rows.split(self._sizes)], batch_first=True)

        last = torch.stack([of[-1] for of in self.values.split(self._sizes)]) * ~self.ended
        rewards = pad_sequence(list(self.rewards), batch_first=True)
        given = Rewards(rewards, padded(torch.ones(len(self.values))), values=padded(self.values), last_values=last)
        estimator = Estimator(tokens="gae", gamma=gamma, lam=lam, skips=True)
        return Documented((estimator,), given, padded(self.targets - self.values), padded(self.targets))

    def off(self, gamma: float, lam: float, least: float) -> Tensor:
        """The largest distance from the documented ones, in units of what rounding explains.

        Args:
            gamma: Discount.
            lam: GAE's lambda.
            least: The least standard deviation that is divided by.
        """
        return torch.maximum(self.gae(gamma, lam).off(), self._standardised(least).off(self.advantages, self.counted))

    def fit(self, gamma: float, lam: float, least: float) -> str:
        """The name of another calculation that gives these advantages; empty where none does."""
        gae = self.gae(gamma, lam)
        if float(gae.off()) > 1:
            return gae.fit()
        raw, alone = self.targets - self.values, self._standardised(least, of=self.counted)
        others = {
            "not normalised": Estimate(raw.double(), torch.zeros(())),
            "normalised over the timesteps alone": alone,
            "of the opposite sign": Estimate(-self._standardised(least).values, alone.error),
        }
        found = (words for words, other in others.items() if float(other.off(self.advantages, self.counted)) <= 1)
        return next(found, "")

    def _standardised(self, least: float, of: Tensor | None = None) -> Estimate:
        """(N,), less the mean and over the standard deviation of all rows, or of some."""
        raw = (self.targets - self.values).double()
        over = raw if of is None else raw[of]
        deviation = over.std(correction=0).clamp(min=least)
        values = (raw - over.mean()) / deviation
        rounding = ROUNDINGS * torch.finfo(self.targets.dtype).eps * self.targets.abs().max() / deviation
        return Estimate(values, rounding * (1 + values.abs()))
