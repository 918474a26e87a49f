"""OpenRLHF's sizes divided by a common factor that keeps each ratio and remainder, in one process. Pure integers.

Rollouts count prompts and updates count samples over all processes (`rlstep_hooks.systems.openrlhf.system`), so all is turned into
samples first. The one process takes the micro-batches of all.
"""

from __future__ import annotations

import math

import msgspec

from rlstep_hooks.planning.counting import divisors

SAMPLES_A_SECOND = 40
"""Samples of a tiny model that two cores generate and train on in a second, with the audit; assumed."""

_MICROBATCH_COSTS = 2
"""Samples that take as long as one micro-batch does beside its own."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a rollout and its updates, over all processes."""

    batch: int
    """`rollout.batch_size`, in prompts."""
    generated: int
    """`rollout.vllm_generate_batch_size`, in prompts; the same as `batch` where it is not given."""
    group: int
    update: int
    """`train.batch_size`, in samples."""
    microbatch: int
    """Samples of one forward and backward."""
    piece: int
    """Samples of one forward for log-probs."""
    passes: int = 1
    dynamic: bool = False
    """Whether token counts cut the micro-batches."""

    @property
    def prompts(self) -> int:
        """Prompts of a rollout."""
        return min(self.batch, self.generated)

    @property
    def samples(self) -> int:
        """Samples of a rollout."""
        return self.prompts * self.group

    @property
    def microbatches(self) -> int:
        """Micro-batches of one rollout; a number for each update where token counts cut them."""
        each = math.ceil(self.update / 4) if self.dynamic else self.microbatch
        return self.passes * math.ceil(self.samples / max(each, 1))


class Shrunk(msgspec.Struct, frozen=True):
    """Sizes that fit, and what they were divided by."""

    sizes: Sizes
    factor: int
    """Divisor of the samples of a rollout and of an update."""
    exact: bool
    """Whether each update still has its number of micro-batches."""


def shrink(real: Sizes, *, seconds: float, rollouts: int) -> Shrunk:
    """The largest sizes of which some rollouts can be rehearsed in some seconds, else the smallest that there are."""
    common = math.gcd(real.batch * real.group, real.generated * real.group, real.update)
    found = [
        Shrunk(small, factor, exact)
        for exact in (True, False)
        for factor in divisors(common)
        if (small := _divided(real, factor, exact)) is not None
    ]
    fitting = [each for each in found if _cost(each.sizes, rollouts) <= seconds * SAMPLES_A_SECOND]
    return (fitting or [min(found, key=lambda each: _cost(each.sizes, rollouts))])[0]


def rollouts_for(real: Sizes) -> int:
    """Rollouts that show a data epoch's end and a checkpoint with updates after it; more where several make one update.

    Two follow the checkpoint: the last one of a data epoch may be too small for an update.
    """
    return max(5, math.ceil(3 * real.update / (real.samples * real.passes)))


def _divided(real: Sizes, factor: int, exact: bool) -> Sizes | None:
    """The sizes divided by a factor; None where something would not divide."""
    samples, update = real.samples // factor, real.update // factor
    microbatch = real.microbatch // math.gcd(real.microbatch, factor)
    whole = microbatch * factor == real.microbatch
    if exact != (real.dynamic or whole):
        return None
    # Fewer micro-batches in each update: only where no remainder is lost by it.
    remainders = (
        real.update % real.microbatch,
        real.samples % real.microbatch,
        update % microbatch,
        samples % microbatch,
    )
    if not exact and any(remainders):
        return None
    for divisor in divisors(real.group):
        group = real.group // divisor
        if group < min(2, real.group):
            break
        batch, rest = divmod(real.batch * real.group, factor * group)
        generated, left = divmod(real.generated * real.group, factor * group)
        if rest or left or min(batch, generated) < min(2, real.prompts):
            continue
        return msgspec.structs.replace(
            real,
            batch=batch,
            generated=generated,
            group=group,
            update=update,
            microbatch=microbatch,
            piece=max(real.piece // factor, min(4, samples)),
        )
    return None


def _cost(sizes: Sizes, rollouts: int) -> float:
    """Samples that are generated and trained on, with those of the resumed run."""
    return 1.5 * rollouts * (sizes.samples + _MICROBATCH_COSTS * sizes.microbatches)
