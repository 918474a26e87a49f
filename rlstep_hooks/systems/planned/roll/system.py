"""ROLL, RLVR and agentic: mini-batches in samples of each process, the critic passes once, one learning-rate tick an update.

Read at commit 8eb27cc (2026-08-19): roll/configs/base_config.py (`PPOConfig`), roll/utils/config_utils.py, roll/pipeline/base_worker.py
(`ActorWorker.train_step`, `CriticWorker.train_step`, `get_old_log_probs_with_cache`), roll/pipeline/rlvr/rlvr_pipeline.py,
roll/pipeline/agentic/agentic_pipeline.py (`adjust_batch`), roll/distributed/strategy/megatron_strategy.py (`train_step`, horizon),
roll/distributed/scheduler/generate_scheduler.py (rows, ages).
"""

from __future__ import annotations

from fractions import Fraction

from rlstep_hooks.systems.engine.declaration import (
    NOTHING,
    Check,
    Demand,
    Entry,
    Formula,
    Note,
    System,
    count,
    flag,
    number,
    text,
)
from rlstep_hooks.systems.planned.roll.reading import (
    adjusted,
    devices,
    filters,
    masks,
    other_pipeline,
    turn_by_turn,
)
from rlstep_hooks.systems.planned.roll.roles import (
    COMMIT,
    PARALLEL,
    START_UP,
    backward,
    checks_of_processes,
    checks_of_updates,
    processes_of,
    updates_of,
)

_WORKER = f"{COMMIT} roll/pipeline/base_worker.py"
_RLVR = f"{COMMIT} roll/pipeline/rlvr/rlvr_pipeline.py"
_AGENTIC = f"{COMMIT} roll/pipeline/agentic/agentic_pipeline.py"
_HORIZON = f"{COMMIT} roll/configs/base_config.py set_max_steps; {COMMIT} roll/distributed/strategy/megatron_strategy.py initialize"
_TRAINED = "(samples_per_rollout + samples_added_per_rollout - samples_dropped_per_rollout)"


SETTINGS = {
    "rollout_batch_size": count(128),
    "num_return_sequences_in_group": count(1),
    "ppo_epochs": count(1),
    "max_steps": count(500),
    "save_steps": count(50),
    "eval_steps": count(10, least=-(1 << 31)),
    "async_generation_ratio": number(0),
    "adv_estimator": text("gae"),
    "critic_warmup": count(0, least=0),
    "init_kl_coef": number(Fraction(1, 5)),
    "batch_adjust_mode": text("copy"),
    "train_env_manager.group_size": count(1),
    "train_env_manager.num_env_groups": count(),
    "use_kl_loss": flag(),
    "enable_reference": flag(),
    "enable_old_logprobs_recompute": flag(),
    "force_disable_old_logprobs_recompute": flag(),
    "is_use_additional_prompts": flag(),
    "train_infer_correction.is_weight.enabled": flag(),
    "train_infer_correction.is_weight.weight_type": text(),
    "train_infer_correction.is_weight.upper_bound": number(),
    "train_infer_correction.filters": text(),
    "actor_infer.generating_args.top_p": number(),
    "actor_infer.generating_args.logprobs": count(least=0),
    "actor_infer.strategy_args.strategy_name": text(),
    "actor_train.model_args.lora_target": text(),
    **{
        f"{role}.{name}": typed
        for role in ("actor_train", "critic")
        for name, typed in {
            "training_args.per_device_train_batch_size": count(8),
            "training_args.gradient_accumulation_steps": count(1),
            "training_args.lr_scheduler_type": text("linear"),
            "training_args.warmup_steps": count(0, least=0),
            "use_dynamic_batching_in_train": flag(),
            "use_sequence_packing": flag(),
        }.items()
    },
    **{
        f"{role}.{name}": typed
        for role in ("actor_train", "critic", "reference")
        for name, typed in {
            "infer_batch_size": count(16),
            "device_mapping": text(),
            "num_gpus_per_worker": count(1),
            "model_args.ulysses_size": count(None),
            "strategy_args.strategy_name": text(None),
            **{f"strategy_args.strategy_config.{name}_parallel_size": count(1) for name in PARALLEL},
        }.items()
    },
}

_OWN_DEVICES = "not world_size_given(launch)"

