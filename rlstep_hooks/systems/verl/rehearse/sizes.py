"""The sizes of a launch of verl divided by a common factor that keeps the ratio of each mini-batch to its rollout. Pure integers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.planning.counting import divisors

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLES_A_SECOND = 12
"""Samples of a tiny model that two cores generate, score and train on in a second, with the audit; assumed, and on the low side."""
ROLLOUTS = 4
"""Rollouts that show the end of a data epoch, a checkpoint, and a resume within the next epoch."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a rollout and its mini-batches, over all processes."""

    prompts: int
    """`data.train_batch_size`."""
    group: int
    """`rollout.n`: samples of a prompt."""
    minibatch: int
    """`actor.ppo_mini_batch_size`, in prompts."""
    critic: int | None = None
    """`critic.ppo_mini_batch_size`, in prompts; None without a critic."""
    fetched: int | None = None
    """`data.gen_batch_size`: prompts that the loader gives at once; None for all of a rollout."""
    parts: int = 1
    """Parts in which a rollout is trained: `parameter_sync_step` of separate_async."""

    @property
    def samples(self) -> int:
        """Samples of a rollout."""
        return self.prompts * self.group

    @property
    def part(self) -> int:
        """Samples of one part with those that a V1 trainer fills it up with (trainer_base.py:1589-1606, 0.9.1)."""
        multiple = math.lcm(self.minibatch * self.group, (self.critic or 1) * self.group if self.critic else 1)
        return -(-self.samples // self.parts // multiple) * multiple

    @property
    def filled(self) -> int:
        """Samples of a rollout once each of its parts is filled up to a multiple."""
        return self.part * self.parts


class Shrunk(msgspec.Struct, frozen=True):
    """Sizes that fit, and what they were divided by."""

    sizes: Sizes
    rollouts: int

    def factor(self, real: Sizes) -> int:
        """Divisor of the samples of a rollout."""
        return max(1, real.samples // self.sizes.samples)


def shrink(real: Sizes, *, seconds: float, passes: int, rollouts: int | None = None) -> Shrunk:
    """The largest sizes that can be rehearsed in some seconds.

    Args:
        real: The sizes of the launch.
        seconds: The seconds for training alone, without the starts of the framework.
        passes: `ppo_epochs`.
        rollouts: How many rollouts; None for as many as show everything once.
    """
    wanted = rollouts or ROLLOUTS
    most = seconds * SAMPLES_A_SECOND / (wanted * (1 + passes) / 2)
    found = list(_smaller(real))
    fitting = [each for each in found if each.filled <= most]
    return Shrunk(fitting[0] if fitting else min(found, key=lambda each: each.filled), wanted)


def _smaller(real: Sizes) -> Iterator[Sizes]:
    """Sizes from the real ones downwards. Groups get smaller before there is one prompt only; none has fewer than two samples."""
    common = math.gcd(real.prompts, real.minibatch, real.critic or 0, real.fetched or 0)
    for group in sorted(divisors(real.group), reverse=True):
        if group < min(2, real.group):
            continue
        for factor in divisors(common):
            small = Sizes(
                prompts=real.prompts // factor,
                group=group,
                minibatch=real.minibatch // factor,
                critic=real.critic // factor if real.critic else None,
                fetched=real.fetched // factor if real.fetched else None,
                parts=real.parts,
            )
            if small.prompts >= 2 or real.prompts < 2 or (real.group > 1 and small.prompts * group >= 4):
                yield small


def pieces(samples: int, wanted: int) -> int:
    """Samples of a micro-batch that cuts so many samples into as many pieces as wanted, or the next fewer that come out even."""
    return samples // max(each for each in divisors(samples) if each <= max(1, wanted))
