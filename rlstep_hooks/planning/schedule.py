"""Schedule: what a configuration says will happen, in the field's own quantities.

The home of a system (`rlstep_hooks.systems.<name>`) normalises its configuration to one `Schedule`. Everything here
is integers and fractions; nothing imports torch or a framework. Sizes are global samples unless a name says otherwise.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any, Literal

import msgspec

from rlstep_hooks.planning.counting import countable

OldLogProbSource = Literal["recompute", "at_rollout", "engine", "detach", "none"]
"""Where the denominator of the ratio comes from; `detach` is the current forward itself, so the ratio is 1 by construction; with
`none` the loss has no ratio (A2C)."""

ReferenceSource = Literal["none", "at_rollout", "in_loss"]
"""Where the log-probs of the reference model are computed."""

PartialWindow = Literal["flush", "carry"]
"""What becomes of an accumulation window that a data epoch's end cuts short: a smaller update, or gradients carried over."""


Loop = Literal["loader", "phases"]
"""What drives a run: a loader whose micro-batches set off rollouts and updates alike (TRL), or rollout after rollout, each followed
by a phase of updates (verl, OpenRLHF, classic PPO)."""

Remainder = Literal["error", "keep", "drop", "pad", "carry", "wrap", "rebalance", "spread", "flush", "data_dependent"]
"""What becomes of samples that do not fill a mini-batch: the run ends with an error; a smaller last mini-batch is kept; they are
dropped; the rollout is padded; gradients are carried into the next rollout; the pass goes on at its beginning (wrap); mini-batches
are rebalanced or spread evenly; each becomes an update (flush); or it depends on the data."""

Bound = Literal["exact", "upper", "data_dependent"]
"""How a count holds: exactly, as an upper bound (an early stop may save some), or only once the data is seen."""

StepUnit = Literal["rollout", "update", "microbatch", "sample", "prompt", "timestep", "epoch"]
"""What one "step" of a framework's logs can be."""

Clock = Literal["update", "rollout", "pass", "microbatch", "sample"]
"""What one tick of a learning-rate scheduler can follow."""

Syncs = Literal["unseen", "after_updates", "first_and_after_updates"]
"""When weights go to the rollout engine: where nothing is known, after the updates of each rollout, or also before the first."""

CriticOrder = Literal["before", "after", "free"]
"""When a critic with updates of its own is trained on a rollout: before the policy, after it, or in any order with it."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Completions for the logs that a trainer samples from its evaluation set between rollouts.

    The loop over the evaluation loader ends with `break`, so accelerate takes that loader for the one in use, until the loader
    of prompts begins anew: it stands on its last batch if it has one batch only, and never otherwise.
    """

    every: int
    """Rollouts between two samplings; the first rollout is followed by one."""
    batches: int
    """Batches of the evaluation loader on one process; at least 1."""


