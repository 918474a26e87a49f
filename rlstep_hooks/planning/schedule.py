"""Schedule: what a configuration says will happen, in the field's own quantities.

The home of a system (`rlstep_hooks.systems.<name>`) normalises its configuration to one `Schedule`. All values are integers and
fractions; nothing here imports torch or a framework. Sizes are global samples unless a name says otherwise.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import msgspec

from rlstep_hooks.planning.counting import countable
from rlstep_hooks.planning.kinds import (
    Bound,
    Clock,
    CriticOrder,
    Flush,
    Loop,
    OldLogProbSource,
    PartialWindow,
    ReferenceSource,
    Remainder,
    Sampling,
    StepUnit,
    Syncs,
)
from rlstep_hooks.planning.ppo import ppo_fields

__all__ = [
    "Bound",
    "Clock",
    "CriticOrder",
    "Flush",
    "Loop",
    "OldLogProbSource",
    "PartialWindow",
    "ReferenceSource",
    "Remainder",
    "Sampling",
    "Schedule",
    "StepUnit",
    "Syncs",
    "decode_fraction",
    "encode_fraction",
    "lag_pattern",
]


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The normalised quantities of one run.

    A value of None cannot be known before the run; `not_evaluated` then has the reason under the same name.
    """

    framework: str
    """Name of the framework as people write it, such as "TRL"."""
    version: str
    """Release of the framework whose formulas were used."""
    algorithm: str
    """The trainer's algorithm, such as "GRPO"."""

    world_size: int
    """Data-parallel processes that train on different samples."""
    prompts_per_rollout: Fraction
    """Distinct prompts in one rollout, over all processes."""
    samples_per_prompt: int
    """Completions generated for one prompt (the group size)."""
    samples_per_rollout: int
    """Completions in one rollout, over all processes."""
    samples_of_last_rollout: int = 0
    """Samples of the last rollout of each pass of the loader; 0 if it is not smaller."""
    rollouts_per_cycle: int = 1
    """Rollouts after which the order of events repeats; they are generated at the first micro-batches of the cycle."""
    parts_per_rollout: int = 1
    """Equal parts in which a rollout is taken from the queue. Each is trained before the next one is taken; old log-probs of all of
    them are those of the weights at the beginning of the rollout."""
    samples_per_microbatch: int | None
    """Samples of one forward and backward, over all processes; None if token counts decide."""
    reuse_epochs: int
    """Passes over the samples of one rollout."""
    microbatches_per_rollout: int | None
    """Micro-batches that one process trains on the samples of one rollout, in all passes together."""
    microbatches_per_update: int | None
    """Micro-batches that accumulate into one update; None if they differ between updates."""
    samples_per_update: int | None
    """Samples of one update, over all processes; of the first update if the last of a pass is smaller."""
    updates_per_rollout: Fraction
    """Updates per rollout; below 1 if several rollouts feed one update."""
    updates_bound: Bound = "exact"
    """Whether `updates_per_rollout` and the totals are exact."""
    updates_from: int | None = 0
    """The fewest updates that a rollout can make, where `updates_per_rollout` is not exact; 0 if that is not known."""
    updates_to: int | None = 0
    """The most updates that a rollout can make, where `updates_per_rollout` is not exact; 0 if there is no bound."""
    loop: Loop = "loader"
    """What drives rollouts and updates."""
    minibatches: tuple[int, ...] = ()
    """Samples of each update of one pass over a rollout, including padding; empty if the loader's windows decide."""
    warmup_minibatches: tuple[int, ...] = ()
    """A critic's `minibatches` while the policy is frozen, if padding then differs; otherwise empty."""
    remainder: Remainder = "error"
    """What happens to samples that do not fill a mini-batch."""
    flush: Flush | None = None
    """Rollouts in which every micro-batch is an update; None if there are none."""
    samples_added_per_rollout: int = 0
    """Padding samples added to a rollout so that it can be divided."""
    samples_dropped_per_rollout: int = 0
    """Generated samples that a pass does not train on."""
    frozen_rollouts: int = 0
    """Rollouts at the start without an update of this role (for the policy: critic warm-up)."""
    frozen_samples_kept: bool = False
    """Whether samples of frozen rollouts wait in the buffer and are trained with the first rollout after them."""
    max_age: int | None = 0
    """Largest age, in rollouts, of the sampler's weights when a rollout is trained; 0 for synchronous training."""
    max_age_updates: int | None = 0
    """Largest age, in updates, of the sampler's weights at the first update on a rollout; the lag of later ones is added to it."""
    correction: str = ""
    """What corrects for the distance between the sampler and the old log-probs, with its bound, or "none"; empty if it is not read."""
    correction_inert: str = ""
    """Why the correction that is configured cannot act; empty if it can."""
    correction_biased: str = ""
    """What biases the correction; empty if nothing is known that does."""
    syncs: Syncs = "unseen"
    """When weights are synced to the rollout engine."""
    partial_window: PartialWindow = "flush"
    """What the end of a data epoch does to an incomplete accumulation window."""

    rows: int | None
    """Rows of the training set."""
    rows_dropped_per_epoch: int | None
    """Rows that the sampler leaves out in each pass because they do not fill a rollout."""
    rows_bound: Bound = "exact"
    """Whether the rows consumed per rollout are exact or depend on the data (filtering by reward consumes more)."""
    epoch_ends_between_rollouts: bool = True
    """Whether a pass of the loader ends between two rollouts; prefetching or fetches of another size can move its end."""
    rows_reshuffled: bool | None
    """Whether each pass has a new order, so that a different set of rows is dropped each pass; None if that is not known."""
    rollouts_per_epoch: int | None
    """Rollouts in one pass of the loader."""
    microbatches_per_epoch: int | None
    """Micro-batches of one process in one pass of the loader."""
    rollouts: int | None
    """Rollouts of the whole run."""
    updates: int | None
    """Policy updates of the whole run."""
    data_epochs: Fraction | None
    """Rows consumed / rows of the set."""
    loader_epochs: Fraction | None
    """Passes of the loader, which drops a remainder of rows."""

    old_logprob_source: OldLogProbSource
    """Where old log-probs come from."""
    lags: tuple[int, ...]
    """Updates between a refresh and the forwards that use it: every value that occurs, ascending."""
    ratio_one_updates: tuple[int, ...]
    """Updates of the repeating pattern (counted from 1) whose ratio is 1 by construction on every micro-batch."""
    reference_source: ReferenceSource = "none"
    """Where reference log-probs are computed."""

    lr_ticks: int | None
    """Ticks of the learning-rate scheduler in the run."""
    lr_horizon: int | None
    """Ticks for which the learning-rate schedule was built."""
    lr_clock: Clock = "update"
    """What one tick of the learning-rate scheduler counts."""
    step_unit: StepUnit = "update"
    """What "step" in this framework's logs counts."""
    step_means: str
    """`step_unit` in words, for example "1 step = 1 rollout = 4 updates"."""
    critic: Schedule | None = None
    """The critic's own schedule, if it has updates of its own."""
    critic_order: CriticOrder = "before"
    """When the critic is trained on a rollout."""

    settings: dict[str, Any] = {}
    """The framework's own settings behind these numbers: name -> value as the user wrote it."""
    sources: dict[str, str] = {}
    """Quantity -> the document or source line of its formula."""
    not_evaluated: dict[str, str] = {}
    """Quantity that cannot be known -> the reason."""

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
        """The plan of a hand-written PPO loop: `actors * steps` samples per rollout, `epochs` passes over them in mini-batches.

        `Schedule.ppo(actors=8, steps=128, epochs=3, minibatches=4)` is the PPO paper's Atari experiment: 1 024 samples per rollout,
        12 updates of 256 samples each.

        Args:
            actors: Environments that one process runs (for language models: prompts).
            steps: Timesteps of each environment in one rollout (completions of each prompt).
            epochs: Passes over the samples of a rollout.
            minibatches: Number of equal mini-batches in one pass, or their sizes one by one.
            rollouts: Rollouts of the run; None if it may end after any of them.
            microbatches: Equal micro-batches that accumulate into one update.
            early_stop: Whether the updates on a rollout may end early (at a limit on the KL divergence).
            old_logprobs: Where the denominator of the ratio comes from.
            critic: The plan of a critic with its own optimizer; None if one optimizer trains both.
            critic_order: When the critic is trained on a rollout.
            algorithm: The algorithm's name in reports.

        Raises:
            ValueError: A size is below 1, or the samples cannot be divided so.
        """
        fields = ppo_fields(
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
        return cls(**fields)

    @property
    def has_data_epochs(self) -> bool:
        """Whether the run has rows to pass over; a run that samples from an environment counts timesteps and has none."""
        return self.step_unit != "timestep"

    @property
    def samples_trained_per_rollout(self) -> int:
        """Samples in one pass over a rollout, including padding."""
        return sum(self.minibatches) if self.minibatches else self.samples_per_rollout

    @property
    def updates_of_flushed_rollout(self) -> int | None:
        """Updates of a rollout in which every micro-batch is an update; None if the run has no such rollout or it is unknown."""
        if self.flush is None:
            return None
        updates, rollouts = self.updates, self.rollouts
        if updates is not None and rollouts is not None and updates <= rollouts * self.updates_per_rollout:
            return None
        return self.microbatches_per_rollout

    @property
    def window(self) -> int:
        """Micro-batches of a full accumulation window.

        Raises:
            LookupError: The number differs between updates.
        """
        if self.microbatches_per_update is None:
            raise LookupError("the micro-batches of an update are not fixed")
        return self.microbatches_per_update

    @property
    def microbatches_per_cycle(self) -> int:
        """Micro-batches of one process in one cycle.

        Raises:
            LookupError: The number differs between rollouts.
        """
        if self.microbatches_per_rollout is None:
            raise LookupError("the micro-batches of a rollout are not fixed")
        return self.microbatches_per_rollout * self.rollouts_per_cycle

    @property
    def slots_per_cycle(self) -> int:
        """Distinct micro-batches of generated samples in one cycle; each is trained on `reuse_epochs` times."""
        return self.microbatches_per_cycle // self.reuse_epochs


def lag_pattern(
    microbatches_per_rollout: int, microbatches_per_update: int, rollouts_per_cycle: int, reuse_epochs: int
) -> list[list[int]]:
    """Lags of every micro-batch, update by update, over one period of rollouts and updates.

    If the micro-batches of a cycle and of an update do not divide each other, the period is their least common multiple. The end of a
    data epoch, which may cut a window short, is not included.

    Returns:
        One list per update of the period, with the lag of each of its micro-batches.

    Raises:
        TooManyError: The period has more micro-batches than a plan lists.
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
        ValueError: `encode_fraction` does not return such a value.
    """
    if type(value) is int or (isinstance(value, str) and _FRACTION.fullmatch(value)):
        return Fraction(value)
    raise ValueError(f"{str(value)[:20]!r} is not a fraction")
