"""NeMo-Aligner, PPO and REINFORCE: rollouts and mini-batches divide or the run ends, one learning-rate tick an update.

Read at commit af2b3bd (2025-05-16): examples/nlp/gpt/conf/gpt_ppo_actor.yaml and gpt_reinforce_actor.yaml (defaults),
nemo_aligner/algorithms/ppo.py and reinforce.py (`fit`, `_run_inference`, `run_training`, `set_max_steps`),
nemo_aligner/utils/trainer_utils.py `compute_num_steps_per_epoch`. The critic is a server with a configuration of its own.
"""

from __future__ import annotations

from rlstep_hooks.systems.engine.declaration import Check, Demand, Entry, Formula, Note, System, Typed, count, number

_ALGORITHM = "NeMo-Aligner af2b3bd nemo_aligner/algorithms/{part}.py"
_ORDER = (
    "NeMo-Aligner af2b3bd nemo_aligner/data/nlp/builders.py:503-505 build_dataloader; NeMo 19668e5 "
    "nemo/collections/nlp/data/language_modeling/megatron/data_samplers.py MegatronPretrainingRandomSampler"
)
_DIVIDE = f"{_ALGORITHM} fit, compute_num_rollout_microbatches (divide)"


def _settings_of(part: str, where: str) -> dict[str, Typed]:
    """The settings of one script; each has a part of the configuration for itself."""
    return {
        f"trainer.{part}.max_epochs": count(1, where=where),
        f"trainer.{part}.max_steps": count(-1, least=-1, where=where),
        f"trainer.{part}.val_check_interval": count(10, where=where),
        f"trainer.{part}.save_interval": count(f"${{trainer.{part}.val_check_interval}}", where=where),
        f"trainer.{part}.initial_policy_kl_penalty": number(0.01, where=where),
        f"model.{part}.num_rollout_samples": count(512, where=where),
        f"model.{part}.rollout_micro_batch_size": count(8, where=where),
    }


