"""verl from a launch: `verl.trainer.main_ppo` (0.6.1 to 0.9), 0.8's `main_ppo_sync`, and DAPO's recipe.

The formulas are those of `rlstep_hooks.systems.verl.plan`, which also reads live configurations; here are the defaults that a launch
leaves to verl/trainer/config/_generated_ppo_trainer.yaml (the same in all of these releases), and recipe/dapo/dapo_ray_trainer.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.nested import Kind, nested_config, place
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.reading import Conversion, Formula, Note, Reading
from rlstep_hooks.systems.reader import Reader, Request, release_of
from rlstep_hooks.systems.verl.plan import plan_config
from rlstep_hooks.systems.verl.releases import SUPPORTED, Release
from rlstep_hooks.systems.verl.settings import evaluates_only, setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings
    from rlstep_hooks.planning.schedule import OldLogProbSource, Schedule

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_CRITIC_ENGINES = ("fsdp", "model.fsdp_config")

DEFAULTS: dict[str, Any] = {
    "data.train_batch_size": 1024,
    "data.shuffle": True,
    "data.train_max_samples": -1,
    f"{_ROLLOUT}.n": 1,
    f"{_ACTOR}.ppo_mini_batch_size": 256,
    f"{_ACTOR}.ppo_epochs": 1,
    f"{_ACTOR}.use_dynamic_bsz": False,
    f"{_ACTOR}.use_kl_loss": False,
    f"{_ACTOR}.optim.lr_scheduler_type": "constant",
    f"{_ACTOR}.optim.lr_warmup_steps": -1,
    f"{_ACTOR}.optim.lr_warmup_steps_ratio": 0.0,
    "critic.ppo_micro_batch_size_per_gpu": "${critic.ppo_micro_batch_size}",
    "algorithm.adv_estimator": "gae",
    "algorithm.use_kl_in_reward": False,
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
    "trainer.total_epochs": 30,
    "trainer.critic_warmup": 0,
    "trainer.save_freq": -1,
    "trainer.test_freq": -1,
}
"""What differs from "not set" in the configuration of every release from 0.6.1 to 0.9.1."""

KINDS: dict[str, Kind] = {
    "data.train_batch_size": "count",
    "data.gen_batch_size": "count",
    "data.shuffle": "flag",
    f"{_ROLLOUT}.n": "count",
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": "count",
    f"{_ROLLOUT}.log_prob_use_dynamic_bsz": "flag",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": "count",
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": "flag",
    f"{_ACTOR}.strategy": "text",
    f"{_ACTOR}.ppo_mini_batch_size": "count",
    f"{_ACTOR}.ppo_micro_batch_size": "count",
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": "count",
    f"{_ACTOR}.use_dynamic_bsz": "flag",
    f"{_ACTOR}.ppo_epochs": "count",
    f"{_ACTOR}.shuffle": "flag",
    f"{_ACTOR}.use_kl_loss": "flag",
    f"{_ACTOR}.use_rollout_log_probs": "flag",
    f"{_ACTOR}.ulysses_sequence_parallel_size": "count",
    f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size": "count",
    **{
        f"{role}.megatron.{name}_parallel_size": "count"
        for role in (_ACTOR, "critic")
        for name in ("tensor_model", "pipeline_model", "context")
    },
    **{f"{role}.veomni.ulysses_parallel_size": "count" for role in (_ACTOR, "critic")},
    **{
        f"{role}.torchtitan.data_parallel_{name}_size": "count"
        for role in (_ACTOR, "critic")
        for name in ("shard", "replicate")
    },
    "critic.enable": "flag",
    "critic.strategy": "text",
    "critic.ppo_mini_batch_size": "count",
    "critic.ppo_micro_batch_size": "count",
    "critic.ppo_micro_batch_size_per_gpu": "count",
    "critic.use_dynamic_bsz": "flag",
    "critic.ppo_epochs": "count",
    "critic.ulysses_sequence_parallel_size": "count",
    **{f"critic.{engine}.use_dynamic_bsz": "flag" for engine in _CRITIC_ENGINES},
    **{f"critic.{engine}.micro_batch_size_per_gpu": "count" for engine in _CRITIC_ENGINES},
    **{f"critic.{engine}.ulysses_sequence_parallel_size": "count" for engine in _CRITIC_ENGINES},
    "algorithm.adv_estimator": "text",
    "algorithm.use_kl_in_reward": "flag",
    "algorithm.filter_groups.enable": "flag",
    "algorithm.rollout_correction.bypass_mode": "flag",
    "reward.reward_model.enable": "flag",
    "reward.reward_model.enable_resource_pool": "flag",
    "transfer_queue.enable": "flag",
    "trainer.n_gpus_per_node": "count",
    "trainer.nnodes": "count",
    "trainer.total_epochs": "count",
    "trainer.total_training_steps": "count",
    "trainer.critic_warmup": "whole",
    "trainer.use_v1": "flag",
    "trainer.use_legacy_worker_impl": "text",
    "trainer.v1.trainer_mode": "text",
    "trainer.v1.colocate_async.num_warmup_batches": "number",
    "trainer.v1.separate_async.parameter_sync_step": "count",
    "trainer.val_only": "flag",
    "trainer.val_before_train": "flag",
    f"{_ROLLOUT}.nnodes": "whole",
    f"{_ROLLOUT}.checkpoint_engine.backend": "text",
    f"{_ROLLOUT}.agent.default_agent_loop": "text",
    f"{_ROLLOUT}.agent.agent_loop_config_path": "text",
    "trainer.v1.sampler.max_off_policy_threshold": "count",
    "trainer.v1.sampler.max_off_policy_strategy": "text",
    "trainer.v1.sampler.sync_refill_failed_groups": "flag",
}
"""All settings that a plan of verl reads."""

_UNKNOWN_LENGTH = (
    "rollouts",
    "updates",
    "lr_ticks",
    "rollouts_per_epoch",
    "rows_dropped_per_epoch",
    "data_epochs",
    "loader_epochs",
)


class Verl(Reader):
    """verl's PPO and GRPO trainers."""

    name = "verl"
    title = "verl"
    version = "0.9.1"
    overrides = True
    config_settings = ()

    def defaults(self, version: str) -> Mapping[str, Any]:
        """The defaults of ppo_trainer.yaml."""
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule; formulas in `rlstep_hooks.systems.verl.plan`."""
        release = release_named(request.version)
        config = nested_config(request.settings, KINDS)
        dapo = _entry_point(request, config)
        _engine(request.settings, config)
        rows = request.rows("data.train_files")
        count = rows.count
        limit = request.settings.count("data.train_max_samples", least=-1)
        if count is not None and limit > 0:
            count = min(count, limit)
        filtered = dapo and bool(setting(config, "algorithm.filter_groups.enable", False))
        generated = setting(config, "data.gen_batch_size", setting(config, "data.train_batch_size"))
        if filtered:
            place(config, "data.gen_batch_size", None)
        schedule = _planned(config, None if filtered else count, release)
        if request.world_size_given is not None:
            gpus = setting(config, "trainer.n_gpus_per_node") * setting(config, "trainer.nnodes")
            place(config, "trainer.nnodes", 1)
            place(config, "trainer.n_gpus_per_node", request.world_size_given * (gpus // schedule.world_size))
            schedule = _planned(config, None if filtered else count, release)
        if count is None:
            for name in ("rows", "rows_dropped_per_epoch", "rollouts_per_epoch"):
                schedule.not_evaluated.setdefault(name, rows.source)
        elif filtered:
            schedule = _filtered(schedule, config, count, generated)
        formulas = formulas_of(schedule, config)
        return Reading(
            schedule=schedule,
            formulas=formulas,
            notes=tuple(_notes(schedule, config)),
            facts=_facts(request.settings, schedule),
        )

    def write(self, schedule: Schedule) -> Conversion:
        """The same schedule as a launch of verl 0.9."""
        return _written(schedule, self.title)


def release_named(version: str) -> Release:
    """The release of a version.

    Raises:
        LaunchError: It is not supported.
    """
    release_of(version)
    release = Release(version)
    if not release.supported:
        raise LaunchError(f"verl {version} is not supported: {SUPPORTED} are")
    return release


def _planned(config: dict[str, Any], rows: int | None, release: Release) -> Schedule:
    schedule = plan_config(config, rows=rows, release=release)
    return msgspec.structs.replace(schedule, not_evaluated=dict(schedule.not_evaluated))


def _entry_point(request: Request, config: dict[str, Any]) -> bool:
    """Set what the program itself sets; True for DAPO's recipe.

    Raises:
        LaunchError: It is a trainer of its own that was not read.
    """
    program = request.command.program
    name = program.name.removesuffix(".py").replace("/", ".")
    if program.kind == "config":
        return False
    if name.endswith("main_ppo_sync"):
        place(config, "transfer_queue.enable", True)
    elif name.endswith("main_ppo_v0"):
        place(config, "trainer.use_v1", False)
    elif name.endswith("main_dapo"):
        place(config, "trainer.use_v1", False)
        return True
    elif name.startswith(("recipe.", "verl.experimental.")):
        raise LaunchError(
            f"{name} is a trainer of its own that is not read; verl.trainer.main_ppo and recipe.dapo.main_dapo are",
            request.command.place,
        )
    return False


def _engine(settings: Settings, config: dict[str, Any]) -> None:
    """The engine that a configuration's name or `model_engine` chooses for both roles, unless they say it themselves."""
    named = settings.text("config_name") or ""
    engine = settings.text("model_engine") or next(
        (e for e in ("megatron", "veomni", "torchtitan") if e in named), "dp"
    )
    if engine == "dp":
        return
    for role in (_ACTOR, "critic"):
        if not settings.is_given(f"{role}.strategy"):
            place(config, f"{role}.strategy", engine)


