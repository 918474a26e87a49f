"""trlX's PPO: sizes of each process, `epochs` are rollouts, the run's length comes from the first rollout.

Read at commit 3340c2f (2024-01-09): trlx/trainer/accelerate_ppo_trainer.py (`make_experience`, `prepare_learning`),
trlx/trainer/accelerate_base_trainer.py (`__init__`, `learn`), trlx/pipeline/ppo_pipeline.py `create_loader`; and accelerate's
scheduler.py `step`.
"""

from rlstep_hooks.systems.engine.declaration import REQUIRED, Check, Demand, Entry, Formula, Note, System, count, text

_PPO = "trlX 3340c2f trlx/trainer/accelerate_ppo_trainer.py"
_BASE = "trlX 3340c2f trlx/trainer/accelerate_base_trainer.py"

SYSTEM = System(
    name="trlx",
    title="trlX",
    version="3340c2f",
    recognised=(
        Entry(
            "trlx",
            calls=("default_ppo_config",),
            keys=("method.num_rollouts", "PPOConfig.num_rollouts"),
        ),
    ),
    keywords_of=("TRLConfig",),
    # trlx/data/default_configs.py
    helpers={
        "default_ppo_config": {
            "method.num_rollouts": 128,
            "method.chunk_size": 128,
            "method.ppo_epochs": 4,
            "train.batch_size": 32,
            "train.epochs": 100,
            "train.total_steps": 10_000,
            "train.checkpoint_interval": 10_000,
            "train.eval_interval": 100,
        }
    },
    settings={
        "method.num_rollouts": count(REQUIRED, also=("PPOConfig.num_rollouts",)),
        "method.chunk_size": count(REQUIRED, also=("PPOConfig.chunk_size",)),
        "method.ppo_epochs": count(REQUIRED, also=("PPOConfig.ppo_epochs",)),
        "train.batch_size": count(REQUIRED, also=("TrainConfig.batch_size",)),
        "train.epochs": count(REQUIRED, also=("TrainConfig.epochs",)),
        "train.total_steps": count(REQUIRED, also=("TrainConfig.total_steps",)),
        "train.trainer": text(also=("TrainConfig.trainer",)),
        "train.minibatch_size": count(also=("TrainConfig.minibatch_size",)),
        "train.checkpoint_interval": count(also=("TrainConfig.checkpoint_interval",)),
        "train.eval_interval": count(also=("TrainConfig.eval_interval",)),
    },
    let={
        "samples": "ceil(method.num_rollouts / method.chunk_size) * method.chunk_size",
        "prompts_per_rollout": "samples_per_rollout",
        "micro": "train.minibatch_size or train.batch_size",
        "samples_per_microbatch": "micro * world_size",
        "microbatches_per_update": "train.batch_size // micro",
        "samples_per_update": "min(samples, train.batch_size) * world_size",
        "minibatches": "slices(samples_per_rollout, train.batch_size * world_size)",
        "reuse_epochs": "method.ppo_epochs",
        "remainder": "'keep' if samples % train.batch_size else 'error'",
        "ragged": "known(rows) and rows % (method.chunk_size * world_size) != 0",
        "updates_bound": "'data_dependent' if ragged else 'exact'",
        "lr_ticks": "updates * world_size",
        "lr_horizon": "unknown('scheduler.kwargs sets it (T_max, total_iters), whatever the length of the run')",
    },
    always={
        "algorithm": "PPO",
        "samples_per_prompt": 1,
        "loader": "wraps",
        "old_logprob_source": "at_rollout",
        "reference_source": "at_rollout",
        "step_unit": "update",
        "step_means": "1 step (iter_count) = 1 update; train.epochs counts rollouts of {updates_per_rollout} updates",
    },
    formulas=(
        Formula("samples_per_rollout", "samples * world_size", f"{_PPO} make_experience"),
        Formula(
            "updates_per_rollout",
            "method.ppo_epochs * ceil(samples_per_rollout / world_size / train.batch_size)",
            f"{_BASE} learn",
        ),
        Formula("updates", "min(train.epochs * updates_per_rollout, train.total_steps)", f"{_PPO} prepare_learning"),
        Formula("rollouts", "ceil(updates / updates_per_rollout)", f"{_BASE} learn"),
    ),
    checks=(
        Demand(
            "train.trainer is None or train.trainer == 'AcceleratePPOTrainer'",
            "train.trainer = {train.trainer}: only AcceleratePPOTrainer is read",
            about="train.trainer",
        ),
        Check(
            "train.batch_size % micro == 0",
            "Minibatch size must divide batch size",
            fix="train.minibatch_size = {nearest(min(micro, train.batch_size + 1), train.batch_size % it == 0)}",
            when="when the trainer is built",
            source=f"{_BASE} __init__",
        ),
    ),
    notes=(
        Note(
            "unit",
            "num_rollouts counts samples of one process, train.epochs counts rollouts, total_steps counts updates",
        ),
        Note(
            "grows",
            "{samples} samples for each process, not {method.num_rollouts}: whole chunks of {method.chunk_size} are kept",
            "samples != method.num_rollouts",
        ),
        Note(
            "grows",
            "the last update of each pass takes {samples % train.batch_size} samples of a process, not {train.batch_size}",
            "samples % train.batch_size",
        ),
        Note(
            "shrinks",
            "total_steps ends the last of {rollouts} rollouts after {updates % updates_per_rollout} of its {updates_per_rollout} "
            "updates",
            "updates % updates_per_rollout",
        ),
        Note(
            "assumes",
            "the rows do not fill whole chunks: a rollout that meets the end of the rows takes one more chunk",
            "ragged",
        ),
        Note(
            "unit",
            "accelerate moves the scheduler {world_size} ticks for each update, one for each process",
            "world_size > 1",
        ),
    ),
    facts={"save_every": "train.checkpoint_interval", "eval_every": "train.eval_interval"},
)
