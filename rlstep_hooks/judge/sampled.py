"""Was a text drawn from a policy? A test of its tokens that holds at all times. Pure arithmetic on sums.

For a token drawn from the distribution p, d = -log p(token) - entropy(p) has mean 0 given everything before it, so its running sum is
a martingale. With -log p cut at `cap`, a bound above the logarithm of the vocabulary, every d lies between -cap and cap, and the cut
moves its mean by at most `vocabulary * exp(-cap - 1)`: each token below exp(-cap) adds at most p * (-log p - cap) <= exp(-cap - 1).

For numbers d >= -1 with mean at most m, exp(l * d - (-log(1 - l) - l) * d**2) <= 1 + l * d for every 0 <= l < 1 (Fan, Grama, Liu 2015,
Exponential inequalities for martingales with applications, proposition 4.1). So exp(l * (S - n * m) - (-log(1 - l) - l) * Q) with
S = sum d and Q = sum d**2 is a supermartingale whatever the variance is, and an average of such numbers passes 1 / alpha with a
probability of at most alpha, at any time (Ville's inequality). Both signs of d are tested.
"""

from __future__ import annotations

import math

import msgspec

FALSE_ALARMS = 1e-8
"""Probability of a false alarm of one process in a whole run, however long: below 1e-6 for a hundred processes."""

RATES = tuple(0.9 * 0.5**place for place in range(12))
"""The values of l: for every true mean between 1e-3 and 1 in units of the variance one is within a factor of 1.5 of the best."""


class Surprisal(msgspec.Struct, frozen=True):
    """Sums over tokens of d = -log p(token) - entropy, cut as above; in nats."""

    tokens: int = 0
    total: float = 0.0
    squares: float = 0.0
    largest: float = 0.0

    def __add__(self, other: Surprisal) -> Surprisal:
        return Surprisal(
            self.tokens + other.tokens,
            self.total + other.total,
            self.squares + other.squares,
            max(self.largest, other.largest),
        )

    @property
    def mean(self) -> float:
        """Nats a token by which the text is less probable than one drawn from the policy."""
        return self.total / max(self.tokens, 1)

    def evidence(self, *, cap: float, allowed: float) -> float:
        """The logarithm of how much more probable these sums are where the mean is not within `allowed` of 0. At most as large as
        `log(1 / alpha)` but with probability alpha, if the mean is within it.

        Args:
            cap: The cut of -log p.
            allowed: What the mean may be, with the effect of the cut, in nats a token.
        """
        excess = (abs(self.total) - self.tokens * allowed) / cap
        squares = self.squares / cap**2
        best = max(rate * excess - (-math.log1p(-rate) - rate) * squares for rate in RATES)
        return best - math.log(2 * len(RATES))

    def temperature(self) -> float | None:
        """The temperature, as a multiple of the policy's own, at which a text has about these sums; None where none fits.

        The mean of -log p falls by its variance for each unit of 1 / temperature; the variance is taken as constant.
        """
        variance = self.squares / max(self.tokens, 1) - self.mean**2
        inverse = 1 - self.mean / variance if variance > 0 else 0.0
        return 1 / inverse if inverse > 0 else None

    def kept(self) -> float | None:
        """The probability that a truncation leaves, at which a text has about this mean; None where it is too improbable for one.

        mean = (1 - kept) * (mean of d in what is kept - mean of d in what is cut off); the latter begins at the largest d seen, and
        falls off about as exp(-d).
        """
        return None if self.mean >= 0 else 1 - self.mean / (self.mean - self.largest - 1)


class SampledTest:
    """The test of one run: of all its tokens together, and of each rollout by itself, so that a fault in mid-run shows at once.

    Args:
        cap: The cut of -log p.
        vocabulary: Number of tokens that may be drawn.
        margin: Nats a token that numerical differences between sampler and trainer explain.
    """

    def __init__(self, *, cap: float, vocabulary: int, margin: float, false_alarms: float = FALSE_ALARMS) -> None:
        self._cap = cap
        self._allowed = margin + vocabulary * math.exp(-cap - 1)
        self._bound = math.log(2 / false_alarms)
        """Half of the false alarms for the run, half for its rollouts."""
        self._run = Surprisal()
        self._rollout = Surprisal()
        self._number = -1
        self._rollouts = 0

    def add(self, rollout: int, surprisal: Surprisal) -> Surprisal | None:
        """Add tokens of a rollout.

        Returns:
            The sums that prove that they were not drawn from the policy; None where nothing is proved.
        """
        if rollout != self._number:
            self._number, self._rollout = rollout, Surprisal()
            self._rollouts += 1
        self._rollout += surprisal
        self._run += surprisal
        # The bounds of all rollouts add up: 1/2 + 1/6 + 1/12 + ... = 1.
        bound = self._bound + math.log(self._rollouts * (self._rollouts + 1))
        if self._rollout.evidence(cap=self._cap, allowed=self._allowed) > bound:
            proved = self._rollout
        elif self._run.evidence(cap=self._cap, allowed=self._allowed) > self._bound:
            proved = self._run
        else:
            return None
        self._rollout = self._run = Surprisal()
        return proved
