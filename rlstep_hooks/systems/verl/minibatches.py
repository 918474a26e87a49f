"""What the formulas of verl ask of Python: mini-batches that are split, micro-batches in them, and numbers near others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.planning.counting import countable, divisors

if TYPE_CHECKING:
    from collections.abc import Iterable


def near_divisors(value: int, near: int, multiple: int) -> str:
    """The divisors of a value next to a number, below and above, that are a multiple of another, in words: "2 or 4"."""
    fitting = [d for d in divisors(value) if d % multiple == 0]
    below, above = [d for d in fitting if d < near], [d for d in fitting if d > near]
    return " or ".join(map(str, below[-1:] + above[:1]))


def split_minibatches(samples: int, per_process: int, processes: int) -> tuple[int, ...]:
    """Mini-batches of a worker that splits what it has: the last one is smaller where they do not divide.

    `data.split(ppo_mini_batch_size)` on each process (dp_actor.py 0.7.1:548, dp_critic.py 0.7.1:207).

    Args:
        samples: Samples of one rollout; a multiple of `processes`.
        per_process: Samples of one mini-batch on one process.
        processes: Data-parallel processes.
    """
    full, rest = divmod(samples // processes, per_process)
    return (per_process * processes,) * countable(full) + ((rest * processes,) if rest else ())


def microbatches(minibatches: Iterable[int], each: int) -> tuple[int, ...]:
    """Micro-batches of each mini-batch on one process.

    Args:
        minibatches: Samples of each mini-batch.
        each: Samples of one micro-batch, over all processes.
    """
    return tuple(-(-size // each) for size in minibatches)