class Flush(msgspec.Struct, frozen=True, kw_only=True):
    """Rollouts in which every micro-batch is an update: those whose loader of prompts stands on its last batch.

    accelerate ends a window at each micro-batch while the loader in use is at its end (accelerator.py `_do_sync`, 1.10 to 1.15).
    """

    rollouts_per_epoch: int
    """Rollouts of one pass of the loader."""
    sampling: Sampling | None = None
    """Completions sampled between rollouts, which put another loader in use; None where there are none."""

    def rollouts_before(self, start: int) -> int:
        """Rollouts of the pass that begins at rollout `start` (counted from 0) before each micro-batch becomes an update; all of
        them where that never happens."""
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


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The normalised quantities of one run.

    A value of None means that it cannot be known before the run; `not_evaluated` then holds the reason under the same name.
    """

    framework: str
    """Name of the framework as people write it, for example "TRL"."""
    version: str
    """Release of the framework whose formulas were used."""
    algorithm: str
    """The trainer's algorithm, for example "GRPO"."""

    world_size: int
    """Data-parallel processes that train on different samples."""
    prompts_per_rollout: Fraction
    """Distinct prompts of one rollout, over all processes."""
    samples_per_prompt: int
    """Completions generated for one prompt (the group size)."""
    samples_per_rollout: int
    """Completions of one rollout, over all processes."""
    samples_of_last_rollout: int = 0
    """Samples of the last rollout of each pass of the loader; 0 where it is no smaller than the others."""
    rollouts_per_cycle: int = 1
    """Generation phases after which the order of events repeats; they fall on the first micro-batches of the cycle."""
    samples_per_microbatch: int | None
    """Samples of one forward and backward, over all processes; None where token counts decide."""
    reuse_epochs: int
    """Passes over the samples of one rollout."""
    microbatches_per_rollout: int | None
    """Micro-batches that one process trains on the samples of one rollout, all passes together."""
    microbatches_per_update: int | None
    """Micro-batches that accumulate before one optimizer step; None where they differ from update to update."""
    samples_per_update: int | None
    """Samples behind one optimizer step, over all processes; of the first where the last of a pass is smaller."""
    updates_per_rollout: Fraction
    """Optimizer steps for each rollout; below 1 when several rollouts feed one update."""
    updates_bound: Bound = "exact"
    """How `updates_per_rollout` and the totals hold."""
    loop: Loop = "loader"
    """What drives rollouts and updates."""
    minibatches: tuple[int, ...] = ()
    """Samples behind each update of one pass over a rollout, padding included; empty where the loader's windows decide."""
    warmup_minibatches: tuple[int, ...] = ()
    """Of a critic: the same while the policy waits (`frozen_rollouts`), where padding then differs; empty where it does not."""
    remainder: Remainder = "error"
    """What becomes of samples that do not fill a mini-batch."""
    flush: Flush | None = None
    """Rollouts in which every micro-batch is an update; None where no rollout is so."""
    samples_added_per_rollout: int = 0
    """Padding samples that a rollout gets so that it divides."""
    samples_dropped_per_rollout: int = 0
    """Generated samples that one pass does not train."""
    frozen_rollouts: int = 0
    """Rollouts at the start that make no update of this role (critic warm-up for the policy)."""
    frozen_samples_kept: bool = False
    """Whether samples of frozen rollouts wait in the buffer and are trained with the first rollout that is not frozen."""
    max_age: int | None = 0
    """Rollouts by which the sampler's weights may be behind when a rollout is trained; 0 when training is synchronous."""
    syncs: Syncs = "unseen"
    """When weights go to the rollout engine."""
    partial_window: PartialWindow = "flush"
    """What the end of a data epoch does to an accumulation window that is not full."""

    rows: int | None
    """Rows of the training set."""
    rows_dropped_per_epoch: int | None
    """Rows that the sampler leaves out in each pass, because they do not fill a rollout."""
    rows_bound: Bound = "exact"
    """How the rows that a rollout consumes hold (filtering by reward consumes more)."""
    epoch_ends_between_rollouts: bool = True
    """Whether a pass of the loader ends between two rollouts; prefetching and fetches of another size move its end."""
    rows_reshuffled: bool
    """Whether each pass draws a new order, so that the dropped rows differ from pass to pass."""
    rollouts_per_epoch: int | None
    """Rollouts of one pass of the loader."""
    microbatches_per_epoch: int | None
    """Micro-batches of one process in one pass of the loader."""
    rollouts: int | None
    """Rollouts of the whole run."""
    updates: int | None
    """Policy updates of the whole run."""
    data_epochs: Fraction | None
    """Rows consumed over the rows of the set."""
    loader_epochs: Fraction | None
    """Passes of the loader, which drops a remainder."""

    old_logprob_source: OldLogProbSource
    """Where old log-probs come from."""
    lags: tuple[int, ...]
    """Updates between a refresh and the forwards that use it, each value that occurs, ascending."""
    ratio_one_updates: tuple[int, ...]
    """Which updates of the repeating pattern (counted from 1) have ratio 1 by construction on every micro-batch."""
    reference_source: ReferenceSource = "none"
    """Where reference log-probs are computed."""

    lr_ticks: int | None
    """Learning-rate scheduler steps that the run takes."""
    lr_horizon: int | None
    """Length of the schedule that the learning-rate scheduler was built for."""
    lr_clock: Clock = "update"
    """What one tick of the learning-rate scheduler follows."""
    step_unit: StepUnit = "update"
    """What "step" in this framework's logs counts."""
    step_means: str
    """The same in words, for example "1 step = 1 rollout = 4 updates"."""
    critic: Schedule | None = None
    """The critic's own schedule, where it has updates of its own."""
    critic_order: CriticOrder = "before"
    """When the critic is trained on a rollout."""

    settings: dict[str, Any] = {}
    """What the user wrote: the framework's own names and values behind these numbers."""
    sources: dict[str, str] = {}
    """For each formula used: where it is documented or which source line computes it."""
    not_evaluated: dict[str, str] = {}
    """Quantities that cannot be known, with the reason."""

    @classmethod
    def ppo(
        cls,
        *,
        actors: int,
        steps: int,
        epochs: int = 1,
        minibatches: int | tuple[int, ...] = 1,
        rollouts: int | None = None,
        microbatches: int = 1,
        early_stop: bool = False,
        old_logprobs: OldLogProbSource = "at_rollout",
        critic: Schedule | None = None,
        critic_order: CriticOrder = "free",
        algorithm: str = "PPO",
    ) -> Schedule:
        """The plan of a PPO loop of one's own: `actors * steps` samples a rollout, `epochs` passes over them in mini-batches.

        `Schedule.ppo(actors=8, steps=128, epochs=3, minibatches=4)` is the PPO paper's Atari experiment: 1 024 samples a rollout,
        12 updates of 256 samples each.

        Args:
            actors: Environments that one process steps (for language models: prompts).
            steps: Timesteps of each in one rollout (completions of each prompt).
            epochs: Passes over the samples of a rollout.
            minibatches: Updates of one pass: how many of equal size, or the sizes one by one.
            rollouts: Rollouts of the run; None where it may end after any of them.
            microbatches: Forwards and backwards that accumulate before an update, of equal size.
            early_stop: Whether the updates on a rollout may end before the plan's last one (a limit on the KL divergence).
            old_logprobs: Where the denominator of the ratio comes from.
            critic: The plan of a critic with an optimizer of its own; None where one optimizer trains both.
            critic_order: When it is trained on a rollout.
            algorithm: Its name in reports.

        Raises:
            ValueError: A size is below 1, or the samples do not divide.
        """
        from rlstep_hooks.planning.ppo import ppo_schedule

        return ppo_schedule(
            actors=actors,
            steps=steps,
            epochs=epochs,
            minibatches=minibatches,
            rollouts=rollouts,
            microbatches=microbatches,
            early_stop=early_stop,
            old_logprobs=old_logprobs,
            critic=critic,
            critic_order=critic_order,
            algorithm=algorithm,
        )

    @property
    def has_data_epochs(self) -> bool:
        """Whether the run passes over rows; one that samples from an environment, and counts timesteps, has none."""
        return self.step_unit != "timestep"

    @property
    def samples_trained_per_rollout(self) -> int:
        """Samples of one pass over a rollout, padding included."""
        return sum(self.minibatches) if self.minibatches else self.samples_per_rollout

    @property
    def updates_of_flushed_rollout(self) -> int | None:
        """Updates of a rollout in which every micro-batch is one; None where the run has no such rollout, as far as is known."""
        if self.flush is None:
            return None
        known = self.updates is not None and self.rollouts is not None
        if known and self.updates <= self.rollouts * self.updates_per_rollout:  # type: ignore[operator]
            return None
        return self.microbatches_per_rollout

    @property
    def window(self) -> int:
        """Micro-batches of a full accumulation window, where that number is fixed.

        Raises:
            LookupError: It differs from update to update.
        """
        if self.microbatches_per_update is None:
            raise LookupError("the micro-batches of an update are not fixed")
        return self.microbatches_per_update

    @property
    def microbatches_per_cycle(self) -> int:
        """Micro-batches of one process after which rollouts repeat their pattern.

        Raises:
            LookupError: It differs from rollout to rollout.
        """
        if self.microbatches_per_rollout is None:
            raise LookupError("the micro-batches of a rollout are not fixed")
        return self.microbatches_per_rollout * self.rollouts_per_cycle

    @property
    def slots_per_cycle(self) -> int:
        """Distinct micro-batches of generated samples in one cycle; each is trained `reuse_epochs` times."""
        return self.microbatches_per_cycle // self.reuse_epochs

    def rollouts_after(self, microbatches: int) -> int:
        """Rollouts made once `microbatches` micro-batches of one process are trained, from the start of a cycle."""
        cycles, rest = divmod(microbatches, self.microbatches_per_cycle)
        return cycles * self.rollouts_per_cycle + min(rest, self.rollouts_per_cycle)


