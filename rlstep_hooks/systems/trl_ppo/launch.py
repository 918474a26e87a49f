"""Functions that the formulas of `rlstep_hooks.systems.trl_ppo.system` call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.planning import accumulation
from rlstep_hooks.planning.counting import countable
from rlstep_hooks.planning.formula import NotKnownError
from rlstep_hooks.planning.minibatches import cut_by_size_kept
from rlstep_hooks.planning.schedule import Flush, Sampling

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.systems.engine.request import Request


def is_rloo(launch: Request, names: Iterable[str]) -> bool:
    """Whether a launch is one of RLOOTrainer: by the name of its script, by `rloo_k`, or by the configuration class that it builds."""
    script = launch.command.program.name.rpartition("/")[2]
    given = any(launch.settings.is_given(f"RLOOConfig.{name}") for name in names)
    return given or "rloo" in script or launch.settings.is_given("rloo_k")


def pieces(minibatch: int, microbatch: int, minibatches: int) -> tuple[int, ...]:
    """Samples of the micro-batches of one pass: each mini-batch is cut on its own, and its last piece may be smaller."""
    one = cut_by_size_kept(minibatch, microbatch)
    countable(len(one) * minibatches, "micro-batches of one pass")
    return one * minibatches


def flush(rollouts_per_epoch: int, every: int, batches: int) -> Flush:
    """The rollouts in which every micro-batch is an update.

    Args:
        rollouts_per_epoch: Rollouts in one pass over the rows.
        every: Rollouts between two samplings of completions for the logs.
        batches: Batches of the evaluation loader on one process; 0 where nothing is sampled.
    """
    return Flush(
        rollouts_per_epoch=rollouts_per_epoch, sampling=Sampling(every=every, batches=batches) if batches else None
    )


def updates_of_run(microbatches: int, window: int, flushed: Flush, rollouts: int) -> int:
    """`rlstep_hooks.planning.accumulation.updates_of_run`; not known if the run has absurdly many passes over the rows."""
    try:
        return accumulation.updates_of_run(microbatches, window, flushed, rollouts)
    except OverflowError as error:
        raise NotKnownError(str(error)) from None