SYSTEM = System(
    name="nemo_aligner",
    title="NeMo-Aligner",
    version="af2b3bd",
    recognised=(
        Entry(
            "nemo_aligner",
            programs=("script:train_gpt_ppo_actor.py", "script:train_gpt_reinforce_actor.py"),
            keys=("model.ppo.num_rollout_samples", "model.reinforce.num_rollout_samples"),
        ),
    ),
    overrides=True,
    settings={
        "trainer.num_nodes": count(8),
        "trainer.devices": count(8),
        **_settings_of("ppo", where="not reinforce"),
        **_settings_of("reinforce", where="reinforce"),
        "trainer.ppo.critic_warmup_steps": count(0, least=0, where="not reinforce"),
        "trainer.reinforce.num_rollouts_per_prompt": count(4, where="reinforce"),
        "model.global_batch_size": count(64),
        "model.micro_batch_size": count(1),
        "model.tensor_model_parallel_size": count(1),
        "model.pipeline_model_parallel_size": count(1),
    },
    let={
        "reinforce": "'reinforce' in program or given(model.reinforce.num_rollout_samples) "
        "or given(trainer.reinforce.num_rollouts_per_prompt)",
        "part": "'reinforce' if reinforce else 'ppo'",
        **{
            setting.rpartition(".")[
                2
            ]: f"{setting.format(part='reinforce')} if reinforce else {setting.format(part='ppo')}"
            for setting in (
                "trainer.{part}.max_epochs",
                "trainer.{part}.max_steps",
                "trainer.{part}.val_check_interval",
                "trainer.{part}.save_interval",
                "trainer.{part}.initial_policy_kl_penalty",
                "model.{part}.num_rollout_samples",
                "model.{part}.rollout_micro_batch_size",
            )
        },
        "group": "trainer.reinforce.num_rollouts_per_prompt if reinforce else 1",
        "warmup": "0 if reinforce else trainer.ppo.critic_warmup_steps",
        "gpus": "trainer.num_nodes * trainer.devices",
        "copy": "model.tensor_model_parallel_size * model.pipeline_model_parallel_size",
        "processes": "gpus // copy",
        "size": "model.global_batch_size",
        "fitting_sizes": "nearest(size, it % world_size == 0 and samples_per_rollout % it == 0)",
        "fitting_rollouts": "nearest(num_rollout_samples, it % (rollout_micro_batch_size * world_size) == 0)",
        "algorithm": "upper(part)",
        "prompts_per_rollout": "num_rollout_samples",
        "samples_per_prompt": "group",
        "samples_per_microbatch": "model.micro_batch_size * world_size",
        "frozen_rollouts": "warmup",
        # Rollouts for the critic alone come before the first step, and the loader does not count them as consumed.
        "unseen": "rows % (rollout_micro_batch_size * world_size)",
        "data_epochs": "(rollouts - warmup) * num_rollout_samples / rows",
        # REINFORCE has no ratio: its loss uses only the current log-probs.
        "old_logprob_source": "'detach' if reinforce else 'recompute'",
        "lags": "(0,) if reinforce else None",
        "reference_source": "'at_rollout' if initial_policy_kl_penalty > 0 else 'none'",
        "lr_horizon": "unknown('NeMo decides it: see model.optim.sched and trainer.max_steps')",
    },
    always={"loader": "drops", "syncs": "first_and_after_updates"},
    formulas=(
        Formula("samples_per_rollout", "num_rollout_samples * group", f"{_ALGORITHM} _run_inference"),
        Formula("samples_per_update", "model.global_batch_size", f"{_ALGORITHM} fit (model_gbs)"),
        Formula(
            "updates_per_rollout",
            "samples_per_rollout / model.global_batch_size",
            f"{_ALGORITHM} fit (get_iterator_k_split)",
        ),
        Formula(
            "rollouts_per_epoch",
            "floor(rows / num_rollout_samples)",
            "NeMo-Aligner af2b3bd nemo_aligner/utils/trainer_utils.py compute_num_steps_per_epoch",
        ),
        # `MegatronPretrainingRandomSampler` cuts the set into a bucket for each process and shuffles within: rows that do not fill a
        # micro-batch on every process are in no bucket.
        Formula("rows_reshuffled", "not unseen or rows % num_rollout_samples > unseen", _ORDER, where="known(rows)"),
        Formula("rows_reshuffled", "True", _ORDER),
        Formula(
            "rollouts",
            "limited(max_epochs * rollouts_per_epoch, max_steps if max_steps >= 0 else None) + warmup",
            f"{_ALGORITHM} fit, set_max_steps",
        ),
        Formula("updates", "max(rollouts - frozen_rollouts, 0) * updates_per_rollout", f"{_ALGORITHM} fit"),
        Formula("lr_ticks", "updates", f"{_ALGORITHM} run_training (scheduler.step after each update)"),
    ),
    checks=(
        Demand(
            "gpus % copy == 0",
            "{gpus} GPUs cannot be shared by copies of the model on {copy} each",
            about="trainer.devices",
        ),
        Check(
            "size % world_size == 0",
            "{size} is not divisible by {world_size}",
            fix="model.global_batch_size = {fitting_sizes}",
            when="when training begins",
            source=_DIVIDE,
        ),
        Check(
            "num_rollout_samples % rollout_micro_batch_size == 0",
            "{num_rollout_samples} is not divisible by {rollout_micro_batch_size}",
            fix="model.{part}.num_rollout_samples = {fitting_rollouts}",
            when="in the first rollout",
            source=_DIVIDE,
        ),
        Check(
            "num_rollout_samples // rollout_micro_batch_size % world_size == 0",
            "{num_rollout_samples // rollout_micro_batch_size} is not divisible by {world_size}",
            fix="model.{part}.num_rollout_samples = {fitting_rollouts}",
            when="in the first rollout",
            source=_DIVIDE,
        ),
        Check(
            "samples_per_rollout // world_size % (size // world_size) == 0",
            "{samples_per_rollout // world_size} is not divisible by {size // world_size}",
            fix="model.global_batch_size = {fitting_sizes}",
            when="after the first rollout",
            source=_DIVIDE,
        ),
    ),
    notes=(
        Note("unit", "train_optim/* is logged at the step of the rollout: the updates of a rollout share one point"),
        Note(
            "assumes",
            "the critic is a server of its own: its updates are set in its configuration, not in this launch",
            "not reinforce",
        ),
        Note(
            "unit",
            "the first step makes {warmup} more rollouts, for the critic alone; their prompts are drawn again",
            "warmup",
        ),
        Note(
            "drops",
            "consumed_samples grows by {samples_per_rollout} samples a rollout, and the loader skips as many prompts: "
            "{num_rollout_samples} of every {samples_per_rollout} rows are used",
            "group > 1",
        ),
    ),
    facts={"minibatch_unit": "'samples'", "save_every": "save_interval", "eval_every": "val_check_interval"},
)
