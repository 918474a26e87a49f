"""NeMo-RL, GRPO and PPO: rollouts in prompts, mini-batches in samples, no remainder, one learning-rate tick a train() call.

Read at commit 7ea279a (2026-08-22): examples/configs/grpo_math_1B.yaml and ppo_math_1B.yaml (defaults), nemo_rl/algorithms/grpo.py
`setup`, `grpo_train`, `async_grpo_train`, nemo_rl/algorithms/ppo.py `setup`, `ppo_train`, nemo_rl/distributed/batched_data_dict.py
`shard_by_batch_size`, nemo_rl/models/policy/workers/dtensor_policy_worker_v2.py and megatron_policy_worker.py `train`.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.reading import Conversion
from rlstep_hooks.systems.declaration import (
    NOTHING,
    Check,
    Demand,
    Entry,
    Formula,
    Note,
    System,
    Typed,
    count,
    flag,
    number,
    text,
)

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.request import Request

_COMMIT = "NeMo-RL 7ea279a"
_SETUP = f"{_COMMIT} nemo_rl/algorithms/{{part}}.py setup"
_TRAIN = f"{_COMMIT} nemo_rl/algorithms/{{part}}.py {{part}}_train"
_DATA = f"{_COMMIT} nemo_rl/distributed/batched_data_dict.py"
_WORKER = f"{_COMMIT} nemo_rl/models/policy/workers/dtensor_policy_worker_v2.py train"

_TITLE = "NeMo-RL"

_START_UP = "at start-up"
_FIRST_TRAINING = "after the first rollout, when its samples are shared among the processes"

_SETTINGS: dict[str, Typed] = {
    "grpo.num_prompts_per_step": count(32),
    "grpo.num_generations_per_prompt": count(16),
    "grpo.max_num_epochs": count(1),
    "grpo.max_num_steps": count(1_000_000),
    "grpo.use_dynamic_sampling": flag(False),
    "grpo.batch_multiplier": number(1),
    "grpo.val_period": count(10, least=-1),
    "grpo.skip_reference_policy_logprobs_calculation": flag(False),
    "grpo.async_grpo.enabled": flag(False),
    "grpo.async_grpo.max_trajectory_age_steps": count(1),
    "ppo.num_prompts_per_step": count(32),
    "ppo.num_generations_per_prompt": count(16),
    "ppo.max_num_epochs": count(100_000, least=-1),
    "ppo.max_num_steps": count(100_000),
    "ppo.ppo_epochs": count(4),
    "ppo.policy_training_start_step": count(0, least=0),
    "ppo.use_dynamic_sampling": flag(False),
    "ppo.batch_multiplier": number(1),
    "ppo.val_period": count(20, least=-1),
    "ppo.skip_reference_policy_logprobs_calculation": flag(True),
    "ppo.async_ppo.enabled": flag(False),
    "ppo.async_ppo.max_trajectory_age_steps": count(1),
    "loss_fn.reference_policy_kl_penalty": number(0.01),
    "loss_fn.force_on_policy_ratio": flag(False),
    "loss_fn.use_importance_sampling_correction": flag(False),
    "checkpointing.enabled": flag(True),
    "checkpointing.save_period": count(10),
    "policy.train_global_batch_size": count(512),
    "policy.train_micro_batch_size": count(4),
    "policy.logprob_batch_size": count(),
    "policy.sequence_packing.enabled": flag(True),
    "policy.dynamic_batching.enabled": flag(False),
    "policy.dtensor_cfg.tensor_parallel_size": count(1),
    "policy.dtensor_cfg.context_parallel_size": count(1),
    "policy.megatron_cfg.enabled": flag(False),
    "policy.megatron_cfg.tensor_model_parallel_size": count(1),
    "policy.megatron_cfg.pipeline_model_parallel_size": count(1),
    "policy.megatron_cfg.context_parallel_size": count(1),
    "policy.megatron_cfg.scheduler.lr_decay_style": text("constant"),
    "policy.megatron_cfg.scheduler.lr_decay_iters": count(None),
    "policy.megatron_cfg.scheduler.lr_warmup_iters": count(0, least=0),
    "policy.generation.colocated.enabled": flag(True),
    "policy.generation.colocated.resources.gpus_per_node": count(None),
    "policy.generation.colocated.resources.num_nodes": count(None),
    "value.train_global_batch_size": count("${policy.train_global_batch_size}"),
    "value.train_micro_batch_size": count("${policy.train_micro_batch_size}"),
    "value.sequence_packing.enabled": flag(False),
    "value.dynamic_batching.enabled": flag(False),
    "value.dtensor_cfg.tensor_parallel_size": count(1),
    "value.dtensor_cfg.context_parallel_size": count(1),
    "value.megatron_cfg.enabled": flag(False),
    "value.megatron_cfg.tensor_model_parallel_size": count(1),
    "value.megatron_cfg.pipeline_model_parallel_size": count(1),
    "value.megatron_cfg.context_parallel_size": count(1),
    "data.use_multiple_dataloader": flag(False),
    "data.shuffle": flag(True),
    "data.train.split_validation_size": number(None),
    "cluster.gpus_per_node": count(1),
    "cluster.num_nodes": count(1),
}
"""With the defaults of the configuration that each script reads when none is named."""

_ONLY = {"grpo": "not ppo", "ppo": "ppo", "value": "ppo"}
SETTINGS = {
    name: msgspec.structs.replace(typed, where=_ONLY.get(name.partition(".")[0], ""))
    for name, typed in _SETTINGS.items()
}
"""Each trainer looks at its own part."""


def is_ppo(launch: Request) -> bool:
    """Whether the launch is one of PPO: by its script, else by its settings."""
    if launch.command.program.kind == "script":
        return launch.command.program.name.rpartition("/")[2].startswith("run_ppo")
    return launch.settings.is_given("ppo.num_prompts_per_step", "ppo.ppo_epochs")


def _reward_model(launch: Request, resource: str) -> int:
    """GPUs or nodes of the reward model, where a part of the data is judged by it (`extract_necessary_env_names`, `setup`)."""
    settings = launch.settings
    for key in ("train", "validation", "default"):
        value = settings.value(f"data.{key}")
        parts = [part.get("env_name") for part in value if isinstance(part, dict)] if isinstance(value, list) else []
        if "reward_model" in (*parts, settings.value(f"data.{key}.env_name")):
            return settings.count(f"env.reward_model.resources.{resource}")
    return 0


def _teacher_nodes(launch: Request) -> int:
    """Nodes of the teachers of on-policy distillation (`create_teacher_configs_from_opd_config`)."""
    settings, section = launch.settings, "on_policy_distillation"
    apart = f"{section}.non_colocated_teachers"
    if not (settings.flag(f"{section}.enabled") and settings.flag(f"{apart}.enabled")):
        return 0
    models = settings.section(f"{section}.teacher_model_by_agent_name")
    once = settings.value(f"{section}.deduplicate_shared_teacher_checkpoints") is not False
    first = {model: alias for alias, model in reversed(models.items())}
    nodes = 0
    for alias, model in models.items():
        if not once or first[model] == alias:
            own = settings.optional_count(f"{apart}.teacher_overrides.{alias}.num_nodes")
            nodes += own or settings.optional_count(f"{apart}.default_teacher_cfg.num_nodes") or 1
    return nodes


def write(schedule: Schedule) -> Conversion:
    """The same schedule as a launch of NeMo-RL: PPO where there is a critic, else GRPO."""
    from rlstep_hooks.planning.writing import Target, whole_rollouts

    critic = schedule.critic
    part = "grpo" if critic is None else "ppo"
    # PPO can wait for its critic, so that is not lost.
    target = Target(msgspec.structs.replace(schedule, frozen_rollouts=0) if critic else schedule, _TITLE)
    target.whole_prompts()
    target.divides_evenly()
    if critic is None and schedule.reuse_epochs > 1:
        raise LaunchError(
            f"reuse_epochs = {schedule.reuse_epochs} cannot be kept: NeMo-RL's GRPO passes once over a rollout, and its "
            "PPO needs a critic"
        )
    if critic is not None and critic.samples_per_update is None:
        raise LaunchError("critic.samples_per_update cannot be kept: it depends on the data")
    detached = schedule.old_logprob_source == "detach" and target.samples_per_update == schedule.samples_per_rollout
    command = [
        "python", f"examples/run_{part}.py",
        f"{part}.num_prompts_per_step={target.prompts}",
        f"{part}.num_generations_per_prompt={schedule.samples_per_prompt}",
        f"policy.train_global_batch_size={target.samples_per_update}",
        *_length(schedule, part, target.prompts),
        *_microbatch_words(schedule, "policy", target.microbatch_per_process()),
        f"cluster.gpus_per_node={schedule.world_size}",
        *(["loss_fn.force_on_policy_ratio=true"] if detached else []),
    ]  # fmt: skip
    if critic is not None:
        assert critic.samples_per_update is not None
        command += [
            f"ppo.ppo_epochs={schedule.reuse_epochs}",
            f"ppo.policy_training_start_step={schedule.frozen_rollouts}",
            f"value.train_global_batch_size={critic.samples_per_update}",
            *_microbatch_words(schedule, "value", target.microbatch_per_process(critic.samples_per_update)),
        ]
    target.keeps(
        lr_clock="pass" if critic else "rollout",
        source="detach" if detached else "recompute",
        critic=critic is not None,
        loader="drops",
    )
    lost = target.lost() + whole_rollouts(schedule)
    if critic is not None and critic.world_size != schedule.world_size:
        lost += (f"critic.world_size: {critic.world_size}, here {schedule.world_size} as for the policy",)
    if critic is not None and critic.reuse_epochs != schedule.reuse_epochs:
        lost += (f"critic.reuse_epochs: {critic.reuse_epochs}, here {schedule.reuse_epochs} as for the policy",)
    return Conversion(tuple(command), lost)


def _length(schedule: Schedule, part: str, prompts: int) -> list[str]:
    """Epochs and steps that give the same number of rollouts.

    Raises:
        LaunchError: There is none, or the rows do not fill one.
    """
    if schedule.rollouts is None:
        return []
    per_epoch = schedule.rows // prompts if schedule.rows is not None else None
    if schedule.rollouts == 0 or per_epoch == 0:
        raise LaunchError(
            f"rollouts = {schedule.rollouts} cannot be kept: NeMo-RL makes at least one, and the rows must fill it"
        )
    epochs = -(-schedule.rollouts // per_epoch) if per_epoch else schedule.rollouts
    return [f"{part}.max_num_epochs={epochs}", f"{part}.max_num_steps={schedule.rollouts}"]


def _microbatch_words(schedule: Schedule, role: str, size: int) -> list[str]:
    """The micro-batch, where the schedule has one in samples."""
    if schedule.samples_per_microbatch is None:
        return []
    return [f"{role}.train_micro_batch_size={size}", f"{role}.sequence_packing.enabled=false"]


def _copy(role: str) -> str:
    """GPUs that hold one copy of the policy or the value model."""
    megatron, tensor = f"{role}.megatron_cfg", f"{role}.dtensor_cfg"
    return (
        f"{megatron}.pipeline_model_parallel_size * {megatron}.tensor_model_parallel_size * {megatron}.context_parallel_size "
        f"if {megatron}.enabled else {tensor}.tensor_parallel_size * {tensor}.context_parallel_size"
    )


def _shared(role: str, where: str) -> Check:
    """Whole copies of a model on the GPUs."""
    return Check(
        f"training_gpus % {role}_copy == 0",
        f"World size ({{training_gpus}}) must be divisible by PP * CP * TP ({{{role}_copy}})",
        fix=f"a number of training GPUs of {{multiples(training_gpus, {role}_copy)}}",
        when=_START_UP,
        source=f"{_COMMIT} nemo_rl/models/policy/lm_policy.py Policy.__init__",
        where=where,
    )


def _batches(role: str, processes: str, where: str) -> tuple[Check, ...]:
    """What `shard_by_batch_size` and the micro-batch iterator ask of the sizes of a role."""
    size, micro = f"{role}.train_global_batch_size", f"{role}.train_micro_batch_size"
    share = f"{size} // {processes}"
    fitting = f"{size} = {{nearest({size}, samples_per_rollout % it == 0 and it % {processes} == 0)}}"
    return (
        Check(
            f"samples_per_rollout % {processes} == 0",
            f"Batch size ({{samples_per_rollout}}) is not a multiple of shards ({{{processes}}})",
            fix=f"a rollout of {{multiples(samples_per_rollout, {processes})}} samples",
            when="after the first rollout, when log-probs are computed",
            source=f"{_DATA} shard_by_batch_size",
            where=where,
        ),
        Check(
            f"samples_per_rollout % {size} == 0",
            f"Total batch size ({{samples_per_rollout}}) is not a multiple of batch_size ({{{size}}})",
            fix=fitting,
            when=_FIRST_TRAINING,
            source=f"{_DATA} shard_by_batch_size",
            where=where,
        ),
        Check(
            f"{size} % {processes} == 0",
            f"Batch size ({{{size}}}) is not a multiple of shards ({{{processes}}})",
            fix=fitting,
            when=_FIRST_TRAINING,
            source=f"{_DATA} shard_by_batch_size",
            where=where,
        ),
        Check(
            f"{role}_by_tokens or {share} % {micro} == 0",
            f"Data dict size ({{{share}}}) is not a multiple of the provided microbatch size ({{{micro}}})",
            fix=f"{micro} = {{nearest({micro}, gcd(it, {share}) == it)}}",
            when="after the first rollout, in the first update",
            source=f"{_DATA} make_microbatch_iterator",
            where=where,
        ),
    )


def _not_asynchronous(name: str, holds: str) -> Check:
    """What the scripts refuse in asynchronous training."""
    last = name.rpartition(".")[2]
    return Check(
        holds,
        f"{last} is not supported with async {{algorithm}}",
        fix=f"{name} = false, or {{part}}.async_{{part}}.enabled = false",
        when=_START_UP,
        source=f"{_COMMIT} examples/run_{{part}}.py",
        where="asynchronous",
    )


_APART = "policy.generation.colocated.resources"
_MEGATRON = {
    "policy.megatron_cfg.scheduler.lr_decay_iters": 1000,
    "policy.megatron_cfg.scheduler.lr_warmup_iters": 13,
}
_OWN_CONFIGS: dict[str, dict[str, Any]] = {
    "configs/grpo_math_1B": _MEGATRON,
    "configs/ppo_math_1B": {
        **_MEGATRON,
        "policy.megatron_cfg.scheduler.lr_warmup_iters": 10,
        "loss_fn.reference_policy_kl_penalty": 0.0,
    },
    "configs/grpo_sliding_puzzle": {**_MEGATRON, "grpo.max_num_steps": 10_000, "data.shuffle": False},
    "configs/vlm_grpo_3B": {
        **_MEGATRON,
        "grpo.num_prompts_per_step": 8,
        "policy.train_global_batch_size": 128,
        "policy.train_micro_batch_size": 1,
        "policy.dynamic_batching.enabled": True,
        "policy.sequence_packing.enabled": False,
        "cluster.gpus_per_node": 2,
    },
}
"""What examples/configs sets unlike SETTINGS."""

SYSTEM = System(
    name="nemo_rl",
    title=_TITLE,
    version="7ea279a",
    trains=("*grpo_train*", "*ppo_train*"),
    recognised=(
        Entry(
            "nemo_rl",
            programs=("script:run_grpo.py", "script:run_grpo_*.py", "script:run_vlm_grpo.py", "script:run_ppo.py"),
            keys=("grpo.num_prompts_per_step", "ppo.num_prompts_per_step"),
        ),
    ),
    overrides=True,
    own_configs=_OWN_CONFIGS,
    # examples/run_*.py main: what each reads without --config.
    script_configs={
        "run_grpo.py": "configs/grpo_math_1B.yaml",
        "run_grpo_math.py": "configs/grpo_math_1B.yaml",
        "run_grpo_sliding_puzzle.py": "configs/grpo_sliding_puzzle.yaml",
        "run_vlm_grpo.py": "configs/vlm_grpo_3B.yaml",
        "run_grpo_nemo_gym.py": "grpo_workplace_assistant_nemotron_nano_v2_9b.yaml",
        "run_ppo.py": "configs/ppo_math_1B.yaml",
    },
    # nemo_rl/utils/config.py register_omegaconf_resolvers
    resolvers={"add": operator.add, "mul": operator.mul, "div": operator.truediv, "max": max},
    rows_from=("data.train.data_path",),
    settings=SETTINGS,
    shown=tuple(
        name
        for name, typed in SETTINGS.items()
        if name.partition(".")[0] in ("grpo", "ppo", "policy", "value") and typed.default is not NOTHING
    ),
    functions={
        "is_ppo": is_ppo,
        "reward_model": _reward_model,
        "teacher_nodes": _teacher_nodes,
        "single_controller": lambda launch: launch.settings.has_section("async_rl"),
        "ignores_accuracy": lambda launch: "NRL_IGNORE_TP_ACCURACY_CHECK" in launch.command.environment,
        "given_rows": lambda launch: launch.rows_given,
        "given_processes": lambda launch: launch.world_size_given,
    },
    let={
        "ppo": "is_ppo(launch)",
        "part": "'ppo' if ppo else 'grpo'",
        "algorithm": "upper(part)",
        **{
            name: f"ppo.{setting.format('ppo')} if ppo else grpo.{setting.format('grpo')}"
            for name, setting in {
                "prompts": "num_prompts_per_step",
                "group": "num_generations_per_prompt",
                "max_epochs": "max_num_epochs",
                "max_steps": "max_num_steps",
                "dynamic": "use_dynamic_sampling",
                "multiplier": "batch_multiplier",
                "asynchronous": "async_{}.enabled",
                "oldest": "async_{}.max_trajectory_age_steps",
                "evaluates": "val_period",
                "without_reference": "skip_reference_policy_logprobs_calculation",
            }.items()
        },
        "epochs": "ppo.ppo_epochs if ppo else 1",
        "reuse_epochs": "epochs",
        "prompts_per_rollout": "prompts",
        "samples_per_prompt": "group",
        "frozen_rollouts": "ppo.policy_training_start_step if ppo else 0",
        # A part of the file may be kept for validation.
        "rows": "unknown('the launch does not say; give --rows') "
        "if data.train.split_validation_size and given_rows(launch) is None else rows",
        # GPUs that train: not those of the reward model and of teachers; without a place of its own, generation is on the same ones.
        "colocated": "policy.generation.colocated.enabled",
        "policy_nodes": "cluster.num_nodes - teacher_nodes(launch) "
        "- (reward_model(launch, 'num_nodes') if cluster.num_nodes > 1 else 0)",
        "shares_node": "not colocated and policy_nodes == 1",
        "training_nodes": f"policy_nodes if colocated or shares_node else policy_nodes - {_APART}.num_nodes",
        "gpus_of_node": f"cluster.gpus_per_node - ({_APART}.gpus_per_node if shares_node else 0) "
        "- (reward_model(launch, 'gpus_per_node') if cluster.num_nodes == 1 else 0)",
        "training_gpus": "gpus_of_node * training_nodes",
        "policy_copy": _copy("policy"),
        "value_copy": _copy("value"),
        "processes": "training_gpus // policy_copy",
        "tensor_parallel": "policy.megatron_cfg.tensor_model_parallel_size if policy.megatron_cfg.enabled "
        "else policy.dtensor_cfg.tensor_parallel_size",
        "inaccurate": "tensor_parallel >= 4 and policy.logprob_batch_size is not None "
        "and policy.logprob_batch_size != policy.train_micro_batch_size and not loss_fn.force_on_policy_ratio",
        "critic": "ppo",
        "critic.world_size": "given_processes(launch) or training_gpus // value_copy",
        # Tokens, not samples, may fill a micro-batch.
        **{
            f"{role}_by_tokens": f"{role}.sequence_packing.enabled or {role}.dynamic_batching.enabled"
            for role in ("policy", "value")
        },
        "samples_per_microbatch": "None if policy_by_tokens else policy.train_micro_batch_size * world_size",
        "critic.samples_per_microbatch": "None if value_by_tokens else value.train_micro_batch_size * critic.world_size",
        # Several loaders, and that of asynchronous PPO, never end.
        "endless": "data.use_multiple_dataloader or asynchronous and ppo",
        "loader": "'wraps' if endless else 'drops'",
        "passes": "1 if asynchronous else max_epochs",
        "generated": "floor(prompts * multiplier)",
        "replaced": "unknown('prompts whose samples all score the same are replaced by later ones' "
        "+ ('; at most ' + quoted(min(rows // generated * passes, max_steps)) + ' rollouts' if known(rows) else ''))",
        "data_epochs": "replaced if dynamic and not endless else None",
        "loader_epochs": "replaced if dynamic and not endless else None",
        "rows_dropped_per_epoch": "rows % generated if dynamic and not endless else None",
        "rows_bound": "'data_dependent' if dynamic else 'exact'",
        "rows_reshuffled": "data.shuffle",
        # The configurations come with a limit that stands for none.
        "limit": f"max_steps if known(rows) or max_steps < ({SETTINGS['ppo.max_num_steps'].default} if ppo "
        f"else {SETTINGS['grpo.max_num_steps'].default}) else None",
        "max_age": "oldest if asynchronous else 0",
        "old_logprob_source": "'detach' if loss_fn.force_on_policy_ratio else 'recompute'",
        "lags": "(0,) if loss_fn.force_on_policy_ratio else None",
        "reference_source": "'at_rollout' if not without_reference and (ppo or loss_fn.reference_policy_kl_penalty > 0) else 'none'",
        "lr_clock": "'pass' if ppo else 'rollout'",
        # Of Megatron, whose schedule is as long as the run without a wait for the critic; a DTensor scheduler has its own.
        "lr_horizon": "(policy.megatron_cfg.scheduler.lr_decay_iters or rollouts * epochs) "
        "if policy.megatron_cfg.enabled and (known(rollouts) or policy.megatron_cfg.scheduler.lr_decay_iters) else None",
        "critic.lr_horizon": "rollouts * epochs if known(rollouts) else None",
    },
    always={"syncs": "first_and_after_updates"},
    formulas=(
        Formula("samples_per_rollout", "prompts * group", _TRAIN),
        Formula("samples_per_update", "policy.train_global_batch_size", _WORKER),
        Formula(
            "updates_per_rollout",
            "epochs * samples_per_rollout / policy.train_global_batch_size",
            f"{_WORKER} (num_global_batches), {_TRAIN}",
        ),
        Formula(
            "rollouts_per_epoch",
            "replaced if dynamic else floor(rows / prompts)",
            f"{_SETUP} (StatefulDataLoader, drop_last=True)",
            where="not endless",
        ),
        Formula("rollouts", "max_steps", _TRAIN, where="endless"),
        Formula("rollouts", "replaced if dynamic else limited(passes * rollouts_per_epoch, limit)", _TRAIN),
        Formula("updates", "max(rollouts - frozen_rollouts, 0) * updates_per_rollout", _TRAIN),
        Formula(
            "lr_ticks",
            "max(rollouts - frozen_rollouts, 0) * epochs",
            f"{_WORKER} (scheduler.step() once a call, after all its updates)",
        ),
        Formula("critic.samples_per_update", "value.train_global_batch_size", f"{_TRAIN} (value_model.train)"),
        Formula(
            "critic.updates_per_rollout",
            "ppo.ppo_epochs * samples_per_rollout / value.train_global_batch_size",
            f"{_TRAIN} (value_model.train)",
        ),
    ),
    checks=(
        Demand(
            "not ends(program, 'run_grpo_single_controller.py') and not single_controller(launch)",
            "run_grpo_single_controller.py has another trainer (async_rl), which is not known here",
        ),
        Demand(
            "asynchronous or max_epochs > 0",
            "{part}.max_num_epochs = {max_epochs}: it must be at least 1",
            about="ppo.max_num_epochs",
        ),
        Check(
            "dynamic or multiplier == 1",
            "batch_multiplier>1 can only be used if use_dynamic_sampling=True",
            fix="{part}.batch_multiplier = 1, or {part}.use_dynamic_sampling = true",
            when=_START_UP,
            source=_SETUP,
        ),
        Check(
            "samples_per_rollout == policy.train_global_batch_size",
            "force_on_policy_ratio requires train_global_batch_size == num_prompts_per_step * num_generations_per_prompt "
            "({policy.train_global_batch_size} != {samples_per_rollout})",
            fix="policy.train_global_batch_size = {samples_per_rollout}",
            when=_START_UP,
            source=_SETUP,
            where="loss_fn.force_on_policy_ratio",
        ),
        _not_asynchronous("{part}.use_dynamic_sampling", "not dynamic"),
        _not_asynchronous("data.use_multiple_dataloader", "not data.use_multiple_dataloader"),
        Check(
            "loss_fn.use_importance_sampling_correction",
            "Importance sampling correction must be enabled for async GRPO for good convergence due to off-policy samples!",
            fix="loss_fn.use_importance_sampling_correction = true",
            when="after start-up, when training begins",
            source=f"{_COMMIT} nemo_rl/algorithms/grpo.py async_grpo_train",
            where="asynchronous and not ppo",
        ),
        Check(
            f"{_APART}.gpus_per_node == cluster.gpus_per_node",
            f"{_APART}.gpus_per_node must be explicitly set and equal to cluster.gpus_per_node when cluster.num_nodes > 1 and "
            f"inference is non-colocated, but got inference_gpus_per_node={{{_APART}.gpus_per_node}}, "
            "cluster.gpus_per_node={cluster.gpus_per_node}.",
            fix=f"{_APART}.gpus_per_node = {{cluster.gpus_per_node}}",
            when=_START_UP,
            source=_SETUP,
            where="not colocated and policy_nodes > 1",
        ),
        Demand(
            "gpus_of_node > 0 and training_nodes > 0",
            "generation, the reward model and teachers take all GPUs: none is left for training",
            about="policy.generation.colocated.enabled",
        ),
        Check(
            "not inaccurate",
            "There is a known batch-variant accuracy issue with TP>=4 for both DTensor and Megatron backend.",
            fix="policy.logprob_batch_size = {policy.train_micro_batch_size} (as policy.train_micro_batch_size), or "
            "NRL_IGNORE_TP_ACCURACY_CHECK=1 in the environment",
            when=_START_UP,
            source=f"{_COMMIT} nemo_rl/models/policy/lm_policy.py Policy.__init__",
            # What the environment of a bare configuration will be is not known.
            where="program_kind != 'config' and not ignores_accuracy(launch)",
        ),
        _shared("policy", where=""),
        *_batches("policy", "world_size", where=""),
        Check(
            "max_steps <= rollouts_per_epoch",
            "Trajectory collector stopped: dataloader exhausted at training_step={rollouts_per_epoch}. The dataset ran out of data "
            "before training could complete.",
            fix="grpo.max_num_steps = {rollouts_per_epoch}, or at least {max_steps * prompts} rows",
            when="after {rollouts_per_epoch} of {max_steps} rollouts: asynchronous GRPO goes once over the rows, whatever "
            "grpo.max_num_epochs says",
            source=f"{_COMMIT} nemo_rl/algorithms/grpo.py async_grpo_train, async_utils/trajectory_collector.py _collection_loop",
            where="asynchronous and not endless",
        ),
        _shared("value", where="ppo and given_processes(launch) is None"),
        *_batches("value", "critic.world_size", where="ppo"),
    ),
    notes=(
        Note("unit", "{part}.num_prompts_per_step counts prompts, policy.train_global_batch_size counts samples"),
        Note(
            "drops",
            "prompts whose samples all score the same are dropped and replaced from the next batch; what is too many, and what "
            "waits when a pass over the rows ends, is dropped as well",
            "dynamic",
        ),
        Note(
            "ignores",
            "{part}.max_num_epochs: several loaders never end, only {part}.max_num_steps does",
            "data.use_multiple_dataloader",
        ),
        Note(
            "assumes",
            "NRL_IGNORE_TP_ACCURACY_CHECK is set: without it NeMo-RL ends a run with a tensor parallelism of 4 or more whose "
            "policy.logprob_batch_size is not policy.train_micro_batch_size",
            "inaccurate",
        ),
        Note(
            "assumes",
            "the rows last for {part}.max_num_steps = {rollouts}; give --rows",
            "not known(rows) and known(rollouts)",
        ),
        Note(
            "ignores",
            "the policy's schedule is made for all rollouts, also for those that train only the critic",
            "ppo and frozen_rollouts",
        ),
    ),
    facts={
        "minibatch_unit": "'samples'",
        "save_every": "checkpointing.save_period if checkpointing.enabled else None",
        "eval_every": "max(evaluates, 0)",
        "lr_constant": "policy.megatron_cfg.scheduler.lr_decay_style == 'constant' if policy.megatron_cfg.enabled else None",
        "lr_warmup": "policy.megatron_cfg.scheduler.lr_warmup_iters if policy.megatron_cfg.enabled else None",
    },
    writes=write,
)
