"""NeMo-RL, GRPO and PPO: rollouts in prompts, mini-batches in samples, no remainder, one learning-rate tick a train() call.

Read at commit 7ea279a (2026-08-22): examples/configs/grpo_math_1B.yaml and ppo_math_1B.yaml (defaults), nemo_rl/algorithms/grpo.py
`setup`, `grpo_train`, `async_grpo_train`, nemo_rl/algorithms/ppo.py `setup`, `ppo_train`, nemo_rl/distributed/batched_data_dict.py
`shard_by_batch_size`, nemo_rl/models/policy/workers/dtensor_policy_worker_v2.py and megatron_policy_worker.py `train`.
"""

from __future__ import annotations

import operator

from rlstep_hooks.systems.engine.declaration import NOTHING, Depends, Entry, Formula, Note, System
from rlstep_hooks.systems.planned.nemo_rl.checks import CHECKS
from rlstep_hooks.systems.planned.nemo_rl.launch import is_ppo, reward_model, teacher_nodes
from rlstep_hooks.systems.planned.nemo_rl.settings import APART, OWN_CONFIGS, SETTINGS
from rlstep_hooks.systems.planned.nemo_rl.sources import COMMIT, SETUP, TRAIN, WORKER
from rlstep_hooks.systems.trl.names import OF_TRL


def _copy(role: str) -> str:
    """GPUs that hold one copy of the policy or the value model."""
    megatron, tensor = f"{role}.megatron_cfg", f"{role}.dtensor_cfg"
    return (
        f"{megatron}.pipeline_model_parallel_size * {megatron}.tensor_model_parallel_size * {megatron}.context_parallel_size "
        f"if {megatron}.enabled else {tensor}.tensor_parallel_size * {tensor}.context_parallel_size"
    )


