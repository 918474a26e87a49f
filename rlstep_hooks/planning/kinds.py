"""The kinds that a Schedule tells apart: sources, clocks, remainders, and rollouts that make more updates than the others."""

from __future__ import annotations

from typing import Literal

import msgspec

OldLogProbSource = Literal["recompute", "at_rollout", "engine", "detach", "none"]
"""Where the denominator of the ratio comes from. With `detach` it is the current forward, so the ratio is 1 by construction; with
`none` the loss has no ratio (A2C)."""

ReferenceSource = Literal["none", "at_rollout", "in_loss"]
"""Where the log-probs of the reference model are computed."""

PartialWindow = Literal["flush", "carry"]
"""What happens to an accumulation window that the end of a data epoch cuts short: a smaller update, or gradients carried over."""


Loop = Literal["loader", "phases"]
"""What drives a run: a loader whose micro-batches trigger both rollouts and updates (TRL), or phases: each rollout is followed by its
updates (verl, OpenRLHF, classic PPO)."""

Remainder = Literal["error", "keep", "drop", "pad", "carry", "wrap", "rebalance", "spread", "flush", "data_dependent"]
"""What happens to samples that do not fill a mini-batch: the run ends with an error; they form a smaller mini-batch (keep); they are
dropped; the rollout is padded; their gradients are carried into the next rollout; the pass continues at its first samples (wrap);
mini-batches are rebalanced or spread evenly; each becomes an update (flush); or it depends on the data."""

Bound = Literal["exact", "upper", "data_dependent"]
"""Whether a count is exact, is an upper bound (an early stop may save some), or depends on the data."""

StepUnit = Literal["rollout", "update", "microbatch", "sample", "prompt", "timestep", "epoch"]
"""What one "step" in a framework's logs can count."""

Clock = Literal["update", "part", "rollout", "pass", "microbatch", "sample"]
"""What one tick of a learning-rate scheduler can count."""

Syncs = Literal["unseen", "after_updates", "first_and_after_updates", "first_and_before_updates"]
"""When weights are synced to the rollout engine: unknown, after the updates of each rollout, or also before the first rollout; or
before the first rollout and before the updates of each (the engine generates the next rollout meanwhile)."""

CriticOrder = Literal["before", "after", "free"]
"""When a critic with its own updates is trained on a rollout: before the policy, after it, or in any order with it."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Completions that a trainer samples from its evaluation set between rollouts, for its logs.

    The loop over the evaluation loader ends with `break`, so accelerate considers that loader to be in use until the loader of prompts
    starts again. It is at its last batch if it has only one batch, and never otherwise.
    """

    every: int
    """Rollouts between two samplings; the first sampling follows the first rollout."""
    batches: int
    """Batches of the evaluation loader on one process, at least 1."""


class Flush(msgspec.Struct, frozen=True, kw_only=True):
    """Rollouts in which every micro-batch is an update, because the loader of prompts is at its last batch.

    accelerate ends a window at each micro-batch while the loader in use is at its end (accelerator.py `_do_sync`, 1.10 to 1.15).
    """

    rollouts_per_epoch: int
    """Rollouts in one pass of the loader."""
    sampling: Sampling | None = None
    """Completions sampled between rollouts, which put another loader in use; None if there are none."""

    def rollouts_before(self, start: int) -> int:
        """Rollouts of the pass that begins at rollout `start` (counted from 0) that come before each micro-batch is an update; all
        rollouts of the pass if that never happens."""
        last = self.rollouts_per_epoch - 1
        if self.sampling is None:
            return last
        sampled = -start % self.sampling.every
        if sampled >= last:
            return last
        return sampled + 1 if self.sampling.batches == 1 else self.rollouts_per_epoch

    def covers(self, rollout: int) -> bool:
        """Whether every micro-batch of this rollout (counted from 0) is an update."""
        place = rollout % self.rollouts_per_epoch
        return place >= self.rollouts_before(rollout - place)