def lag_pattern(
    microbatches_per_rollout: int, microbatches_per_update: int, rollouts_per_cycle: int, reuse_epochs: int
) -> list[list[int]]:
    """Lags of every micro-batch, update by update, over one period of rollouts against updates.

    The two periods need not divide each other; the pattern then repeats after their least common multiple. The end of a data
    epoch, which may cut a window short, is not part of it.

    Returns:
        One list for each update of the period: the lag of each of its micro-batches.

    Raises:
        TooManyError: The period has more micro-batches than a plan counts.
    """
    cycle = microbatches_per_rollout * rollouts_per_cycle
    slots = cycle // reuse_epochs
    period = countable(
        math.lcm(cycle, microbatches_per_update), "micro-batches until rollouts and updates fall together again"
    )
    refreshed_at = [0] * rollouts_per_cycle
    lags: list[list[int]] = []
    window: list[int] = []
    for index in range(period):
        position = index % cycle
        if position < rollouts_per_cycle:
            refreshed_at[position] = len(lags)
        rollout = (position % slots) * rollouts_per_cycle // slots
        window.append(len(lags) - refreshed_at[rollout])
        if len(window) == microbatches_per_update:
            lags.append(window)
            window = []
    return lags


def encode_fraction(value: Fraction) -> int | str:
    """A whole number as a number, any other fraction as text such as "1/2"."""
    return value.numerator if value.denominator == 1 else f"{value.numerator}/{value.denominator}"


_FRACTION = re.compile(r"-?\d{1,100}/[1-9]\d{0,99}", re.ASCII)


def decode_fraction(value: Any) -> Fraction:
    """The inverse of `encode_fraction`.

    Raises:
        ValueError: The value is none that `encode_fraction` gives.
    """
    if type(value) is int or (isinstance(value, str) and _FRACTION.fullmatch(value)):
        return Fraction(value)
    raise ValueError(f"{str(value)[:20]!r} is no fraction")
