"""Single tokens whose log-probs are apart: what the mean over all of them hides.

The bounds follow from the tolerance of the mean alone. Distances that rounding makes are the rarer the larger they are. For all such
distances with a mean of m, at most the share m / 2t is beyond t: a density that falls is a mixture of uniform ones, and one on [0, a],
whose mean is a/2, has 1 - t/a <= a/4t beyond t. So more tokens beyond t than the tolerance of the mean leaves room for are not rounded:
they are other tokens than the rest.

Measured for comparison: vLLM against TRL's trainer in bfloat16, and the trainer against itself in chunks of another size, leave
[0.9, 1.1] on 7.5 % and 8.0 % of 3916 tokens, with 0.11 and 0.12 in the 95th percentile and 0.48 and 0.66 at most
(https://github.com/huggingface/trl/issues/6789, comment of 2026-09-17). So neither such a share nor the largest distance accuses a run
in reduced precision by itself. Logits that are themselves in bfloat16 put distances on a grid and not on a density that falls: between
16 and 32 its step of 0.125 lies outside. To reach the bound of 26 %, three times the tokens measured would have to be a step off.
"""

from __future__ import annotations

import math

import msgspec

from rlstep_hooks.judge.rules.certain import BEYOND_ROUNDING, SEVERAL
from rlstep_hooks.judge.rules.precision import how_far

NEAREST_EDGE = math.log(1.1)
"""The distance of the nearer edge of [0.9, 1.1] from 1, as a log ratio."""
FARTHEST = 0.01
"""The share of the tokens beyond the 99th percentile."""
FINER = {"float16": 1 / 8}
"""How much finer than bfloat16, for which the tolerances of reduced precision are, a dtype rounds: float16 has 10 bits of fraction, and
bfloat16 has 7 (https://github.com/huggingface/transformers/issues/31267 compares the log-probs of generation and forward in both)."""
FEWEST = SEVERAL
"""Tokens beyond a bound that are no chance: a tie between two experts of a mixture, which any rounding may turn, moves a single one."""


class TokensApart(msgspec.Struct, frozen=True):
    """The numbers of single tokens beside their mean."""

    tokens: int
    outside: float
    """The share of the tokens whose ratio is outside of [0.9, 1.1]."""
    near_largest: float
    """The 99th percentile of |difference of log-probs|."""


def tokens_apart(tokens: int | None, outside: float | None, near_largest: float | None) -> TokensApart | None:
    """The numbers of single tokens; None where an event has the mean alone, as older records do."""
    if not tokens or outside is None or near_largest is None:
        return None
    return TokensApart(tokens, outside, near_largest)


class Distance(msgspec.Struct, frozen=True):
    """How far log-probs of two origins are from each other, by the mean over their tokens and by single ones."""

    mean: float
    """The mean of |difference of log-probs| over the tokens, in nats."""
    tolerance: float
    """The largest mean that rounding explains."""
    apart: TokensApart | None
    """Distances of single tokens; None where nothing but the mean is known."""
    dtypes: tuple[str, ...]
    """The dtypes that both origins computed in, as torch names them."""

    @property
    def right(self) -> bool:
        """Whether rounding explains the mean, and the tokens too where they are known."""
        return self.mean <= self.tolerance and self._of_tokens <= 1.0

    @property
    def times(self) -> float:
        """How many times its bound that is what is beyond one: the mean, else the tokens that it hides."""
        return self.mean / self.tolerance if self.mean > self.tolerance else self._of_tokens

    @property
    def degree(self) -> str:
        """How far that is, as `ValueRule.fail_by` takes it."""
        return how_far(self.times, 1.0)

    @property
    def beyond(self) -> float | None:
        """How many times make it certain where the mean hides it; None where that is the rule's own number."""
        return None if self.mean > self.tolerance else float(BEYOND_ROUNDING)

    @property
    def variant(self) -> str:
        """What tells findings about tokens that the mean hides from others."""
        return "" if self.mean > self.tolerance else "tokens"

    def expected(self, of_mean: str) -> str:
        """What is not so: what a rule expects of the mean, or the bounds of single tokens."""
        if self.mean > self.tolerance:
            return of_mean
        return f"at most {self._most_outside:.2%} of the tokens outside of [0.9, 1.1], and {self._most_far:.2g} in the 99th percentile"

    def observed(self, of_mean: str) -> str:
        """What a rule says of the mean, with the numbers of single tokens where they are known."""
        if self.apart is None:
            return of_mean
        far, share = self.apart.near_largest, self.apart.outside
        return f"{of_mean}, {far:.2g} in the 99th percentile; {share:.2%} of {self.apart.tokens} tokens are outside of [0.9, 1.1]"

    @property
    def _of_tokens(self) -> float:
        """How many times its bound the farther number of single tokens is; 0 where too few tokens are beyond it."""
        if self.apart is None:
            return 0.0
        share = (
            self.apart.outside / self._most_outside if round(self.apart.outside * self.apart.tokens) >= FEWEST else 0.0
        )
        far = self.apart.near_largest / self._most_far if FARTHEST * self.apart.tokens >= FEWEST else 0.0
        return max(share, far)

    @property
    def _rounding(self) -> float:
        """The largest mean that the rounding of these dtypes explains."""
        return self.tolerance * max(FINER.get(dtype, 1.0) for dtype in self.dtypes)

    @property
    def _most_outside(self) -> float:
        return self._rounding / (2 * NEAREST_EDGE)

    @property
    def _most_far(self) -> float:
        return self._rounding / (2 * FARTHEST)


BY_MEANS = "by means alone"
"""The note of a rule whose comparisons came without numbers of single tokens."""
