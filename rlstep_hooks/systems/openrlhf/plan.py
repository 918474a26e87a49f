"""The arguments of an OpenRLHF trainer -> Schedule. Integers and fractions only; imports neither OpenRLHF nor torch.

Symbols in comments: D rows, B prompts of a rollout, G prompts generated at a time, n samples of a prompt, S samples of a rollout,
T samples of an update, E passes over a rollout, W data-parallel processes, K pieces in which a rollout is shared among them. What
OpenRLHF calls a step is one rollout with its updates. DeepSpeed counts micro-batches through passes and rollouts and applies
gradients at every `accumulation`-th, so what does not fill an update is carried into the next rollout. Lines are those of
OpenRLHF 0.11.2 unless another release is named.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.planning.schedule import Schedule
from rlstep_hooks.systems.openrlhf.refusals import check_settings, check_shares
from rlstep_hooks.systems.openrlhf.releases import SUPPORTED, OpenRLHFRelease, installed_release
from rlstep_hooks.systems.openrlhf.rollouts import Rollouts, count_rows, data_epochs, max_age, prompts_of_rollout
from rlstep_hooks.systems.openrlhf.settings import is_config, read_settings, written_settings
from rlstep_hooks.systems.openrlhf.updates import role_of, update_fields

if TYPE_CHECKING:
    from rlstep_hooks.systems.openrlhf.settings import OpenRLHFSettings
    from rlstep_hooks.systems.openrlhf.updates import Role


def plan_config(args: Any, *, rows: int | None, release: OpenRLHFRelease | None = None) -> Schedule:
    """The Schedule of a trainer's arguments.

    Args:
        args: `strategy.args` of a live run (nested from 0.10.2 on, flat before), or a mapping of flags to values.
        rows: Rows of the prompt set before `data.max_samples` cuts it; None if not known, whose totals are then not evaluated.
        release: The release of OpenRLHF; the installed one if left out.

    Raises:
        TypeError: These are no arguments of an OpenRLHF trainer.
        LookupError: OpenRLHF is not installed and no release is given, or the release is not supported.
        PlanError: OpenRLHF refuses these arguments, or fails on them.
    """
    release = release or installed_release()
    if release is None:
        raise LookupError("OpenRLHF is not installed here; name its release")
    if not release.supported:
        raise LookupError(f"OpenRLHF {release.openrlhf} is not supported ({SUPPORTED} are)")
    return make_schedule(read_settings(args, release), release, rows)


def make_schedule(settings: OpenRLHFSettings, release: OpenRLHFRelease, rows: int | None) -> Schedule:
    """The Schedule of one set of arguments under one release.

    Args:
        settings: The settings.
        release: The release of OpenRLHF.
        rows: Rows of the prompt set; None if not known.

    Raises:
        PlanError: OpenRLHF refuses these arguments, or fails on them.
    """
    check_settings(settings, release)
    policy = role_of(settings, release, "actor")
    critic = role_of(settings, release, "critic") if settings.estimator == "gae" else None
    prompts = prompts_of_rollout(settings, release, policy.processes)
    not_evaluated: dict[str, str] = {}
    counted = (
        count_rows(settings, release, rows, prompts, policy.processes, not_evaluated) if rows is not None else None
    )
    samples = prompts * settings.group
    last = counted.last_prompts * settings.group if counted else 0
    for role in (policy, critic):
        if role is not None and not settings.dynamic_batch:
            check_shares(settings, release, role, samples, "in the first rollout")
            check_shares(settings, release, role, last, "in the last rollout of an episode, which is smaller")
    per_episode = counted.per_episode if counted else None
    if counted is None:
        for name in ("rollouts", "updates", "lr_ticks", "lr_horizon", "data_epochs", "loader_epochs"):
            not_evaluated[name] = "the rows of the prompt set are not known"
    frozen = max(settings.freezing_steps + release.counts_steps_from_zero, 0)
    rollouts = Rollouts(
        samples=samples,
        last=last,
        number=per_episode * settings.episodes if per_episode is not None else None,
        per_episode=per_episode,
        frozen=frozen,
        keeps_frozen=release.keeps_frozen_samples,
    )
    filtered = settings.dynamic_filtering
    schedule = Schedule(
        framework="OpenRLHF",
        version=release.openrlhf,
        algorithm=settings.algorithm,
        loop="phases",
        prompts_per_rollout=Fraction(prompts),
        samples_per_prompt=settings.group,
        samples_per_rollout=samples,
        samples_of_last_rollout=last,
        remainder="drop" if settings.dynamic_batch else "carry",
        max_age=max_age(settings),
        syncs=_syncs(settings, release, frozen, not_evaluated),
        rows=counted.rows if counted else None,
        rows_dropped_per_epoch=counted.dropped if counted and not filtered else None,
        rows_bound="data_dependent" if filtered else "exact",
        rows_reshuffled=True,
        rollouts_per_epoch=per_episode,
        microbatches_per_epoch=None,
        rollouts=rollouts.number,
        data_epochs=data_epochs(settings, counted),
        loader_epochs=Fraction(settings.episodes) if rollouts.number else None,
        old_logprob_source="recompute",
        reference_source="at_rollout" if settings.kl_coef > 0 else "none",
        lr_horizon=counted.horizon if counted else None,
        lr_clock="update",
        step_unit="rollout",
        settings=written_settings(settings),
        sources=_sources(settings, release),
        not_evaluated=not_evaluated,
        **update_fields(policy, settings, rollouts, not_evaluated),
    )
    if critic is None:
        return schedule
    return msgspec.structs.replace(schedule, critic=_critic(schedule, critic, settings, rollouts))


def _syncs(settings: OpenRLHFSettings, release: OpenRLHFRelease, frozen: int, not_evaluated: dict[str, str]) -> Any:
    """After each rollout, and none before the first: the engine loads the same weights (trainer/ppo_trainer.py:246-248)."""
    reason = ""
    if not settings.engines and release.ranks_generate:
        reason = "the trainers generate themselves: there is no engine"
    elif frozen and not release.syncs_while_frozen:
        reason = f"OpenRLHF {release.openrlhf} syncs no weights after a rollout that trains the critic only"
    if reason:
        not_evaluated["syncs"] = reason
        return "unseen"
    return "after_updates"


def _critic(schedule: Schedule, role: Role, settings: OpenRLHFSettings, rollouts: Rollouts) -> Schedule:
    """The critic's schedule: the same rollouts, from the first on, with its own processes."""
    not_evaluated: dict[str, str] = {}
    fields = update_fields(role, settings, msgspec.structs.replace(rollouts, frozen=0), not_evaluated)
    # A critic has no ratio.
    fields |= {"lags": (), "ratio_one_updates": (), "reference_source": "none", "not_evaluated": not_evaluated}
    return msgspec.structs.replace(schedule, **fields)


