"""How verl's trainers cut one rollout into mini-batches. Each becomes one update.

Symbols in comments: T prompts of a rollout, n samples of a prompt, M and Mc prompts of a mini-batch of the policy and of the
critic, W data-parallel processes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlstep_hooks.planning.counting import countable, divisors
from rlstep_hooks.planning.refusal import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable


def padded_samples(samples: int, sizes: Iterable[int]) -> int:
    """Samples of a rollout after verl's V1 trainer filled it up with samples that train nothing.

    T*n rounded up to a multiple of lcm(W, M*n, Mc*n), where a role counts only if this rollout updates it (trainer_base.py
    0.9.1:1589-1606 `_get_required_batch_multiple`, padding_utils.py 0.9.1:165-176).

    Args:
        samples: Samples generated.
        sizes: W, and the samples of a mini-batch of each role.
    """
    multiple = math.lcm(*sizes)
    return -(-samples // multiple) * multiple


def whole_minibatches(samples: int, prompts: int, group: int, processes: int) -> tuple[int, ...]:
    """Mini-batches of an engine worker, which takes only whole ones: T*n / (M*n) of M*n samples.

    Args:
        samples: Samples to train in one pass, padding included; a multiple of `group`.
        prompts: M: prompts of one mini-batch.
        group: n: samples of a prompt.
        processes: W: data-parallel processes.

    Raises:
        PlanError: The sizes do not divide, with verl's own message (engine_workers.py 0.9.1:266-269, tensordict_utils.py
            0.9.1:588).
    """
    size = prompts * group
    multiple = processes // math.gcd(processes, group)
    if size % processes:
        raise PlanError(
            f"AssertionError: Got mini_batch_size={size} and self.engine.get_data_parallel_size()={processes}",
            when="after the first rollout",
            fix=f"choose ppo_mini_batch_size as a multiple of {multiple}",
            source="workers/engine_workers.py TrainingWorker.train_mini_batch",
        )
    if samples % size:
        generated = samples // group
        near = " or ".join(map(str, _near_divisors(generated, prompts, multiple)))
        more = -(-generated // prompts) * prompts
        rollouts = " or ".join(map(str, [more - prompts] * (more > prompts) + [more]))
        raise PlanError(
            f"AssertionError: {samples // processes} % {size // processes} != 0",
            when="after the first rollout",
            fix=f"choose ppo_mini_batch_size {near}, or rollouts of {rollouts} prompts",
            source="utils/tensordict_utils.py make_iterator",
        )
    return (size,) * countable(samples // size)


def _near_divisors(value: int, near: int, multiple: int) -> list[int]:
    """The divisors of a value next to a number, below and above, that are a multiple of another."""
    fitting = [d for d in divisors(value) if d % multiple == 0]
    below, above = [d for d in fitting if d < near], [d for d in fitting if d > near]
    return below[-1:] + above[:1]


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
