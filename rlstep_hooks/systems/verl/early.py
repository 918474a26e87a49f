"""verl 0.1, as the forks carry it that were made of it: settings -> Schedule.

The loop of `trainer/ppo/ray_trainer.py` and the FSDP workers are the same in all of them; how a worker's mini-batch follows from
its role's settings is not, so each fork's own `plan` says that. The Schedule says what the code does, also where the settings say
something else; those differences are the fork's deviations.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.judge.deviations import Deviation
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.planning.schedule import OldLogProbSource, Schedule
from rlstep_hooks.systems.verl.early_deviations import VERSION
from rlstep_hooks.systems.verl.minibatches import microbatches, split_minibatches
from rlstep_hooks.systems.verl.settings import setting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlstep_hooks.systems.verl.early_deviations import Fact


ALGORITHMS = {"gae": "PPO", "grpo": "GRPO"}
"""The two advantage estimators that these trainers know."""

PLAN_SETTINGS = (
    "data.train_batch_size",
    "data.shuffle",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.ppo_micro_batch_size",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.actor.use_dynamic_bsz",
    "actor_rollout_ref.actor.ppo_epochs",
    "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
    "critic.ppo_mini_batch_size",
    "critic.ppo_epochs",
    "algorithm.adv_estimator",
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
    "trainer.total_epochs",
    "trainer.total_training_steps",
    "trainer.critic_warmup",
)
"""Settings that appear in a plan, under their own names."""


class ForkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the code of a fork will do with a configuration, and where that is not what the configuration says."""

    schedule: Schedule
    applied_deviations: tuple[Deviation, ...]


class EarlyRoleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a configuration says of one role."""

    section: str
    """Its dotted name."""
    values: Mapping[str, Any]
    """What stands there."""
    processes: int
    """Data-parallel processes."""
    minibatch: int
    """`ppo_mini_batch_size`."""
    group: int
    """Samples that each row of a mini-batch stands for: those of a prompt for the policy, 1 for the critic."""
    dynamic: bool
    """Whether token counts cut micro-batches."""


class WorkerSizes(msgspec.Struct, frozen=True, kw_only=True):
    """What one role's workers made of its settings."""

    processes: int
    """Data-parallel processes."""
    minibatch: int
    """Samples of a mini-batch on one process."""
    microbatch: int | None
    """Samples of a micro-batch on one process; None where token counts decide."""


class EarlySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that the loop needs."""

    algorithm: str
    gpus: int
    prompts: int
    group: int
    policy: WorkerSizes
    critic: WorkerSizes | None
    critic_warmup: int
    epochs: int
    total_steps: int | None
    shuffle: bool
    old_logprob_source: OldLogProbSource


def algorithm_of(config: Mapping[str, Any]) -> str:
    """The algorithm of a configuration.

    Raises:
        PlanError: These trainers do not know it.
    """
    name = setting(config, "algorithm.adv_estimator", "gae")
    if name not in ALGORITHMS:
        raise PlanError(
            "NotImplementedError",
            when="at the start",
            fix="choose algorithm.adv_estimator gae or grpo",
            source="trainer/ppo/ray_trainer.py RayPPOTrainer",
        )
    return ALGORITHMS[name]


def gpus_of(config: Mapping[str, Any]) -> int:
    """GPUs of all nodes."""
    return int(setting(config, "trainer.n_gpus_per_node", 8) * setting(config, "trainer.nnodes", 1))


def written_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings behind a plan, under their own dotted names."""
    return {name: value for name in PLAN_SETTINGS if (value := setting(config, name)) is not None}