def _sources(settings: OpenRLHFSettings, release: OpenRLHFRelease) -> dict[str, str]:
    openrlhf = f"OpenRLHF {release.openrlhf}"
    samples = (
        f"{openrlhf} trainer/ray/ppo_actor.py prepare_datasets"
        if release.ranks_generate
        else f"{openrlhf} trainer/ppo_utils/{'samples_generator' if release.since('0.9.9') else 'experience_maker'}.py"
    )
    accumulation = f"{openrlhf} utils/deepspeed/deepspeed.py setup_distributed, DeepSpeed runtime/config.py"
    return {
        "samples_per_rollout": samples,
        "samples_per_update": accumulation,
        "updates_per_rollout": (
            f"{openrlhf} trainer/ppo_utils/replay_buffer.py setup_dynamic_batch"
            if settings.dynamic_batch
            else f"{openrlhf} trainer/{'ppo_trainer' if release.ranks_generate else 'ray/ppo_actor'}.py ppo_train; DeepSpeed "
            "runtime/engine.py is_gradient_accumulation_boundary"
        ),
        "microbatches_per_update": accumulation,
        "samples_dropped_per_rollout": f"{openrlhf} trainer/ray/ppo_actor.py ppo_train: DataLoader(drop_last=True)",
        "rollouts_per_epoch": samples if release.since("0.11") else f"{openrlhf} trainer/ppo_trainer.py fit",
        "frozen_rollouts": f"{openrlhf} trainer/ppo_trainer.py ppo_train: global_steps > freezing steps, from "
        f"{0 if release.counts_steps_from_zero else 1} on",
        "lr_horizon": f"{openrlhf} trainer/{'ray/ppo_actor.py' if release.ranks_generate else 'ppo_trainer.py'}: max_steps",
        "max_age": f"{openrlhf} trainer/ppo_trainer_async.py rollout_slots" if settings.asynchronous else "no queue",
        "old_logprob_source": f"{openrlhf} trainer/ppo_utils/experience_maker.py make_experience",
    }


def plan_live(thing: Any, *, rows: int | None, world_size: int | None) -> Schedule | None:
    """The Schedule of the parsed arguments of OpenRLHF 0.5 to 0.11; None for anything else. They say the processes themselves.

    Raises:
        LookupError: OpenRLHF is not installed, or its release is not supported.
        PlanError: OpenRLHF refuses these arguments, or fails on them.
    """
    return plan_config(thing, rows=rows) if is_config(thing) else None
