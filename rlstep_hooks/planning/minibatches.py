"""How classic PPO loops cut a rollout into mini-batches and a run into rollouts: one function per treatment of remainders.

Sizes are samples: timesteps in classic RL, completions in RLHF. The `cut_...` functions return the samples of each update of one pass.
"""

from __future__ import annotations

from typing import Literal

from rlstep_hooks.planning.counting import countable

Rounding = Literal["down", "up"]
"""Whether a last rollout that would exceed the requested timesteps is left out ("down") or made in full ("up")."""


def rollouts_of(timesteps: int, samples_per_rollout: int, rounding: Rounding) -> int:
    """Rollouts of a run whose length is given in timesteps.

    "down": baselines ppo2 `nupdates`, CleanRL `num_iterations`. "up": Stable-Baselines3, whose loop continues until the timesteps are
    reached; lm-human-preferences `ceil_div`.
    """
    return timesteps // samples_per_rollout if rounding == "down" else -(-timesteps // samples_per_rollout)


def cut_by_count_floored(samples: int, count: int) -> tuple[int, ...]:
    """Slices whose size is `samples` / `count` rounded down, until the samples are used up: `count` or more of them (CleanRL).

    Samples left over by the division become further mini-batches, the last of them smaller.

    Raises:
        ZeroDivisionError: There are fewer samples than mini-batches.
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
    """Updates of all passes if each mini-batch is full and wraps around to the first samples (RLlib).

    Mini-batches span the ends of passes, so only the very last one is filled up.
    """
    return -(-samples * passes // size)