SYSTEM = System(
    name="nemo_rl",
    title="NeMo-RL",
    version="7ea279a",
    trains=("*grpo_train*", "*ppo_train*"),
    recognised=(
        Entry(
            "nemo_rl",
            programs=("script:run_grpo.py", "script:run_grpo_*.py", "script:run_vlm_grpo.py", "script:run_ppo.py"),
            keys=("grpo.num_prompts_per_step", "ppo.num_prompts_per_step"),
            # Scripts of TRL's users have these names too.
            never=OF_TRL,
        ),
    ),
    overrides=True,
    checkout="rlstep_hooks.systems.planned.nemo_rl.checkout:beside",
    is_library=True,
    home="nemo_rl/algorithms/grpo.py",
    own_configs=OWN_CONFIGS,
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
        "reward_model": reward_model,
        "teacher_nodes": teacher_nodes,
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
        # GPUs that train: not those of the reward model and of teachers. Colocated generation shares the training GPUs.
        "colocated": "policy.generation.colocated.enabled",
        "policy_nodes": "cluster.num_nodes - teacher_nodes(launch) "
        "- (reward_model(launch, 'num_nodes') if cluster.num_nodes > 1 else 0)",
        "shares_node": "not colocated and policy_nodes == 1",
        "training_nodes": f"policy_nodes if colocated or shares_node else policy_nodes - {APART}.num_nodes",
        "gpus_of_node": f"cluster.gpus_per_node - ({APART}.gpus_per_node if shares_node else 0) "
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
        # Several loaders, and the loader of asynchronous PPO, never end.
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
        # The default limit of the configurations means no limit.
        "limit": f"max_steps if known(rows) or max_steps < ({SETTINGS['ppo.max_num_steps'].default} if ppo "
        f"else {SETTINGS['grpo.max_num_steps'].default}) else None",
        # Engine and trainer compute log-probs with the same top-p and top-k, so these do not bias the weights.
        "weighs": "loss_fn.use_importance_sampling_correction",
        "kind": "loss_fn.truncated_importance_sampling_type",
        "least": "loss_fn.truncated_importance_sampling_ratio_min or 0",
        "correction": "'' if not asynchronous and not weighs else 'none' if not weighs "
        "else ('sequence' if loss_fn.sequence_level_importance_ratios else 'token') + ' importance weights, ' "
        "+ ('without a bound' if kind is None or loss_fn.truncated_importance_sampling_ratio is None "
        "else kind + ' from ' + quoted(decimal(least)) + ' to ' + quoted(decimal(loss_fn.truncated_importance_sampling_ratio)))",
        "old_logprob_source": "'detach' if loss_fn.force_on_policy_ratio else 'recompute'",
        "lags": "(0,) if loss_fn.force_on_policy_ratio else None",
        "reference_source": "'at_rollout' if not without_reference and (ppo or loss_fn.reference_policy_kl_penalty > 0) else 'none'",
        "lr_clock": "'pass' if ppo else 'rollout'",
        # Megatron's schedule is as long as the run would be without frozen rollouts. A DTensor scheduler has a length of its own.
        "lr_horizon": "(policy.megatron_cfg.scheduler.lr_decay_iters or rollouts * epochs) "
        "if policy.megatron_cfg.enabled and (known(rollouts) or policy.megatron_cfg.scheduler.lr_decay_iters) else None",
        "critic.lr_horizon": "rollouts * epochs if known(rollouts) else None",
    },
    always={"syncs": "first_and_after_updates"},
    formulas=(
        Formula("samples_per_rollout", "prompts * group", TRAIN),
        Formula("samples_per_update", "policy.train_global_batch_size", WORKER),
        Formula(
            "updates_per_rollout",
            "epochs * samples_per_rollout / policy.train_global_batch_size",
            f"{WORKER} (num_global_batches), {TRAIN}",
        ),
        Formula(
            "rollouts_per_epoch",
            "replaced if dynamic else floor(rows / prompts)",
            f"{SETUP} (StatefulDataLoader, drop_last=True)",
            where="not endless",
        ),
        Formula(
            "max_age",
            "oldest",
            f"{COMMIT} nemo_rl/algorithms/async_utils/replay_buffer.py:226-227,566-570 (older trajectories are not taken)",
            where="asynchronous",
        ),
        Formula("max_age", "0", f"{COMMIT} nemo_rl/algorithms/grpo.py grpo_train"),
        Formula("rollouts", "max_steps", TRAIN, where="endless"),
        Formula("rollouts", "replaced if dynamic else limited(passes * rollouts_per_epoch, limit)", TRAIN),
        Formula("updates", "max(rollouts - frozen_rollouts, 0) * updates_per_rollout", TRAIN),
        Formula(
            "lr_ticks",
            "max(rollouts - frozen_rollouts, 0) * epochs",
            f"{WORKER} (scheduler.step() once a call, after all its updates)",
        ),
        Formula("critic.samples_per_update", "value.train_global_batch_size", f"{TRAIN} (value_model.train)"),
        Formula(
            "critic.updates_per_rollout",
            "ppo.ppo_epochs * samples_per_rollout / value.train_global_batch_size",
            f"{TRAIN} (value_model.train)",
        ),
    ),
    depends=(
        Depends(
            on="dynamic and not endless",
            says="{part}.use_dynamic_sampling: prompts whose samples all score the same are replaced by later ones",
            counts=("rollouts_per_epoch", "rollouts"),
            source=TRAIN,
        ),
    ),
    checks=CHECKS,
    notes=(
        Note("unit", "{part}.num_prompts_per_step counts prompts, policy.train_global_batch_size counts samples"),
        Note(
            "drops",
            "prompts whose samples all score the same are dropped and replaced from the next batch; surplus prompts, and prompts "
            "that still wait when a pass over the rows ends, are dropped as well",
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
            "there are enough rows for {part}.max_num_steps = {rollouts}; give --rows",
            "not known(rows) and known(rollouts)",
        ),
        Note(
            "ignores",
            "the policy's learning-rate schedule counts all rollouts, also those that train only the critic",
            "ppo and frozen_rollouts",
        ),
    ),
    facts={
        "more_updates": "'policy.train_global_batch_size below the samples of a rollout'",
        "minibatch_unit": "'samples'",
        "correct_by": "'loss_fn.use_importance_sampling_correction = true'",
        "save_every": "checkpointing.save_period if checkpointing.enabled else None",
        "eval_every": "max(evaluates, 0)",
        "lr_constant": "policy.megatron_cfg.scheduler.lr_decay_style == 'constant' if policy.megatron_cfg.enabled else None",
        "lr_warmup": "policy.megatron_cfg.scheduler.lr_warmup_iters if policy.megatron_cfg.enabled else None",
    },
    writes="rlstep_hooks.systems.planned.nemo_rl.conversion:write",
)
