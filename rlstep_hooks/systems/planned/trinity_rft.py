"""Trinity-RFT: an explorer generates, a trainer on verl takes its experiences, and weights are synced every `sync_interval` steps.

Read at modelscope/Trinity-RFT: trinity/common/config.py (c3d094d, defaults), trinity/common/config_validator.py (22ed266),
trinity/explorer/explorer.py (02dbe30, `explore`, `need_sync`), trinity/buffer/task_scheduler.py (206dece, `read_async`),
trinity/trainer/trainer.py (6b3ad37), trinity/trainer/verl_trainer.py (2c7aa99, `train_step`), trinity/trainer/verl/dp_actor.py
(09b6fcf, `update_policy`), trinity/common/verl_config.py (02667a1, `synchronize_config`), trinity/algorithm/algorithm.py (5f2df78).
"""

from __future__ import annotations

from rlstep_hooks.systems.engine.declaration import (
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

_CONFIG = "Trinity-RFT 22ed266 trinity/common/config_validator.py"
_EXPLORER = "Trinity-RFT 02dbe30 trinity/explorer/explorer.py"
_TRAINER = "Trinity-RFT 2c7aa99 trinity/trainer/verl_trainer.py train_step"
_TASKS = "Trinity-RFT 206dece trinity/buffer/task_scheduler.py read_async"
_START = "at start-up, when the configuration is checked"
_ACTOR = "trainer.trainer_config.actor_rollout_ref.actor"
_NO_REFERENCE = ("asymre", "raft", "sft")
_NO_ROLLOUTS = ("sft", "dpo")
_MIXES = ("mix", "mix_chord")

SYSTEM = System(
    name="trinity_rft",
    title="Trinity-RFT",
    version="22ed266",
    recognised=(
        Entry(
            "trinity_rft",
            programs=("executable:trinity", "module:trinity.cli.launcher"),
            keys=(
                "algorithm.repeat_times",
                "buffer.explorer_input.taskset.path",
                "buffer.explorer_input.default_workflow_type",
            ),
            before="verl",
        ),
    ),
    settings={
        "mode": text("both"),
        "stages": text(None),
        "algorithm.algorithm_type": text("ppo"),
        "algorithm.repeat_times": count(1),
        "algorithm.optimizer.lr_scheduler_type": text("constant", also=("algorithm.optimizer.warmup_style",)),
        "algorithm.optimizer.lr_warmup_steps": count(-1, least=-1),
        "algorithm.optimizer.lr_warmup_steps_ratio": number(0),
        "buffer.batch_size": count(1),
        "buffer.train_batch_size": count(0, least=0),
        "buffer.total_epochs": count(1),
        "buffer.total_steps": count(None),
        "cluster.node_num": count(None),
        "cluster.gpu_per_node": count(None),
        "explorer.rollout_model.engine_num": count(1, also=("explorer.engine_num",)),
        "explorer.rollout_model.tensor_parallel_size": count(1, also=("explorer.tensor_parallel_size",)),
        "explorer.auxiliary_models": text(None),
        "explorer.over_rollout.ratio": number(0),
        "explorer.eval_interval": count(100),
        "model.tinker.enable": flag(False),
        "synchronizer.sync_interval": count(1),
        "synchronizer.sync_offset": count(0, least=0),
        "synchronizer.sync_style": text("fixed"),
        "trainer.total_steps": count(None),
        "trainer.save_interval": count(0, least=0),
        "trainer.use_dynamic_bsz": flag(True),
        "trainer.ulysses_sequence_parallel_size": count(1),
        f"{_ACTOR}.ppo_epochs": count(1),
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu": count(1),
        "trainer.trainer_config.trainer.critic_warmup": count(0, least=-(1 << 31)),
    },
    functions={"world_size_given": lambda launch: launch.world_size_given is not None},
    let={
        "prompts": "buffer.batch_size",
        "group": "algorithm.repeat_times",
        "generated": "prompts * group",
        "engines": "explorer.rollout_model.engine_num * explorer.rollout_model.tensor_parallel_size",
        "machine": "cluster.node_num * cluster.gpu_per_node if cluster.node_num and cluster.gpu_per_node else None",
        "training_gpus": "machine - engines if machine else None",
        "processes": "training_gpus // trainer.ulysses_sequence_parallel_size if machine and training_gpus > 0 else None",
        "gpus": "world_size * trainer.ulysses_sequence_parallel_size",
        "reuse_epochs": f"{_ACTOR}.ppo_epochs",
        "critic": "algorithm.algorithm_type == 'ppo'",
        "algorithm": "upper(algorithm.algorithm_type)",
        "minibatches": "parts(generated, generated // samples_per_update)",
        "samples_per_microbatch": "unknown('micro-batches are cut by token counts') if trainer.use_dynamic_bsz "
        f"else {_ACTOR}.ppo_micro_batch_size_per_gpu * world_size",
        "fixed": "lower(synchronizer.sync_style) == 'fixed'",
        "behind": "unknown('weights are synced when the explorer or the trainer asks for them')",
        "explored": "buffer.total_steps or floor(rows * buffer.total_epochs / prompts)",
        "per_step": "generated / samples_per_update",
        "reference_source": f"'none' if algorithm.algorithm_type in {_NO_REFERENCE!r} else 'at_rollout'",
        "rows_dropped_per_epoch": "0 if known(rows) else None",
        "step_unit": "'rollout' if per_step == 1 else 'update'",
        "lr_clock": "'rollout' if per_step == 1 else 'update'",
        "partial": "explorer.over_rollout.ratio > 0",
        "updates_bound": "'data_dependent' if partial else 'exact'",
    },
    always={
        "loader": "wraps",
        "rows_reshuffled": True,
        "remainder": "error",
        "old_logprob_source": "engine",
    },
    formulas=(
        Formula("prompts_per_rollout", "buffer.batch_size", _TASKS),
        Formula("samples_per_prompt", "algorithm.repeat_times", f"{_CONFIG} _fill_taskset_config"),
        Formula("samples_per_update", "buffer.train_batch_size or generated", f"{_CONFIG} BufferConfigValidator"),
        Formula(
            "updates_per_rollout",
            "reuse_epochs * generated / samples_per_update",
            f"{_TRAINER}; ppo_mini_batch_size is train_batch_size (verl_config.py synchronize_config), which update_policy never cuts",
        ),
        Formula("rollouts", "limited(explored, trainer.total_steps and ceil(trainer.total_steps / per_step))", _TASKS),
        Formula(
            "frozen_rollouts",
            "max(trainer.trainer_config.trainer.critic_warmup - 1, 0) if critic else 0",
            f"{_TRAINER}: critic_warmup <= global_steps, from 1",
        ),
        Formula(
            "max_age",
            "synchronizer.sync_interval - 1 + synchronizer.sync_offset if fixed else behind",
            f"{_EXPLORER} explore, need_sync",
        ),
        Formula(
            "lr_horizon",
            "trainer.total_steps or unknown('trainer.total_steps is not set: the schedule is built for sys.maxsize steps')",
            "Trinity-RFT 02667a1 trinity/common/verl_config.py synchronize_config",
        ),
    ),
    checks=(
        Demand(
            "mode == 'both'",
            "mode {mode} does not both explore and train: a plan needs the settings of both",
            about="mode",
        ),
        Demand("stages is None", "several stages are not read; plan the settings of one", about="stages"),
        Demand(
            f"algorithm.algorithm_type not in {_NO_ROLLOUTS!r}",
            "{algorithm.algorithm_type} trains without rollouts",
            about="algorithm.algorithm_type",
        ),
        Demand(
            f"algorithm.algorithm_type not in {_MIXES!r}",
            "{algorithm.algorithm_type} mixes experiences of a second buffer into each step: it is not read",
            about="algorithm.algorithm_type",
        ),
        Demand("not model.tinker.enable", "training with Tinker is not read", about="model.tinker.enable"),
        Demand(
            "explorer.auxiliary_models is None or world_size_given(launch)",
            "how many GPUs the auxiliary models take is not read; give --world-size N",
            about="explorer.auxiliary_models",
        ),
        Check(
            "machine is None or engines < machine",
            "ValueError: Not enough GPUs for trainer. Explorer requires {engines} GPUs, but total available GPUs are {machine}.",
            fix="explorer.rollout_model.engine_num = {max((machine - 1) // explorer.rollout_model.tensor_parallel_size, 1)} or less",
            when=_START,
            source=f"{_CONFIG} RayClusterConfigValidator",
        ),
        Check(
            "samples_per_update % gpus == 0",
            "ValueError: batch_size ({samples_per_update}) must be divisible by ({gpus}).",
            fix="buffer.train_batch_size = {multiples(samples_per_update, gpus)}",
            when=_START,
            source=f"{_CONFIG} BufferConfigValidator",
        ),
        Demand(
            "generated % samples_per_update == 0",
            "train_batch_size ({samples_per_update}) does not divide the {generated} experiences of a step of the explorer: which of "
            "them a training step takes is not read",
            about="buffer.train_batch_size",
        ),
    ),
    notes=(
        Note("unit", "batch_size counts tasks (prompts), train_batch_size experiences (samples)"),
        Note(
            "assumes",
            "each run of a task gives one experience; workflows of several steps give more, and more training steps",
        ),
        Note(
            "ignores",
            "explorer.eval_interval = {explorer.eval_interval} is no multiple of sync_interval and is rounded down to one",
            "explorer.eval_interval % synchronizer.sync_interval",
        ),
        Note(
            "shrinks",
            "explorer.over_rollout: a step waits for a part of its {prompts} tasks only",
            "partial",
        ),
        Note(
            "ignores",
            "algorithm.optimizer.lr_scheduler_type={algorithm.optimizer.lr_scheduler_type}: trainer.total_steps is not set, so the "
            "schedule has no end and the rate does not fall",
            "algorithm.optimizer.lr_scheduler_type != 'constant' and trainer.total_steps is None",
        ),
    ),
    facts={
        "minibatch_unit": "'samples'",
        "nominal_updates_per_rollout": "reuse_epochs * generated / samples_per_update",
        "lr_constant": "algorithm.optimizer.lr_scheduler_type == 'constant'",
        "lr_warmup": "algorithm.optimizer.lr_warmup_steps if algorithm.optimizer.lr_warmup_steps >= 0 "
        "else floor(algorithm.optimizer.lr_warmup_steps_ratio * lr_horizon)",
        "save_every": "trainer.save_interval or None",
    },
)
