"""How an OpenRLHF run cuts its rows into rollouts, and how old a rollout's samples may be. Symbols are those of `plan.py`."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.planning.refusal import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.systems.openrlhf.releases import OpenRLHFRelease
    from rlstep_hooks.systems.openrlhf.settings import OpenRLHFSettings


class EpisodeRows(msgspec.Struct, frozen=True, kw_only=True):
    """What the number of rows decides."""

    rows: int
    """D: rows after `data.max_samples`."""
    horizon: int
    """max_steps, as OpenRLHF tells the learning-rate schedulers."""
    per_episode: int | None
    """Rollouts of an episode; None where the run decides."""
    last_prompts: int
    """Prompts of an episode's last rollout; 0 where it is no smaller."""
    dropped: int
    """Rows of an episode that are not trained."""


class Rollouts(msgspec.Struct, frozen=True, kw_only=True):
    """The rollouts that one role is trained on."""

    samples: int
    """S."""
    last: int
    """Samples of an episode's last rollout; 0 where it is no smaller."""
    number: int | None
    """Rollouts of the run; None where the run decides, or the rows are not known."""
    per_episode: int | None
    """Rollouts of an episode; None as `number`."""
    frozen: int
    """Rollouts at the beginning that do not train this role."""
    keeps_frozen: bool
    """Whether the samples of those are trained with the first rollout after them."""

    @property
    def kept(self) -> int:
        """Frozen rollouts whose samples are trained later."""
        return self.frozen if self.keeps_frozen else 0

    def total(self, count: Callable[[int], int]) -> int | None:
        """The sum of a number that depends on the samples trained at a time, over the run; None if its rollouts are not known."""
        if self.number is None:
            return None
        if self.number <= self.frozen:
            return 0
        per_episode = self.per_episode or 1

        def smaller(before: int) -> int:
            return before // per_episode if self.last else 0

        first = self.kept + 1 if self.kept else self.frozen
        held = first * self.samples - smaller(first) * (self.samples - self.last) if self.kept else 0
        small = smaller(self.number) - smaller(first)
        return count(held) + (self.number - first - small) * count(self.samples) + small * count(self.last)


def prompts_of_rollout(settings: OpenRLHFSettings, release: OpenRLHFRelease, processes: int) -> int:
    """Prompts of one rollout.

    Raises:
        PlanError: The processes are given no prompts.
    """
    if release.ranks_generate:
        each = settings.prompts // processes
        if each == 0:
            raise PlanError(
                "ValueError: batch_size should be a positive integer value, but got batch_size=0",
                when="when the policy is built",
                fix=f"rollout_batch_size = {processes} or more",
                source=f"OpenRLHF {release.openrlhf} trainer/ray/ppo_actor.py prepare_datasets",
            )
        return each * processes
    if release.loader_gives_generate_batch and not settings.dynamic_filtering:
        return settings.generated
    if release.buffers_generate_batch:
        return min(settings.generated, settings.prompts)
    return settings.prompts


def count_rows(
    settings: OpenRLHFSettings,
    release: OpenRLHFRelease,
    rows: int,
    prompts: int,
    processes: int,
    not_evaluated: dict[str, str],
) -> EpisodeRows:
    """Rollouts of an episode, and the length of the learning-rate schedule.

    max_steps = D * n // T * num_episodes * max_epochs, from left to right (trainer/ppo_trainer.py:72-78).
    Reasons for what stays open are added to `not_evaluated`, by field of the Schedule.
    """
    rows = min(settings.max_samples, rows)
    counted = EpisodeRows(
        rows=rows,
        horizon=rows * settings.group // settings.batch * settings.episodes * settings.epochs,
        per_episode=rows // prompts,
        last_prompts=0,
        dropped=rows % prompts,
    )
    if release.ranks_generate:
        # Each process has a share of the rows, and drops what does not fill a rollout of its own.
        per_episode = rows // processes // (prompts // processes)
        return msgspec.structs.replace(counted, per_episode=per_episode, dropped=rows - per_episode * prompts)
    if settings.dynamic_filtering:
        # Nothing can be said of the rows that are left at the end.
        more = -(-rows // prompts)
        reason = f"filtering by reward takes prompts from the same rows: at most {more * settings.episodes} rollouts"
        for name in ("rollouts", "rollouts_per_epoch", "updates", "lr_ticks", "data_epochs", "loader_epochs"):
            not_evaluated[name] = reason
        return msgspec.structs.replace(counted, per_episode=None)
    if release.repeats_episode_after_oversampling and settings.generated > settings.prompts:
        left = rows // settings.generated * settings.generated % prompts + rows % settings.generated - prompts
        if left > 0:
            reason = (
                f"{left} prompts are left in the buffer when the rows are used up; OpenRLHF {release.openrlhf} then begins the "
                "rows anew within the episode, which never ends"
            )
            for name in ("rollouts", "rollouts_per_epoch", "updates", "lr_ticks", "data_epochs", "loader_epochs"):
                not_evaluated[name] = reason
            return msgspec.structs.replace(counted, per_episode=None)
    if release.trains_partial_rollout(asynchronous=settings.asynchronous):
        return msgspec.structs.replace(counted, per_episode=-(-rows // prompts), last_prompts=rows % prompts, dropped=0)
    return counted


def data_epochs(settings: OpenRLHFSettings, counted: EpisodeRows | None) -> Fraction | None:
    """Times that the run trains its rows; None where the run decides, or the rows are not known."""
    if counted is None or counted.per_episode is None or not counted.rows:
        return None
    return Fraction((counted.rows - counted.dropped) * settings.episodes, counted.rows)


def max_age(settings: OpenRLHFSettings) -> int:
    """Rollouts by which the weights behind a sample may be older than those that train it.

    A token of the queue is given back when the trainer takes a rollout, so generation is `async_queue_size` rollouts ahead
    (trainer/ppo_trainer_async.py:111 and :230). With G > B what is left of a generation waits in a buffer for ceil((G - g) / B)
    more, g their greatest common divisor.
    """
    if not settings.asynchronous:
        return 0
    more = max(settings.generated - math.gcd(settings.generated, settings.prompts), 0)
    return settings.queue_size + (-(-more // settings.prompts) if settings.generated > settings.prompts else 0)
