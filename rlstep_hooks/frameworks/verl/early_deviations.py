"""Deviations that all forks of verl 0.1 have, with each fork's own evidence.

A fork's `plan` already says what the code does. `Fact.holds` tells whether a configuration meets the deviation, so that a plan can
name it; `Deviation.applies` tells whether a schedule made from the settings alone left it out, so that a finding is explained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.deviations import Deviation
from rlstep_hooks.frameworks.verl.early import VERSION

if TYPE_CHECKING:
    from rlstep_hooks.schedule import Schedule

ORDER = frozenset({"RLS201", "RLS202", "RLS203", "RLS204", "RLS206", "RLS207", "RLS208", "RLS211"})
"""Findings about the number and the order of rollouts and updates."""


class Fact(msgspec.Struct, frozen=True):
    """A deviation and the configurations that meet it."""

    deviation: Deviation
    holds: Callable[[Mapping[str, Any]], bool]
    """Takes the settings of a Schedule, under their dotted names."""


def fact(
    holds: Callable[[Mapping[str, Any]], bool],
    left_out: Callable[[Schedule], bool],
    *,
    name: str,
    title: str,
    document: str,
    code: str,
    evidence: str,
    workaround: str,
    codes: frozenset[str],
) -> Fact:
    """One fact about a fork, which its whole history has.

    Args:
        holds: Whether settings meet it.
        left_out: Whether a schedule does not have it.
        name: As in `Deviation`, like all that follow.
        title: Likewise.
        document: Likewise.
        code: Likewise.
        evidence: Likewise.
        workaround: Likewise.
        codes: Likewise.
    """
    deviation = Deviation(
        name=name,
        title=title,
        since=VERSION,
        fixed_in=None,
        document=document,
        code=code,
        evidence=evidence,
        workaround=workaround,
        codes=codes,
        applies=lambda found: holds(found.progress.schedule.settings) and left_out(found.progress.schedule),
    )
    return Fact(deviation, holds)


def one_rollout_fewer(fork: str, evidence: str) -> Fact:
    """Training ends before its last rollout."""
    return fact(
        lambda settings: settings.get("trainer.total_training_steps") != 1,
        lambda schedule: schedule.rollouts is not None and schedule.rollouts == schedule.lr_horizon,
        name=f"{fork}-one-rollout-fewer",
        title="one rollout fewer than configured",
        document="training makes total_training_steps rollouts, or as many as fill total_epochs",
        code=(
            "the step counter starts at 1, is raised after each rollout and then compared with >=: training ends after "
            "total_training_steps - 1 rollouts, and a decaying learning rate does not reach its end"
        ),
        evidence=evidence,
        workaround="set trainer.total_training_steps to the number of rollouts plus 1; verl 0.3 and later make them all",
        codes=ORDER | {"RLS601"},
    )


def single_pass(fork: str, evidence: str) -> Fact:
    """ppo_epochs has no effect."""
    return fact(
        lambda settings: any(
            settings.get(f"{section}.ppo_epochs", 1) > 1 for section in ("actor_rollout_ref.actor", "critic")
        ),
        lambda schedule: schedule.reuse_epochs > 1,
        name=f"{fork}-ppo-epochs-ignored",
        title="ppo_epochs is ignored",
        document="each rollout is trained ppo_epochs times",
        code="the FSDP workers make one pass over a rollout; only the Megatron workers read ppo_epochs",
        evidence=evidence,
        workaround="use smaller mini-batches for more updates, or verl 0.3 or later",
        codes=ORDER,
    )


def critic_minibatch(fork: str, evidence: str) -> Fact:
    """The critic's mini-batch counts samples where the policy's counts prompts."""
    return fact(
        lambda settings: (
            settings.get("algorithm.adv_estimator", "gae") == "gae"
            and settings.get("actor_rollout_ref.rollout.n", 1) > 1
        ),
        lambda schedule: (
            schedule.critic is not None and schedule.critic.updates_per_rollout == schedule.updates_per_rollout
        ),
        name=f"{fork}-critic-minibatch-in-samples",
        title="the critic's mini-batch is not multiplied by rollout.n",
        document="critic.ppo_mini_batch_size means the same as the actor's, whose value it takes by default",
        code="the actor's is multiplied by rollout.n, the critic's is not: the critic makes rollout.n times as many updates",
        evidence=evidence,
        workaround="set critic.ppo_mini_batch_size to the actor's times rollout.n; verl 0.4 and later multiply both",
        codes=ORDER,
    )


def steps_are_rollouts(fork: str, evidence: str) -> Fact:
    """What the fork calls a step."""
    return fact(
        lambda settings: (
            settings.get("actor_rollout_ref.actor.ppo_mini_batch_size", 256)
            < settings.get("data.train_batch_size", 1024)
        ),
        lambda schedule: False,
        name=f"{fork}-steps-are-rollouts",
        title='"steps" are rollouts',
        document="training takes a number of steps; save_freq and test_freq count steps",
        code="a step is one rollout with all its updates: train_batch_size / ppo_mini_batch_size of them",
        evidence=evidence,
        workaround="multiply steps by the updates per rollout to get updates",
        codes=frozenset(),
    )
