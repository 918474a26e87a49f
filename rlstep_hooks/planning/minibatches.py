"""How PPO loops cut a rollout into mini-batches, where that is not by division: one function for each treatment of remainders.

Sizes are samples: timesteps in classic RL, completions in RLHF.
"""

from __future__ import annotations

from rlstep_hooks.planning.counting import countable


def cut_by_size_kept(samples: int, size: int) -> tuple[int, ...]:
    """The samples of each update of one pass: slices of `size`, and a smaller last one (TRL's PPO, DeepSpeed-Chat)."""
    full, rest = divmod(samples, size)
    return (size,) * countable(full) + ((rest,) if rest else ())


def updates_wrapping(samples: int, size: int, passes: int) -> int:
    """Updates of all passes if each mini-batch is full and wraps around to the first samples (RLlib).

    Mini-batches span the ends of passes, so only the very last one is filled up.
    """
    return -(-samples * passes // size)
