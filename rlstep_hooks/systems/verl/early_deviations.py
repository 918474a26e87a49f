"""Deviations that all forks of verl 0.1 have, with each fork's own evidence.

A fork's plan already says what the code does. `Fact.when` tells whether a configuration meets the deviation, so that a plan can
name it; `Deviation.applies` tells whether a schedule left it out, for example one made from the settings alone, so that findings
are explained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.judge.deviations import Deviation, OfSchedule
from rlstep_hooks.planning.formula import evaluate
from rlstep_hooks.planning.reading import NoteKind
from rlstep_hooks.systems.verl.family import SETTINGS

if TYPE_CHECKING:
    from rlstep_hooks.judge.deviations import Evidence

ORDER = frozenset({"RLS201", "RLS202", "RLS203", "RLS204", "RLS206", "RLS207", "RLS208", "RLS211"})
"""Findings about the number and the order of rollouts and updates."""


VERSION = "0.1"
"""What `verl/version/version` says in TinyZero and SimpleRL-Zoo, which were made of that release."""


class Fact(msgspec.Struct, frozen=True):
    """A deviation and the configurations that meet it."""

    kind: NoteKind
    """The kind of the note on a plan."""
    when: str
    """Whether a configuration meets it: an expression of settings and of quantities that a Schedule has."""
    deviation: Deviation


class _Behind(OfSchedule):
    """The values behind a Schedule: its settings, else their defaults, else its own fields."""

    def __getitem__(self, name: str) -> Any:
        return SETTINGS[name].default if name in SETTINGS and not self.given(name) else super().__getitem__(name)


def fact(kind: NoteKind, when: str, deviation: Deviation) -> Fact:
    """A deviation that explains findings only in runs whose settings meet it.

    Args:
        kind: The kind of the note on a plan.
        when: Whether a configuration meets it.
        deviation: The deviation; its `applies` says whether the schedule left it out.
    """

    def applies(evidence: Evidence) -> bool:
        return bool(evaluate(when, _Behind(evidence.progress.schedule))) and deviation.applies(evidence)

    return Fact(kind, when, msgspec.structs.replace(deviation, applies=applies))


def _left_out_last_rollout(evidence: Evidence) -> bool:
    schedule = evidence.progress.schedule
    # A decaying learning rate misses its end in either case.
    return evidence.finding.code == "RLS601" or schedule.rollouts == schedule.lr_horizon


def one_rollout_fewer(fork: str, evidence: str) -> Fact:
    """Training ends before its last rollout."""
    return fact(
        "shrinks",
        "trainer.total_training_steps != 1",
        Deviation(
            name=f"{fork}-one-rollout-fewer",
            title="one rollout fewer than configured",
            since=VERSION,
            document="training makes total_training_steps rollouts, or as many as fill total_epochs",
            code=(
                "the step counter starts at 1, is raised after each rollout and then compared with >=: training ends after "
                "total_training_steps - 1 rollouts, and a decaying learning rate does not reach its end"
            ),
            evidence=evidence,
            workaround="set trainer.total_training_steps to the number of rollouts plus 1; verl 0.3 and later make them all",
            codes=ORDER | {"RLS601"},
            applies=_left_out_last_rollout,
        ),
    )


def single_pass(fork: str, evidence: str) -> Fact:
    """ppo_epochs has no effect."""
    return fact(
        "ignores",
        "max(actor_rollout_ref.actor.ppo_epochs or 1, critic.ppo_epochs or 1) > 1",
        Deviation(
            name=f"{fork}-ppo-epochs-ignored",
            title="ppo_epochs is ignored",
            since=VERSION,
            document="each rollout is trained ppo_epochs times",
            code="the FSDP workers make one pass over a rollout; only the Megatron workers read ppo_epochs",
            evidence=evidence,
            workaround="use smaller mini-batches for more updates, or verl 0.3 or later",
            codes=ORDER,
            applies=lambda found: found.progress.schedule.reuse_epochs > 1,
        ),
    )


def _left_out_of_critic(evidence: Evidence) -> bool:
    schedule = evidence.progress.schedule
    return schedule.critic is not None and schedule.critic.updates_per_rollout == schedule.updates_per_rollout


def critic_minibatch(fork: str, evidence: str) -> Fact:
    """The critic's mini-batch counts samples where the policy's counts prompts."""
    return fact(
        "grows",
        "algorithm.adv_estimator == 'gae' and actor_rollout_ref.rollout.n > 1",
        Deviation(
            name=f"{fork}-critic-minibatch-in-samples",
            title="the critic's mini-batch is not multiplied by rollout.n",
            since=VERSION,
            document="critic.ppo_mini_batch_size means the same as the actor's, whose value it takes by default",
            code="the actor's is multiplied by rollout.n, the critic's is not: the critic makes rollout.n times as many updates",
            evidence=evidence,
            workaround="set critic.ppo_mini_batch_size to the actor's times rollout.n; verl 0.4 and later multiply both",
            codes=ORDER,
            applies=_left_out_of_critic,
        ),
    )


def steps_are_rollouts(fork: str, evidence: str) -> Fact:
    """What the fork calls a step. It explains no finding: it is said in the plan."""
    return fact(
        "unit",
        "actor_rollout_ref.actor.ppo_mini_batch_size < data.train_batch_size",
        Deviation(
            name=f"{fork}-steps-are-rollouts",
            title='"steps" are rollouts',
            since=VERSION,
            document="training takes a number of steps; save_freq and test_freq count steps",
            code="a step is one rollout with all its updates: train_batch_size / ppo_mini_batch_size of them",
            evidence=evidence,
            workaround="multiply steps by the updates per rollout to get updates",
            codes=frozenset(),
        ),
    )