SYSTEM = System(
    name="roll",
    title="ROLL",
    version="8eb27cc",
    trains=("*Pipeline",),
    recognised=(
        Entry(
            "roll",
            programs=("script:start_rlvr_pipeline.py", "script:start_agentic_pipeline.py", "module:roll.pipeline.*"),
            keys=("actor_train.training_args.per_device_train_batch_size", "num_return_sequences_in_group"),
        ),
    ),
    overrides=True,
    checkout="rlstep_hooks.systems.planned.roll.checkout:beside",
    rows_from=("actor_train.data_args.file_name",),
    settings=SETTINGS,
    shown=tuple(
        name for name, typed in SETTINGS.items() if typed.default is not NOTHING and not name.startswith("reference.")
    ),
    functions={
        "devices": devices,
        "other_pipeline": other_pipeline,
        "adjust_batch": adjusted,
        "turn_by_turn": turn_by_turn,
        "filters": filters,
        "masks": masks,
        "world_size_given": lambda launch: launch.world_size_given is not None,
        "one_to": lambda number: tuple(range(1, number + 1)),
    },
    let={
        # Whether trajectories of environments are trained: the script decides, else the settings.
        "agentic": "'agentic' in program if program_kind in ('script', 'module') "
        "else given(train_env_manager.group_size) or given(train_env_manager.num_env_groups)",
        "pipeline": f"'{_AGENTIC}' if agentic else '{_RLVR}'",
        "samples_per_prompt": "train_env_manager.group_size if agentic else num_return_sequences_in_group",
        "prompts_per_rollout": "rollout_batch_size // samples_per_prompt if agentic else rollout_batch_size",
        "critic": "adv_estimator == 'gae'",
        "algorithm": "'PPO' if critic else upper(adv_estimator)",
        "reuse_epochs": "ppo_epochs",
        "frozen_rollouts": "critic_warmup",
        **processes_of("actor_train"),
        **processes_of("critic"),
        **processes_of("reference"),
        "processes": "None if world_size_given(launch) else actor_train.processes",
        "critic.world_size": "world_size if world_size_given(launch) else critic.processes",
        "has_reference": "enable_reference or use_kl_loss or init_kl_coef > 0",
        "reference_source": "'at_rollout' if has_reference else 'none'",
        # `adjust_batch` makes the samples of an agentic rollout divisible by this: the sizes of updates and of the forwards of all
        # models.
        "reference_forward": "reference.infer_batch_size * (reference.processes if given(reference.device_mapping) else world_size) "
        "if has_reference and not given(actor_train.model_args.lora_target) else 1",
        "of_critic": f"lcm({backward('critic')} * critic.world_size, critic.infer_batch_size * critic.world_size) if critic else 1",
        "unit": "lcm(samples_per_update, actor_train.infer_batch_size * world_size, reference_forward, of_critic)",
        "trained": "adjust_batch(samples_per_rollout, unit, batch_adjust_mode) if agentic else samples_per_rollout",
        "samples_added_per_rollout": "max(trained - samples_per_rollout, 0)",
        "samples_dropped_per_rollout": "max(samples_per_rollout - trained, 0)",
        "remainder": "'error' if not agentic else 'pad' if trained >= samples_per_rollout else 'drop'",
        **updates_of("actor_train", "world_size"),
        **updates_of("critic", "critic.world_size"),
        "minibatches": "parts(trained, trained // samples_per_update)",
        "critic.minibatches": "parts(trained, trained // critic.samples_per_update)",
        "by_tokens": "actor_train.use_dynamic_batching_in_train",
        "samples_per_microbatch": "unknown('micro-batches are cut by tokens') "
        "if by_tokens or actor_train.use_sequence_packing "
        "else actor_train.training_args.per_device_train_batch_size * world_size",
        "critic.samples_per_microbatch": "unknown('micro-batches are cut by tokens') "
        "if critic.use_dynamic_batching_in_train or critic.use_sequence_packing "
        "else critic.training_args.per_device_train_batch_size * critic.world_size",
        "updates_bound": "'data_dependent' if by_tokens or agentic and turn_by_turn(launch) else 'exact'",
        # Defaults: `TrainInferISWeightConfig`, and top_p in generating_args.py.
        "bound": "train_infer_correction.is_weight.upper_bound if given(train_infer_correction.is_weight.upper_bound) else 6 / 5",
        "top_p": "actor_infer.generating_args.top_p if given(actor_infer.generating_args.top_p) else 7 / 10",
        "weighs": "train_infer_correction.is_weight.enabled",
        "correction": "'' if async_generation_ratio <= 0 and not weighs "
        "else (train_infer_correction.is_weight.weight_type or 'token') + ' importance weights' "
        "+ (', without a bound' if bound is None else ', at most ' + quoted(decimal(bound))) if weighs "
        "else 'train_infer_correction.filters' if given(train_infer_correction.filters) and masks(launch) else 'none'",
        # If the engine gives no log-probs, all weights are 1 (roll/utils/train_infer_corrections.py:205-213, actor_worker.py:32).
        "correction_inert": "'' if correction in ('', 'none') "
        "else 'generating_args.logprobs is null, so the weights are all 1' "
        "if given(actor_infer.generating_args.logprobs) and actor_infer.generating_args.logprobs is None "
        "else 'hf_infer returns no log-probs, so the weights are all 1' "
        "if actor_infer.strategy_args.strategy_name == 'hf_infer' else ''",
        "correction_biased": "'generating_args.top_p = ' + quoted(decimal(top_p)) "
        "if top_p < 1 and correction not in ('', 'none') else ''",
        "updates_from": "updates_per_rollout if agentic and turn_by_turn(launch) else 0",
        "loader": "'none' if agentic else 'wraps'",
        "picks_prompts": "filters(launch) or is_use_additional_prompts or async_generation_ratio > 0",
        "rows_bound": "'data_dependent' if picks_prompts else 'exact'",
        "data_epochs": "unknown('prompts are dropped and replaced as the run goes') "
        "if picks_prompts and known(rows) and not agentic else None",
        "loader_epochs": "data_epochs",
        # `PPOConfig.__post_init__` and `set_old_logprobs_status`: old log-probs come from a forward before the updates, or from the
        # first visit.
        "own_forward": "not force_disable_old_logprobs_recompute and (adv_estimator in ('step_reinforce', 'gigpo') "
        "or enable_old_logprobs_recompute or init_kl_coef > 0 "
        f"or samples_per_rollout // world_size // ({backward('actor_train')}) > 1)",
        "old_logprob_source": "'recompute' if own_forward or ppo_epochs > 1 else 'detach'",
        "lags": "(0,) if old_logprob_source == 'detach' else None",
        # Each pass has its own order, so the first visit of a sample may be anywhere in the first pass.
        "ratio_one_updates": "None if own_forward else one_to(len(minibatches))",
    },
    always={"syncs": "first_and_after_updates", "critic.reuse_epochs": 1},
    formulas=(
        Formula("samples_per_rollout", "rollout_batch_size", "{pipeline} run", where="agentic"),
        Formula("samples_per_rollout", "rollout_batch_size * num_return_sequences_in_group", "{pipeline} run"),
        Formula("samples_per_update", f"{backward('actor_train')} * world_size", f"{_WORKER} ActorWorker.train_step"),
        Formula(
            "updates_per_rollout",
            f"ppo_epochs * {_TRAINED} / samples_per_update",
            f"{_WORKER} ActorWorker.train_step{{', {_AGENTIC} adjust_batch' if agentic else ''}}",
        ),
        Formula(
            "max_age",
            "ceil(async_generation_ratio)",
            f"{COMMIT} roll/distributed/scheduler/generate_scheduler.py:349,416 (older groups are dropped)",
        ),
        Formula("rollouts", "max_steps", "{pipeline} run"),
        Formula(
            "updates",
            "unknown('each turn of a trajectory is a sample of its own: how many there are, only the trajectories show')",
            "{pipeline} run",
            where="agentic and turn_by_turn(launch)",
        ),
        Formula(
            "updates", "max(rollouts - frozen_rollouts, 0) * updates_per_rollout", "{pipeline} run (critic_warmup)"
        ),
        Formula(
            "lr_horizon",
            f"floor(max(1, floor(max_steps * samples_per_rollout * ppo_epochs / ({backward('actor_train')}))) / world_size)",
            _HORIZON,
        ),
        Formula(
            "critic.samples_per_update",
            f"{backward('critic')} * critic.world_size",
            f"{_WORKER} CriticWorker.train_step",
        ),
        Formula(
            "critic.updates_per_rollout",
            f"{_TRAINED} / critic.samples_per_update",
            f"{_WORKER} CriticWorker.train_step (epochs=1)",
        ),
        Formula(
            "critic.lr_horizon",
            f"floor(max(1, floor(max_steps * samples_per_rollout / ({backward('critic')}))) / critic.world_size)",
            _HORIZON,
        ),
    ),
    checks=(
        Demand(
            "not other_pipeline(launch)",
            "{other_pipeline(launch)} is another pipeline, which is not read; start_rlvr_pipeline.py and start_agentic_pipeline.py are",
            about="program",
        ),
        Check(
            "rollout_batch_size % train_env_manager.group_size == 0",
            "rollout_batch_size ({rollout_batch_size}) must be a multiple of train_env_manager.group_size "
            "({train_env_manager.group_size}).",
            fix="rollout_batch_size = {multiples(rollout_batch_size, train_env_manager.group_size)}",
            when=START_UP,
            source=f"{COMMIT} roll/pipeline/agentic/agentic_config.py AgenticConfig.__post_init__",
            where="agentic",
        ),
        *checks_of_processes("actor_train", _OWN_DEVICES),
        *checks_of_processes("critic", f"critic and {_OWN_DEVICES}"),
        # The check is made although the setting counts prompts.
        Check(
            "rollout_batch_size % world_size == 0",
            "Rollout Batch Size ({rollout_batch_size}) must be divisible by data parallel size ({world_size}) to ensure equal "
            "distribution across DP workers.",
            fix="rollout_batch_size = {multiples(rollout_batch_size, world_size)}",
            when=START_UP,
            source=f"{COMMIT} roll/utils/config_utils.py validate_megatron_batch_size",
            where="'megatron' in (actor_train.strategy_args.strategy_name or '')",
        ),
        *checks_of_processes(
            "reference",
            "agentic and has_reference and given(reference.device_mapping) and not given(actor_train.model_args.lora_target)",
        ),
        Demand(
            "batch_adjust_mode in ('copy', 'delete', 'auto', 'random_sample')",
            "batch_adjust_mode = {batch_adjust_mode}: there is no such mode",
            about="batch_adjust_mode",
            where="agentic and samples_per_rollout > unit and samples_per_rollout % unit",
        ),
        *checks_of_updates("actor_train", "world_size", ""),
        Check(
            "async_generation_ratio <= 0 or async_generation_ratio >= 1",
            "async_generation_ratio must be >= 1.0",
            fix="async_generation_ratio = 0 or 1",
            when=START_UP,
            source=f"{COMMIT} roll/pipeline/rlvr/rlvr_config.py RLVRConfig.__post_init__",
            where="not agentic",
        ),
        *checks_of_updates("critic", "critic.world_size", "critic"),
    ),
    notes=(
        Note(
            "unit",
            "rollout_batch_size counts {'trajectories' if agentic else 'prompts'}; per_device_train_batch_size * "
            "gradient_accumulation_steps counts samples of one process",
        ),
        Note(
            "pads",
            "{samples_added_per_rollout} samples of each rollout are copied, and trained twice, so that all sizes divide",
            "samples_added_per_rollout",
        ),
        Note(
            "drops",
            "{samples_dropped_per_rollout} samples of each rollout are taken away so that all sizes divide",
            "samples_dropped_per_rollout",
        ),
        Note(
            "ignores",
            "the critic passes once over a rollout; ppo_epochs = {ppo_epochs} is the policy's",
            "critic and ppo_epochs > 1",
        ),
        Note(
            "drops",
            "critic_warmup also holds without a critic: its rollouts then train nothing",
            "critic_warmup and not critic",
        ),
        Note(
            "grows",
            "each turn of a trajectory is a sample of its own: the counts hold for trajectories of one turn. The learning rate ticks "
            "with each update, and its schedule counts trajectories: with longer ones it ends before the run does",
            "agentic and turn_by_turn(launch)",
        ),
    ),
    facts={
        "more_updates": "'ppo_epochs above 1, or a smaller gradient_accumulation_steps,'",
        "lr_constant": "starts(actor_train.training_args.lr_scheduler_type, 'constant')",
        "lr_warmup": "actor_train.training_args.warmup_steps",
        "save_every": "save_steps",
        # -1 turns validation off (roll/pipeline/agentic/agentic_pipeline.py `eval_steps > 0 and ...`).
        "eval_every": "eval_steps if eval_steps > 0 else None",
        "correct_by": "'train_infer_correction.is_weight.enabled: true'",
    },
)