def _filtered(schedule: Schedule, config: dict[str, Any], rows: int, generated: int) -> Schedule:
    """DAPO's recipe with filter_groups: whole batches of the loader are generated until enough prompts are left.

    Its length counts batches of the loader (`_create_dataloader`), and so does the learning-rate schedule.
    """
    batches = rows // generated * setting(config, "trainer.total_epochs")
    horizon = setting(config, "trainer.total_training_steps") or batches
    reason = f"filtering decides how many of {batches} generated batches make a rollout: at most {min(batches, horizon)} rollouts"
    return msgspec.structs.replace(
        schedule,
        rows=rows,
        rows_bound="data_dependent",
        lr_horizon=horizon,
        not_evaluated={
            **{
                name: why
                for name, why in schedule.not_evaluated.items()
                if name not in ("lr_horizon", *_UNKNOWN_LENGTH)
            },
            **dict.fromkeys(_UNKNOWN_LENGTH, reason),
        },
    )


def formulas_of(schedule: Schedule, config: Mapping[str, Any]) -> tuple[Formula, ...]:
    """The formulas in the words of verl's settings."""
    sources = schedule.sources
    group, minibatch = f"{_ROLLOUT}.n", f"{_ACTOR}.ppo_mini_batch_size"
    size = f"{minibatch} * {group}"
    if schedule.remainder == "keep":
        size = f"floor({size} / world_size) * world_size"
    prompts = "data.train_batch_size"
    if schedule.prompts_per_rollout != setting(config, prompts):
        prompts = "data.gen_batch_size"
    padded = "samples_per_rollout"
    formulas = [Formula("samples_per_rollout", f"{prompts} * {group}", sources["rollouts"])]
    if schedule.samples_added_per_rollout:
        units = ["world_size", "samples_per_update"]
        if schedule.critic is not None:
            units.append(_critic_size(schedule, config))
        multiple = f"lcm({', '.join(units)})"
        text = f"ceil(samples_per_rollout / {multiple}) * {multiple} - samples_per_rollout"
        formulas.append(Formula("samples_added_per_rollout", text, sources["samples_added_per_rollout"]))
        padded = "(samples_per_rollout + samples_added_per_rollout)"
    formulas += [
        Formula("samples_per_update", size, sources["minibatches"]),
        Formula(
            "updates_per_rollout", f"{_ACTOR}.ppo_epochs * ceil({padded} / samples_per_update)", sources["minibatches"]
        ),
    ]
    if schedule.frozen_rollouts:
        formulas.append(Formula("frozen_rollouts", "trainer.critic_warmup - 1", sources["frozen_rollouts"]))
    if schedule.rows_bound == "exact" and not evaluates_only(config):
        length = "floor(rows / prompts_per_rollout) * trainer.total_epochs"
        if setting(config, "trainer.total_training_steps") is not None:
            length = f"min({length}, trainer.total_training_steps)"
        formulas.append(Formula("rollouts", length, sources["rollouts"]))
        formulas.append(Formula("updates", "(rollouts - frozen_rollouts) * updates_per_rollout", sources["rollouts"]))
        if schedule.lr_clock == "rollout":
            formulas.append(Formula("lr_ticks", "rollouts - frozen_rollouts", sources["lr_ticks"]))
    return tuple(formulas)