def read_settings(
    config: Mapping[str, Any],
    sizes: Callable[[EarlyRoleSettings], WorkerSizes],
    *,
    shuffle: bool,
    old_logprob_source: OldLogProbSource,
) -> EarlySettings:
    """The settings that the loop needs.

    Args:
        config: The configuration; settings that are missing have the defaults of `verl/trainer/config/ppo_trainer.yaml`.
        sizes: What the fork's workers make of a role's settings.
        shuffle: Whether rows are shuffled before each epoch.
        old_logprob_source: Where the fork takes old log-probs from.

    Raises:
        PlanError: The trainers do not know the algorithm; and what `sizes` raises.
    """
    gpus = gpus_of(config)
    algorithm = algorithm_of(config)
    group = setting(config, "actor_rollout_ref.rollout.n", 1)
    policy = _role(config, "actor_rollout_ref.actor", gpus, group, minibatch=256, dynamic=False)
    critic = None
    if algorithm == "PPO":
        # Its mini-batch is not multiplied by the group, and what it does not say is the policy's.
        critic = _role(config, "critic", gpus, 1, minibatch=policy.minibatch, dynamic=policy.dynamic)
    return EarlySettings(
        algorithm=algorithm,
        gpus=gpus,
        prompts=setting(config, "data.train_batch_size", 1024),
        group=group,
        policy=sizes(policy),
        critic=sizes(critic) if critic is not None else None,
        critic_warmup=setting(config, "trainer.critic_warmup", 0),
        epochs=setting(config, "trainer.total_epochs", 30),
        total_steps=setting(config, "trainer.total_training_steps"),
        shuffle=shuffle,
        old_logprob_source=old_logprob_source,
    )


def _role(
    config: Mapping[str, Any], section: str, gpus: int, group: int, *, minibatch: int, dynamic: bool
) -> EarlyRoleSettings:
    """One role; `minibatch` and `dynamic` are what holds where its section does not say."""
    values = setting(config, section, {})
    return EarlyRoleSettings(
        section=section,
        values=values,
        processes=gpus // setting(values, "ulysses_sequence_parallel_size", 1),
        minibatch=setting(values, "ppo_mini_batch_size", minibatch),
        group=group,
        dynamic=bool(setting(values, "use_dynamic_bsz", dynamic)),
    )


def plan_fork(
    config: Mapping[str, Any],
    settings: EarlySettings,
    rows: int | None,
    *,
    framework: str,
    sources: dict[str, str],
    facts: Iterable[Fact],
) -> ForkPlan:
    """The plan of one configuration.

    Args:
        config: The configuration.
        settings: Its settings, from `read_settings`.
        rows: Rows of the training set after filtering; None if not known.
        framework: Name of the fork.
        sources: Where the fork computes what it computes differently.
        facts: The fork's deviations.

    Raises:
        PlanError: The fork fails on this configuration.
    """
    written = written_settings(config)
    schedule = make_schedule(settings, rows, framework=framework, sources=sources)
    return ForkPlan(
        schedule=msgspec.structs.replace(schedule, settings=written),
        applied_deviations=tuple(known.deviation for known in facts if known.holds(written)),
    )


