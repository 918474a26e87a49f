"""Shared by writers: expresses a Schedule in another framework's sizes and names what cannot be kept."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from rlstep_hooks.launch.text import LaunchError

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Clock, OldLogProbSource, Schedule

LARGEST_MICROBATCH = 8
"""Samples of a micro-batch that a writer chooses if the source leaves them open."""


class Target:
    """One schedule, being written for another framework."""

    def __init__(self, schedule: Schedule, title: str) -> None:
        self.schedule = schedule
        self.title = title
        self._lost: list[str] = []

    @property
    def prompts(self) -> int:
        """Prompts of one rollout.

        Raises:
            LaunchError: They are not a whole number.
        """
        return self.whole_prompts()

    @property
    def samples_per_update(self) -> int:
        """Samples of one update.

        Raises:
            LaunchError: They are not known.
        """
        if self.schedule.samples_per_update is None:
            raise LaunchError(
                f"samples_per_update cannot be kept: it depends on the data, and {self.title} needs a number"
            )
        return self.schedule.samples_per_update

    def whole_prompts(self) -> int:
        """Prompts of one rollout as a whole number.

        Raises:
            LaunchError: They are not a whole number.
        """
        prompts = self.schedule.prompts_per_rollout
        if prompts.denominator != 1:
            raise LaunchError(f"prompts_per_rollout = {prompts} cannot be kept: {self.title} takes whole prompts")
        return prompts.numerator

    def equal_updates(self) -> None:
        """Require updates of equal size.

        Raises:
            LaunchError: They differ.
        """
        if len(set(self.schedule.minibatches)) > 1:
            raise LaunchError(
                f"minibatches = {list(self.schedule.minibatches)} cannot be kept: {self.title} makes updates of one size"
            )
        if self.schedule.updates_bound != "exact":
            raise LaunchError(
                f"updates_per_rollout is {self.schedule.updates_bound}; {self.title} makes a fixed number"
            )

    def divides_evenly(self) -> None:
        """Require a whole number of equal updates in each pass over a rollout.

        Raises:
            LaunchError: An update spans rollouts, or sizes differ.
        """
        self.equal_updates()
        if self.schedule.samples_per_rollout % self.samples_per_update:
            raise LaunchError(
                f"updates_per_rollout = {self.schedule.updates_per_rollout} cannot be kept: {self.title} makes whole updates "
                "of each rollout"
            )

    def prompts_per_update(self) -> int:
        """Prompts of one update.

        Raises:
            LaunchError: An update does not have whole prompts.
        """
        prompts, rest = divmod(self.samples_per_update, self.schedule.samples_per_prompt)
        if rest:
            raise LaunchError(
                f"samples_per_update = {self.samples_per_update} cannot be kept: {self.title} counts whole prompts of "
                f"{self.schedule.samples_per_prompt} samples"
            )
        return prompts

    def microbatch_per_process(self, of: int | None = None) -> int:
        """Samples of one micro-batch on one process: the schedule's if it divides `of`, otherwise the largest that does.

        Raises:
            LaunchError: The samples cannot be shared evenly by the processes.
        """
        of = of if of is not None else self.samples_per_update
        share, rest = divmod(of, self.schedule.world_size)
        if rest or not share:
            raise LaunchError(
                f"world_size = {self.schedule.world_size} cannot be kept: {of} samples cannot be shared evenly"
            )
        written = (self.schedule.samples_per_microbatch or 0) // self.schedule.world_size
        if written and share % written == 0:
            return written
        chosen = max(size for size in range(1, LARGEST_MICROBATCH + 1) if math.gcd(size, share) == size)
        if written:
            self._lost.append(f"samples_per_microbatch: {written} for each process, here {chosen}")
        return chosen

    def passes_of_rows(self) -> int | None:
        """Whole passes of a loader that drops its last batch, enough for the run's rollouts; None if these are unknown."""
        mine = self.schedule
        if mine.loader_epochs is not None:
            return math.ceil(mine.loader_epochs)
        if mine.rollouts is None:
            return None
        per_epoch = math.floor(mine.rows / mine.prompts_per_rollout) if mine.rows else 0
        return -(-mine.rollouts // max(per_epoch, 1))  # a pass has at least one rollout

    def keeps(
        self, *, lr_clock: Clock, source: OldLogProbSource, critic: bool, loader: Literal["drops", "keeps", "wraps"]
    ) -> None:
        """State what the target does; each difference from the schedule is named as lost."""
        mine = self.schedule
        if mine.lr_clock != lr_clock and mine.lr_ticks != mine.updates:
            self._lost.append(f"lr_clock: one tick a {mine.lr_clock}, here one a {lr_clock}")
        fixed = ("recompute", "at_rollout")
        if mine.old_logprob_source != source and not {mine.old_logprob_source, source} <= {*fixed}:
            same = mine.lags == (0,) and "engine" not in (mine.old_logprob_source, source)
            if not same:
                self._lost.append(f"old_logprob_source: {mine.old_logprob_source}, here {source}")
        if mine.critic is not None and not critic:
            self._lost.append("critic: this algorithm has none")
        if mine.max_age != 0:
            self._lost.append("max_age: rollouts behind the policy, here synchronous")
        if mine.frozen_rollouts:
            self._lost.append(f"frozen_rollouts: {mine.frozen_rollouts}, here 0")
        if mine.rows is not None and loader != "wraps" and mine.samples_of_last_rollout and loader == "drops":
            self._lost.append("samples_of_last_rollout: the smaller last rollout of a pass is dropped here")

    def lost(self) -> tuple[str, ...]:
        """Quantities that are not kept."""
        return tuple(self._lost)


def whole_rollouts(schedule: Schedule) -> tuple[str, ...]:
    """What is lost if the run ends between two updates of a rollout: the target always makes all of them."""
    if schedule.rollouts is None or schedule.updates is None:
        return ()
    made = math.floor(max(schedule.rollouts - schedule.frozen_rollouts, 0) * schedule.updates_per_rollout)
    return () if made == schedule.updates else (f"updates: {schedule.updates}, here {made} for whole rollouts",)