def _critic_size(schedule: Schedule, config: Mapping[str, Any]) -> str:
    given = setting(config, "critic.ppo_mini_batch_size") is not None
    return f"critic.ppo_mini_batch_size * {_ROLLOUT}.n" if given else "samples_per_update"


def _notes(schedule: Schedule, config: Mapping[str, Any]) -> list[Note]:
    notes = [
        Note(
            "unit",
            "train_batch_size and ppo_mini_batch_size count prompts, ppo_micro_batch_size_per_gpu samples of one process",
        ),
    ]
    added = schedule.samples_added_per_rollout
    if added:
        notes.append(Note("pads", f"each rollout is filled up with {added} samples that train nothing"))
    sizes = set(schedule.minibatches)
    if len(sizes) > 1:
        notes.append(
            Note("grows", f"the last mini-batch of a pass is smaller: {min(sizes)} instead of {max(sizes)} samples")
        )
    minibatch = setting(config, f"{_ACTOR}.ppo_mini_batch_size") * schedule.samples_per_prompt
    if schedule.samples_per_update is not None and schedule.samples_per_update < minibatch:
        notes.append(
            Note(
                "grows",
                f"a mini-batch of {minibatch} samples on {schedule.world_size} processes is rounded down to "
                f"{schedule.samples_per_update}: {schedule.updates_per_rollout} updates",
            )
        )
    if schedule.rows is not None:
        notes.append(Note("assumes", "the rows are those left after data.filter_overlong_prompts"))
    if evaluates_only(config):
        notes.append(Note("ignores", "trainer.val_only=True: verl validates once and ends, nothing is trained"))
        return notes
    if setting(config, "trainer.val_only", False):
        notes.append(
            Note("ignores", "trainer.val_only has no effect where trainer.val_before_train=False: verl trains")
        )
    if schedule.updates_bound == "data_dependent":
        notes.append(
            Note(
                "assumes",
                "each session of the agent loop gives one sample; with several or none, updates of a rollout follow the samples",
            )
        )
    asked = setting(config, "trainer.total_training_steps")
    if asked is not None and schedule.rollouts is not None and schedule.rollouts < asked:
        notes.append(
            Note(
                "ignores",
                f"training ends after total_epochs, with {schedule.rollouts} of total_training_steps = {asked} rollouts",
            )
        )
    return notes


