"""DeepSpeed-Chat step 3: batches wait until a rollout is full, and the engine carries gradients from rollout to rollout.

Read at DeepSpeedExamples 45b4b71 (2026-03-29): applications/DeepSpeed-Chat/training/step3_rlhf_finetuning/main.py (arguments,
`create_datasets`, `main`), dschat/utils/data/data_utils.py `MiniDataset`, dschat/rlhf/rlhf_engine.py, dschat/rlhf/ppo_trainer.py.
"""

from __future__ import annotations

from rlstep_hooks.planning.accumulation import windows_of
from rlstep_hooks.planning.counting import countable
from rlstep_hooks.planning.minibatches import cut_by_size_kept
from rlstep_hooks.systems.engine.declaration import Entry, Formula, Note, System, count, text

_MAIN = "DeepSpeedExamples 45b4b71 applications/DeepSpeed-Chat/training/step3_rlhf_finetuning/main.py"


def samples_of_updates(generated: int, size: int, batches: int, window: int, processes: int) -> tuple[int, ...]:
    """Samples of each update of one pass, over all processes; empty if an update spans passes.

    Each generation batch is cut on its own (data_utils.py `MiniDataset.seperate`), and DeepSpeed counts the parts.
    """
    parts = cut_by_size_kept(generated, size) * countable(batches, "generation batches of one rollout")
    return tuple(samples * processes for samples in windows_of(parts, window))


SYSTEM = System(
    name="deepspeed_chat",
    title="DeepSpeed-Chat",
    version="45b4b71",
    recognised=(
        Entry(
            "deepspeed_chat",
            programs=("script:step3_rlhf_finetuning/main.py", "script:main.py"),
            keys=("per_device_generation_batch_size", "generation_batches"),
            with_key="per_device_generation_batch_size",
        ),
    ),
    settings={
        "per_device_generation_batch_size": count(16),
        "per_device_training_batch_size": count(16),
        "generation_batches": count(1),
        "ppo_epochs": count(1),
        "gradient_accumulation_steps": count(1),
        "num_train_epochs": count(1),
        "unsupervised_dataset_name": text(None),
        "unsupervised_dataset_config_name": text(None),
        "lr_scheduler_type": text("cosine"),
        "num_warmup_steps": count(100, least=0),
        "data_split": text("2,4,4"),
    },
    shown=(
        "per_device_generation_batch_size",
        "per_device_training_batch_size",
        "generation_batches",
        "ppo_epochs",
        "gradient_accumulation_steps",
        "num_train_epochs",
    ),
    functions={"samples_of_updates": samples_of_updates},
    let={
        "generated": "per_device_generation_batch_size",
        "size": "per_device_training_batch_size",
        "window": "gradient_accumulation_steps",
        "prompts_per_rollout": "samples_per_rollout",
        "reuse_epochs": "ppo_epochs",
        "parts": "ceil(generated / size)",
        "microbatches": "ppo_epochs * generation_batches * parts",
        "microbatches_per_rollout": "microbatches",
        "critic.microbatches_per_rollout": "microbatches",
        "microbatches_per_update": "window",
        # A smaller last part makes micro-batches and updates of several sizes.
        "micro": "min(generated, size) * world_size if generated % min(generated, size) == 0 else None",
        "samples_per_microbatch": "micro",
        "samples_per_update": "None if micro is None else micro * window",
        "minibatches": "samples_of_updates(generated, size, generation_batches, window, world_size)",
        "carries": "microbatches % window != 0",
        "remainder": "'carry' if carries else 'error' if generated % size == 0 else 'keep'",
        # Micro-batches that are left shift the windows of the next rollout.
        "lags": "range((window - gcd(microbatches, window) + microbatches - 1) // window + 1)",
        # Generation batches of one process; the sampler fills the rows up to a multiple of the processes.
        "share": "ceil(rows / world_size)",
        "batches_of_pass": "ceil(share / generated)",
        "batches_of_run": "num_train_epochs * batches_of_pass",
        "trained_batches": "rollouts * generation_batches",
        "last_parts": "ceil((share - (batches_of_pass - 1) * generated) / size)",
        "microbatches_of_run": "trained_batches // batches_of_pass * ((batches_of_pass - 1) * parts + last_parts) "
        "+ trained_batches % batches_of_pass * parts",
        "data_epochs": "min(rollouts * samples_per_rollout, rows * num_train_epochs) / rows",
        "step_unit": "'rollout' if generation_batches == 1 else 'prompt'",
    },
    always={
        "algorithm": "PPO",
        "samples_per_prompt": 1,
        "critic": True,
        "loader": "wraps",
        "old_logprob_source": "at_rollout",
        "reference_source": "at_rollout",
        "step_means": "1 step = 1 generation batch of {generated * world_size} prompts, counted anew in each pass over the rows",
    },
    formulas=(
        Formula(
            "samples_per_rollout",
            "generation_batches * per_device_generation_batch_size * world_size",
            f"{_MAIN} exp_mini_dataset",
        ),
        Formula(
            "updates_per_rollout",
            "microbatches / window",
            f"{_MAIN} main; data_utils.py MiniDataset.seperate; DeepSpeed counts micro-batches",
        ),
        Formula("critic.updates_per_rollout", "microbatches / window", f"{_MAIN} main"),
        Formula(
            "rollouts_per_epoch",
            "batches_of_pass // generation_batches if batches_of_pass % generation_batches == 0 "
            "else unknown('generation batches left over wait for the next pass')",
            "DeepSpeedExamples 45b4b71 dschat/utils/data/data_utils.py MiniDataset.add",
        ),
        Formula("rollouts", "batches_of_run // generation_batches", f"{_MAIN} main"),
        Formula("updates", "microbatches_of_run * ppo_epochs // window", f"{_MAIN} main"),
        Formula("critic.updates", "updates", f"{_MAIN} main"),
        Formula(
            "lr_horizon",
            "floor(batches_of_run * generated / size * ppo_epochs / window)",
            f"{_MAIN} create_datasets num_total_iters",
        ),
    ),
    notes=(
        Note(
            "assumes",
            "the rows are those of phase 3: --data_split {data_split} gives it the third of these parts of the data sets",
            "known(rows)",
        ),
        Note(
            "carries",
            "{microbatches} micro-batches for each rollout and {window} for each update: gradients wait for the next rollout",
            "carries",
        ),
        Note(
            "grows",
            "each generation batch of {generated} ends with a training batch of {generated % size}, not {size}",
            "generated % size",
        ),
        Note(
            "drops",
            "the last {batches_of_run % generation_batches} generation batches of the run are not trained: they do not fill a "
            "rollout",
            "batches_of_run % generation_batches",
        ),
        Note(
            "carries",
            "generation batches that do not fill a rollout wait for the next pass over the rows",
            "batches_of_pass % generation_batches",
        ),
        Note(
            "unit",
            "with unsupervised data each update of the policy takes as many unsupervised micro-batches as others",
            "unsupervised_dataset_name is not None and unsupervised_dataset_config_name is not None",
        ),
        Note(
            "assumes",
            "the first pass over a rollout is in the order of generation; the others are shuffled",
            "ppo_epochs > 1",
        ),
        Note(
            "assumes",
            "no step is skipped: with fp16 an overflow skips one, and answers of a single token are left out",
        ),
    ),
    facts={"lr_constant": "starts(lr_scheduler_type, 'constant')", "lr_warmup": "num_warmup_steps"},
)