def make_schedule(settings: EarlySettings, rows: int | None, *, framework: str, sources: dict[str, str]) -> Schedule:
    """The Schedule of one configuration.

    Args:
        settings: The settings.
        rows: Rows of the training set after filtering; None if not known, whose totals are then not evaluated.
        framework: Name of the fork.
        sources: Where the fork computes what it computes differently.

    Raises:
        PlanError: The fork fails on this configuration.
    """
    if settings.prompts % settings.gpus:
        raise PlanError(
            f"AssertionError: only support equal chunk. Got size of DataProto {settings.prompts} and chunk {settings.gpus}.",
            when="at the first rollout",
            fix=f"choose data.train_batch_size as a multiple of {settings.gpus}",
            source="protocol.py DataProto.chunk",
        )
    samples = settings.prompts * settings.group
    minibatches = _minibatches(settings.policy, samples, "actor_rollout_ref.actor")
    frozen = max(settings.critic_warmup - 1, 0)
    updates = len(minibatches)
    not_evaluated = {"syncs": "weights go to the engine whenever it wakes to generate, validation included"}
    per_epoch = rollouts = horizon = None
    if rows is None:
        for name in ("rollouts", "updates", "data_epochs", "loader_epochs", "lr_ticks", "lr_horizon"):
            not_evaluated[name] = "the rows of the training set are not known"
    else:
        per_epoch = _rollouts_per_epoch(settings, rows)
        available = per_epoch * settings.epochs
        horizon = available if settings.total_steps is None else settings.total_steps
        # The counter starts at 1, is raised after a rollout and then compared, so that the last rollout never comes.
        rollouts = min(available, max(horizon - 1, 1))
    schedule = Schedule(
        framework=framework,
        version=VERSION,
        algorithm=settings.algorithm,
        loop="phases",
        prompts_per_rollout=Fraction(settings.prompts),
        samples_per_prompt=settings.group,
        samples_per_rollout=samples,
        # `ppo_epochs` is read by the Megatron workers only.
        reuse_epochs=1,
        remainder="keep",
        frozen_rollouts=frozen,
        rows=rows,
        rows_dropped_per_epoch=None if rows is None else rows % settings.prompts,
        rows_reshuffled=settings.shuffle,
        rollouts_per_epoch=per_epoch,
        microbatches_per_epoch=None,
        rollouts=rollouts,
        data_epochs=Fraction(rollouts * settings.prompts, rows) if rollouts and rows else None,
        loader_epochs=Fraction(rollouts, per_epoch) if rollouts and per_epoch else None,
        old_logprob_source=settings.old_logprob_source,
        lags=tuple(range(updates)),
        ratio_one_updates=(1,),
        # The reference model is always there (main_ppo.py: Role.RefPolicy).
        reference_source="at_rollout",
        lr_horizon=horizon,
        lr_clock="rollout",
        step_unit="rollout",
        step_means=f"1 step = 1 rollout = {updates} update{'s' if updates != 1 else ''}",
        sources=sources,
        not_evaluated=not_evaluated,
        **_updates(settings.policy, minibatches, rollouts, frozen, not_evaluated),
    )
    if settings.critic is None:
        return schedule
    cut = _minibatches(settings.critic, samples, "critic")
    reasons: dict[str, str] = {}
    critic = msgspec.structs.replace(
        schedule,
        frozen_rollouts=0,
        lags=(),
        ratio_one_updates=(),
        reference_source="none",
        **_updates(settings.critic, cut, rollouts, 0, reasons),
        not_evaluated=reasons,
    )
    return msgspec.structs.replace(
        schedule, critic=critic, step_means=f"{schedule.step_means} of the policy and {len(cut)} of the critic"
    )


def _rollouts_per_epoch(settings: EarlySettings, rows: int) -> int:
    per_epoch = rows // settings.prompts
    if per_epoch == 0:
        raise PlanError(
            "AssertionError",
            when="at the start",
            fix=f"{rows} rows do not fill a single rollout: choose data.train_batch_size {rows} or smaller",
            source="trainer/ppo/ray_trainer.py _create_dataloader: assert len(self.train_dataloader) >= 1",
        )
    return per_epoch


def _minibatches(role: WorkerSizes, samples: int, section: str) -> tuple[int, ...]:
    if role.minibatch == 0:
        raise PlanError(
            "RuntimeError in batch.split(0): a mini-batch of no samples",
            when="after the first rollout",
            fix=f"choose {section}.ppo_mini_batch_size {role.processes} or larger",
            source="workers/actor/dp_actor.py update_policy, workers/critic/dp_critic.py update_critic",
        )
    return split_minibatches(samples, role.minibatch, role.processes)


def _updates(
    role: WorkerSizes, minibatches: tuple[int, ...], rollouts: int | None, frozen: int, not_evaluated: dict[str, str]
) -> dict[str, Any]:
    """The fields of a Schedule that concern the updates of one role."""
    each = role.microbatch * role.processes if role.microbatch else None
    counts = microbatches(minibatches, each) if each else ()
    if each is None:
        for name in ("samples_per_microbatch", "microbatches_per_rollout", "microbatches_per_update"):
            not_evaluated[name] = "micro-batches are cut by token counts"
    trained = None if rollouts is None else max(rollouts - frozen, 0)
    return {
        "world_size": role.processes,
        "minibatches": minibatches,
        "samples_per_microbatch": each,
        "microbatches_per_rollout": sum(counts) if counts else None,
        "microbatches_per_update": counts[0] if len(set(counts)) == 1 else None,
        "samples_per_update": minibatches[0],
        "updates_per_rollout": Fraction(len(minibatches)),
        "updates": None if trained is None else trained * len(minibatches),
        "lr_ticks": trained,
    }