def _facts(settings: Settings, schedule: Schedule) -> dict[str, Any]:
    optim = f"{_ACTOR}.optim"
    kind = settings.text(f"{optim}.lr_scheduler_type", f"{optim}.warmup_style") or "constant"
    facts: dict[str, Any] = {
        "lr_constant": kind == "constant",
        "minibatch_unit": "prompts",
        "nominal_updates_per_rollout": schedule.reuse_epochs
        * schedule.prompts_per_rollout
        / settings.count(f"{_ACTOR}.ppo_mini_batch_size"),
    }
    steps = settings.count(f"{optim}.lr_warmup_steps", least=-1)
    if steps >= 0:
        facts["lr_warmup"] = steps
    elif schedule.lr_horizon is not None:
        facts["lr_warmup"] = int(settings.number(f"{optim}.lr_warmup_steps_ratio") * schedule.lr_horizon)
    for fact, name in (("save_every", "trainer.save_freq"), ("eval_every", "trainer.test_freq")):
        every = settings.count(name, least=-1)
        if every > 0:
            facts[fact] = every
    return facts


# Writing.

_ESTIMATORS = {"GRPO": "grpo", "RLOO": "rloo", "REINFORCE++": "reinforce_plus_plus", "REMAX": "remax"}


def _written(schedule: Schedule, title: str) -> Conversion:
    """A schedule as a launch of `verl.trainer.main_ppo`.

    Raises:
        LaunchError: A quantity cannot be kept.
    """
    from rlstep_hooks.planning.writing import Target

    target = Target(schedule, title)
    target.divides_evenly()
    each = target.microbatch_per_process()
    critic = schedule.critic
    estimator = "gae" if critic is not None else _ESTIMATORS.get(schedule.algorithm.upper(), "grpo")
    command = [
        "python3", "-m", "verl.trainer.main_ppo",
        f"algorithm.adv_estimator={estimator}",
        f"data.train_batch_size={target.prompts}",
        f"{_ROLLOUT}.n={schedule.samples_per_prompt}",
        f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu={each}",
        f"{_ACTOR}.ppo_mini_batch_size={target.prompts_per_update()}",
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu={each}",
        f"{_ACTOR}.ppo_epochs={schedule.reuse_epochs}",
        f"trainer.n_gpus_per_node={schedule.world_size}",
        *_length(schedule, title),
    ]  # fmt: skip
    if schedule.reference_source != "none":
        command += [f"{_ACTOR}.use_kl_loss=True", f"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={each}"]
    if schedule.old_logprob_source == "engine":
        command.append("algorithm.rollout_correction.bypass_mode=True")
    if critic is not None:
        prompts, rest = divmod(critic.samples_per_update or 0, schedule.samples_per_prompt)
        if rest or not prompts or target.prompts % prompts:
            raise LaunchError(
                f"critic.samples_per_update = {critic.samples_per_update} cannot be kept: {title} counts whole prompts"
            )
        command += [
            f"critic.ppo_mini_batch_size={prompts}",
            f"critic.ppo_micro_batch_size_per_gpu={each}",
            f"critic.ppo_epochs={critic.reuse_epochs}",
        ]
    kept = schedule
    if schedule.frozen_rollouts and not schedule.frozen_samples_kept:
        command.append(f"trainer.critic_warmup={schedule.frozen_rollouts + 1}")
        kept = msgspec.structs.replace(kept, frozen_rollouts=0)
    target.schedule = kept
    source: OldLogProbSource = "engine" if schedule.old_logprob_source == "engine" else "recompute"
    target.keeps(lr_clock="rollout", source=source, critic=critic is not None, loader="drops")
    lost = list(target.lost())
    if critic is None and schedule.algorithm.upper() not in _ESTIMATORS:
        lost.append(f"algorithm: {schedule.algorithm}, here GRPO")
    return Conversion(tuple(command), tuple(lost))


def _length(schedule: Schedule, title: str) -> list[str]:
    """Rollouts, and epochs enough for them.

    Raises:
        LaunchError: The rows do not fill a rollout.
    """
    rollouts = schedule.rollouts
    if rollouts is None:
        return []
    per_epoch = 1 if schedule.rows is None else int(schedule.rows // schedule.prompts_per_rollout)
    if not per_epoch or not rollouts:
        raise LaunchError(f"rollouts = {rollouts} cannot be kept: {title} drops rows that do not fill a rollout")
    return [f"trainer.total_epochs={math.ceil(rollouts / per_epoch)}", f"trainer.total_training_steps={rollouts}"]


READER = Verl()
