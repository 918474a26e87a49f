"""How classic PPO loops cut a rollout into mini-batches, and a run into rollouts: one function for each policy on remainders.

Sizes are samples: timesteps in classic RL, completions in RLHF. The functions named `cut_...` return the samples behind each update
of one pass.
"""

from __future__ import annotations

from typing import Literal

from rlstep_hooks.planning.counting import countable

Rounding = Literal["down", "up"]
"""Whether a last rollout that the asked-for timesteps do not fill is left out, or made whole."""


def rollouts_of(timesteps: int, samples_per_rollout: int, rounding: Rounding) -> int:
    """Rollouts of a run whose length is given in timesteps.

    "down": baselines ppo2 `nupdates`, CleanRL `num_iterations`. "up": Stable-Baselines3, whose loop goes on while timesteps are
    missing; lm-human-preferences `ceil_div`.
    """
    return timesteps // samples_per_rollout if rounding == "down" else -(-timesteps // samples_per_rollout)


def cut_by_count_floored(samples: int, count: int) -> tuple[int, ...]:
    """Size by floor division, then slices of it until the samples are used up: up to `count` or more (CleanRL).

    Samples that the floor division leaves over become further mini-batches, the last of them smaller.

    Raises:
        ZeroDivisionError: Fewer samples than mini-batches.
    """
    size = samples // count
    if size == 0:
        raise ZeroDivisionError(f"{samples} samples in {count} mini-batches are 0 in each")
    return cut_by_size_kept(samples, size)


def cut_by_size_kept(samples: int, size: int) -> tuple[int, ...]:
    """Slices of `size`; a smaller last one is an update of its own (Stable-Baselines3, trlX)."""
    full, rest = divmod(samples, size)
    return (size,) * countable(full) + ((rest,) if rest else ())


def updates_wrapping(samples: int, size: int, passes: int) -> int:
    """Updates of all passes where each mini-batch is full and goes on at the beginning of the samples (RLlib).

    Mini-batches straddle the ends of passes, so that only the last of all needs filling up.
    """
    return -(-samples * passes // size)
