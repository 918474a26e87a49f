"""The sizes of a launch of TRL divided by a common factor that keeps each ratio, remainder and accumulation. Pure integers."""

from __future__ import annotations

import msgspec

from rlstep_hooks.planning.counting import divisors

SAMPLES_A_SECOND = 40
"""Samples of a tiny model that two cores generate, score and train on in a second, with the checks of the audit; measured low."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a rollout and its updates, over all processes."""

    microbatch: int
    """Samples of one forward and backward."""
    group: int
    """Samples of one prompt."""
    accumulation: int
    slots: int
    """Micro-batches of samples in one rollout."""
    passes: int = 1

    @property
    def samples(self) -> int:
        """Samples of a rollout."""
        return self.microbatch * self.slots

    @property
    def prompts(self) -> int:
        """Prompts of a rollout."""
        return self.samples // self.group

    @property
    def whole(self) -> bool:
        """Whether a rollout holds whole groups."""
        return self.samples % self.group == 0


class Shrunk(msgspec.Struct, frozen=True):
    """Sizes that fit, and what they were divided by."""

    sizes: Sizes
    factor: int
    """Divisor of the samples of a rollout."""
    rollouts: int


def shrink(real: Sizes, *, seconds: float, rollouts: int | None = None) -> Shrunk:
    """The largest sizes that can be rehearsed in some seconds.

    The number of micro-batches stays, in a rollout and in an update; each gets smaller, and the group with it only where it must.
    """
    wanted = rollouts or rollouts_for(real)
    if not real.whole:
        return Shrunk(real, 1, wanted)
    samples = seconds * SAMPLES_A_SECOND
    found = [
        (factor, small)
        for factor in divisors(real.microbatch)
        if (small := _divided(real, factor)) is not None and (small.prompts >= 2 or real.prompts < 2)
    ] or [(factor, small) for factor in divisors(real.microbatch) if (small := _divided(real, factor)) is not None]
    fitting = [each for each in found if _cost(each[1], wanted) <= samples]
    factor, small = fitting[0] if fitting else found[-1]
    if not fitting and rollouts is None:
        wanted = max(2, min(wanted, int(samples // max(_cost(small, 1), 1))))
    return Shrunk(small, factor, wanted)


def rollouts_for(real: Sizes) -> int:
    """Rollouts that show the end of a data epoch and a checkpoint between two updates; more where several make one update."""
    each = real.slots * real.passes
    return max(4, -(-3 * real.accumulation // each))


def _cost(sizes: Sizes, rollouts: int) -> float:
    """Samples that are generated and trained on; half of them again after the resume. A micro-batch costs as much as 4 samples."""
    microbatches = sizes.slots * sizes.passes
    return 1.5 * rollouts * (sizes.samples + microbatches * max(sizes.microbatch, 4))


def _divided(real: Sizes, factor: int) -> Sizes | None:
    small = msgspec.structs.replace(real, microbatch=real.microbatch // factor)
    for divisor in divisors(real.group):
        if real.group // divisor >= min(2, real.group):
            each = msgspec.structs.replace(small, group=real.group // divisor)
            if each.whole and (each.prompts < real.prompts or factor == 1 or real.prompts == 1):
                return each
    return None


def rows_for(small: Sizes, *, rollouts_per_epoch: int, remainder: int, real: Sizes) -> int:
    """Rows of a data epoch with so many rollouts; some are dropped at its end where the real set's remainder is."""
    left = min(small.prompts - 1, max(1, remainder * small.prompts // real.prompts)) if remainder else 0
    return rollouts_per_epoch * small.prompts + left
