"""verl's `fully_async_policy`: rollouts and updates run apart from each other, with a sync after several fetches of samples.

What the trainer makes between two syncs is a rollout here. Read in the wheel of verl 0.9.1, experimental/fully_async_policy:
fully_async_rollouter.py (`set_max_required_samples`, `_should_pause_generation`), fully_async_trainer.py (`_get_samples_from_queue`,
`_fit_update_weights`), config/fully_async_ppo_trainer.yaml (defaults).
"""

from __future__ import annotations

from rlstep_hooks.systems.engine.declaration import Check, Entry, Formula, Note, System, count, flag, number, text
from rlstep_hooks.systems.verl.settings import ACTOR, MEGATRON_PARALLEL, ROLLOUT
from rlstep_hooks.systems.verl.trainers import gpus_of_megatron

_HOME = "verl {version} experimental/fully_async_policy"
_ROLLOUTER = f"{_HOME}/fully_async_rollouter.py"
_SECTION = "async_training"
_CORRECTION = "algorithm.rollout_correction"

SYSTEM = System(
    name="verl_fully_async",
    title="verl fully_async_policy",
    framework="verl",
    version="0.9.1",
    releases=("0.9", "0.10"),
    package="verl",
    recognised=(
        Entry(
            "verl_fully_async",
            programs=("module:verl.experimental.fully_async_policy.fully_async_main",),
            keys=("async_training.staleness_threshold", "async_training.trigger_parameter_sync_step"),
            before="verl",
        ),
    ),
    overrides=True,
    checkout="rlstep_hooks.systems.planned.verl_fully_async_checkout:beside",
    config_settings=(),
    rows_from=("data.train_files",),
    settings={
        "data.train_batch_size": count(1024, least=0),
        f"{_SECTION}.staleness_threshold": number(0.1),
        f"{_SECTION}.trigger_parameter_sync_step": count(4, least=-(1 << 31)),
        f"{_SECTION}.require_batches": count(1),
        f"{_SECTION}.partial_rollout": flag(True),
        f"{ACTOR}.ppo_mini_batch_size": count(256),
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": count(None),
        f"{ACTOR}.use_dynamic_bsz": flag(False),
        f"{ACTOR}.ppo_epochs": count(1),
        f"{ACTOR}.ulysses_sequence_parallel_size": count(1),
        f"{ACTOR}.strategy": text(None),
        **{f"{ACTOR}.megatron.{name}_parallel_size": count() for name in MEGATRON_PARALLEL},
        "config_name": text(None),
        f"{ACTOR}.use_kl_loss": flag(False),
        f"{ROLLOUT}.n": count(1),
        f"{ROLLOUT}.top_p": number(1),
        f"{ROLLOUT}.calculate_log_probs": flag(True),
        f"{_CORRECTION}.bypass_mode": flag(True),
        f"{_CORRECTION}.rollout_is": text(None),
        f"{_CORRECTION}.rollout_is_threshold": text("2.0"),
        "algorithm.adv_estimator": text("gae"),
        "algorithm.use_kl_in_reward": flag(False),
        "rollout.total_rollout_steps": count(None),
        "trainer.total_epochs": count(30),
        "trainer.balance_batch": flag(True),
        "trainer.n_gpus_per_node": count(8),
        "trainer.nnodes": count(1),
    },
    let={
        "trigger": f"{_SECTION}.trigger_parameter_sync_step",
        "threshold": f"{_SECTION}.staleness_threshold",
        "fetched": f"{ACTOR}.ppo_mini_batch_size * {_SECTION}.require_batches",
        "ppo_updates": f"{ACTOR}.ppo_epochs * {_SECTION}.require_batches",
        "samples_per_prompt": f"{ROLLOUT}.n",
        # Each fetch is passed over `ppo_epochs` times before the next one.
        "reuse_epochs": f"{ACTOR}.ppo_epochs",
        "parts_per_rollout": "trigger",
        "gpus_of_process": f"{gpus_of_megatron(ACTOR)} if 'megatron' in ({ACTOR}.strategy or config_name or '') "
        f"else {ACTOR}.ulysses_sequence_parallel_size",
        "processes": "max(trainer.n_gpus_per_node * trainer.nnodes // gpus_of_process, 1)",
        "samples_per_microbatch": f"unknown('micro-batches are cut by token counts') if {ACTOR}.use_dynamic_bsz "
        f"or {ACTOR}.ppo_micro_batch_size_per_gpu is None else {ACTOR}.ppo_micro_batch_size_per_gpu * world_size",
        "minibatches": f"repeated((samples_per_update,), {_SECTION}.require_batches * trigger)",
        "lr_clock": f"'rollout' if trigger == 1 else 'update' if {ACTOR}.ppo_epochs * {_SECTION}.require_batches == 1 else 'part'",
        # What may be generated between two syncs; one more may wait for an engine, uncounted (fully_async_rollouter.py:957).
        "most": "floor(prompts_per_rollout * (threshold + 1))",
        # Fetches that no rollout has: they are trained, and no sync follows them (fully_async_trainer.py:472-479).
        "left": "floor((generated - rollouts * prompts_per_rollout) / fetched) if known(generated) else 0",
        # Null stands for no limit beside the epochs; its configuration has 100.
        "limit": "rollout.total_rollout_steps if given(rollout.total_rollout_steps) else 100",
        "epochs": "trainer.total_epochs",
        "generated": "limited(rows * epochs, limit)",
        "algorithm": "'PPO' if algorithm.adv_estimator == 'gae' else upper(algorithm.adv_estimator)",
        # The recipe before these releases has settings of its own for this (verl_fully_async_checkout.py).
        "bypasses": f"{_CORRECTION}.bypass_mode",
        "old_logprob_source": "'engine' if bypasses else 'recompute'",
        "correction": f"'' if bypasses else 'none' if {_CORRECTION}.rollout_is is None "
        f"else {_CORRECTION}.rollout_is + ' importance weights, at most ' + {_CORRECTION}.rollout_is_threshold",
        "correction_biased": f"'{ROLLOUT}.top_p = ' + quoted(decimal({ROLLOUT}.top_p)) if {ROLLOUT}.top_p < 1 else ''",
        "reference_source": f"'at_rollout' if {ACTOR}.use_kl_loss or algorithm.use_kl_in_reward else 'none'",
        "lr_horizon": "unknown('what the learning-rate schedule is built for was not read')",
        "data_epochs": "rollouts * prompts_per_rollout / rows if known(rows) else None",
        "loader_epochs": "data_epochs",
        "rows_dropped_per_epoch": "0 if known(rows) else None",
    },
    always={"loader": "wraps", "syncs": "first_and_after_updates", "step_unit": "rollout"},
    formulas=(
        Formula("prompts_per_rollout", "fetched * trigger", f"{_ROLLOUTER}:424,498-500 (required_samples)"),
        Formula(
            "samples_per_update",
            f"{ACTOR}.ppo_mini_batch_size * {ROLLOUT}.n",
            "verl {version} workers/engine_workers.py",
        ),
        Formula(
            "updates_per_rollout",
            f"{ACTOR}.ppo_epochs * {_SECTION}.require_batches * trigger",
            f"{_HOME}/fully_async_trainer.py:684 (a sync after trigger_parameter_sync_step fetches)",
        ),
        Formula("rollouts", "floor(generated / prompts_per_rollout)", f"{_ROLLOUTER}:498-501 (total_train_steps)"),
        Formula(
            "lr_ticks",
            "rollouts * trigger",
            "verl {version} workers/engine_workers.py train_mini_batch: one tick a call",
        ),
        # Between two syncs (1 + threshold) times what a rollout takes may be under way or in the queue, so what is finished waits for
        # so many syncs at most; nothing is dropped for its age.
        Formula(
            "max_age",
            "0 if threshold == 0 else ceil((most - prompts_per_rollout + 1) / prompts_per_rollout)",
            f"{_ROLLOUTER}:493-497,1155 (max_required_samples)",
        ),
    ),
    checks=(
        Check(
            "data.train_batch_size == 0",
            "AssertionError: train_batch_size must be zero",
            fix="data.train_batch_size=0",
            when="at the start",
            source=f"{_ROLLOUTER}:351",
        ),
        Check(
            "threshold >= 0",
            "AssertionError: staleness_threshold must larger than 0",
            fix="async_training.staleness_threshold = 0 or more",
            when="at the start",
            source=f"{_ROLLOUTER}:353",
        ),
        Check(
            "trigger >= 1",
            "AssertionError: trigger_parameter_sync_step must larger or equal than 1",
            fix="async_training.trigger_parameter_sync_step = 1 or more",
            when="at the start",
            source=f"{_ROLLOUTER}:354",
        ),
        Check(
            f"{ROLLOUT}.calculate_log_probs",
            "AssertionError: must rollout calculate log_probs",
            fix=f"{ROLLOUT}.calculate_log_probs=True",
            when="at the start",
            source=f"{_ROLLOUTER}:733",
        ),
        Check(
            "not trainer.balance_batch or fetched * samples_per_prompt % world_size == 0",
            "AssertionError: {fetched * samples_per_prompt} % {world_size} != 0",
            fix="choose ppo_mini_batch_size so that the samples of a fetch are a multiple of {world_size}",
            when="at the first fetch",
            source="verl {version} utils/seqlen_balancing.py:147 (karmarkar_karp)",
        ),
        Check(
            "samples_per_update % world_size == 0",
            "AssertionError: Got mini_batch_size={samples_per_update} and self.engine.get_data_parallel_size()={world_size}",
            fix="choose ppo_mini_batch_size so that its samples are a multiple of {world_size}",
            when="at the first update",
            source="verl {version} workers/engine_workers.py:267",
        ),
    ),
    notes=(
        Note("unit", "a rollout here is what is trained between two syncs: {trigger} fetches of {fetched} prompts"),
        Note(
            "assumes",
            "a prompt that takes longer than others is trained all the same: staleness_threshold = {decimal(threshold)} limits how "
            "much is generated between two syncs, and drops nothing",
        ),
        Note(
            "grows",
            "the last {left * fetched} prompts fill no rollout: verl trains them all the same (updates: {left * ppo_updates}), and no "
            "sync follows",
            "left > 0",
        ),
        Note(
            "carries",
            "partial_rollout: a completion that a sync interrupts goes on with the new weights",
            f"{_SECTION}.partial_rollout",
        ),
    ),
    facts={"minibatch_unit": "'prompts'", "correct_by": "'algorithm.rollout_correction.bypass_mode=True'"},
)
