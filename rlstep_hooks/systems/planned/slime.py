"""slime: rollouts in prompts, mini-batches in samples; samples that do not fill a mini-batch are dropped, and rows wrap around.

Read at commit 624b824 (2026-08-21): slime/utils/arguments.py (defaults, `slime_validate_args`), slime/utils/dp_schedule.py
`build_dp_schedule`, slime/backends/megatron_utils/model.py (`train_one_step`, scheduler), actor.py `train_actor`,
slime/rollout/data_source.py `get_samples`, train.py and train_async.py. Megatron-LM checks the global batch as well
(num_microbatches_calculator.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.reading import Conversion
from rlstep_hooks.systems.engine.declaration import (
    REQUIRED,
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

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule

_ARGUMENTS = "slime 624b824 slime/utils/arguments.py"
_SCHEDULE = "slime 624b824 slime/utils/dp_schedule.py build_dp_schedule"
_MODEL = "slime 624b824 slime/backends/megatron_utils/model.py"
_MANAGER = "slime 624b824 slime/ray/placement_group.py create_rollout_manager"
_LOSS = "slime 624b824 slime/backends/megatron_utils/loss.py"
_ASYNC = "slime 624b824 train_async.py:38-66 (generates one rollout ahead, syncs after every update_weights_interval rollouts)"
_MEGATRON = "Megatron-LM megatron/training/arguments.py validate_args"
_START_UP = "at start-up, when the arguments are checked"


def _write(schedule: Schedule) -> Conversion:
    """A schedule as a launch of slime."""
    from rlstep_hooks.planning.writing import Target, whole_rollouts

    # slime can train asynchronously and freeze the policy, so neither is lost.
    kept = msgspec.structs.replace(schedule, frozen_rollouts=0 if schedule.critic else schedule.frozen_rollouts)
    target = Target(msgspec.structs.replace(kept, max_age=0) if schedule.max_age else kept, "slime")
    target.equal_updates()
    size = target.samples_per_update
    if schedule.reuse_epochs > 1:
        raise LaunchError(f"reuse_epochs = {schedule.reuse_epochs} cannot be kept: slime passes once over a rollout")
    if schedule.updates_per_rollout != schedule.samples_per_rollout // size:
        raise LaunchError(
            f"updates_per_rollout = {schedule.updates_per_rollout} cannot be kept: slime makes whole updates of each "
            "rollout and drops the rest"
        )
    if schedule.rollouts is None:
        raise LaunchError("rollouts cannot be kept: they are not known, and slime needs a number; give --rows")
    engine = schedule.old_logprob_source == "engine"
    command = [
        "python", "train_async.py" if schedule.max_age else "train.py",
        "--actor-num-nodes", "1",
        "--actor-num-gpus-per-node", str(schedule.world_size),
        "--rollout-batch-size", str(target.prompts),
        "--n-samples-per-prompt", str(schedule.samples_per_prompt),
        "--global-batch-size", str(size),
        "--micro-batch-size", str(target.microbatch_per_process()),
        "--num-rollout", str(schedule.rollouts),
        *(["--update-weights-interval", str(schedule.max_age)] if schedule.max_age else []),
        *(["--use-rollout-logprobs"] if engine else []),
        *(["--advantage-estimator", "ppo"] if schedule.critic else []),
        *(["--num-critic-only-steps", str(schedule.frozen_rollouts)] if schedule.critic else []),
        *(["--rollout-shuffle"] if schedule.rows_reshuffled else []),
    ]  # fmt: skip
    alone = schedule.updates_per_rollout == 1 and schedule.critic is None
    target.keeps(
        lr_clock="update",
        source="engine" if engine else "detach" if alone else "recompute",
        critic=schedule.critic is not None,
        loader="wraps",
    )
    lost = target.lost() + whole_rollouts(schedule)
    if schedule.critic is not None and schedule.critic.minibatches != schedule.minibatches:
        lost += (f"critic.minibatches: {list(schedule.critic.minibatches)}, here those of the policy",)
    return Conversion(tuple(command), lost)


SYSTEM = System(
    name="slime",
    title="slime",
    version="624b824",
    recognised=(
        Entry(
            "slime",
            programs=("script:train.py", "script:train_async.py"),
            with_key="rollout_batch_size",
            keys=("num_steps_per_rollout", "num_rollout"),
        ),
    ),
    config_settings=("custom_config_path",),
    checkout="rlstep_hooks.systems.planned.slime_checkout:beside",
    rows_from=("prompt_data",),
    settings={
        "rollout_batch_size": count(REQUIRED),
        "n_samples_per_prompt": count(1),
        "global_batch_size": count(None),
        "num_steps_per_rollout": count(None),
        "micro_batch_size": count(1),
        "num_rollout": count(None, least=0),
        "num_epoch": count(None),
        "over_sampling_batch_size": count(None),
        "update_weights_interval": count(1),
        # Settings of miles, a fork.
        "max_weight_staleness": count(None, least=0),
        "tis_clip": number(2),
        "tis_clip_low": number(0),
        "custom_tis_function_path": text(None),
        "rollout_top_p": number(1),
        "actor_num_nodes": count(1),
        "actor_num_gpus_per_node": count(8),
        "tensor_model_parallel_size": count(1),
        "pipeline_model_parallel_size": count(1),
        "context_parallel_size": count(1),
        "advantage_estimator": text("grpo"),
        "loss_type": text("policy_loss"),
        "num_critic_only_steps": count(0, least=0),
        "kl_coef": number(0),
        "lr_decay_style": text("linear"),
        "lr_decay_iters": count(None),
        "lr_warmup_iters": count(0, least=0),
        "lr_warmup_fraction": number(None),
        "save_interval": count(),
        "eval_interval": count(),
        "rollout_function_path": text(),
        "dynamic_sampling_filter_path": text(),
        "load_debug_rollout_data": text(),
        **{
            name: flag()
            for name in (
                "colocate",
                "use_dynamic_batch_size",
                "decrease_batch_size_if_needed",
                "rollout_shuffle",
                "partial_rollout",
                "release_train",
                "use_kl_loss",
                "use_rollout_logprobs",
                "use_tis",
                "disable_compute_advantages_and_returns",
                "keep_old_actor",
                "use_routing_replay",
                "use_rollout_routing_replay",
                "get_mismatch_metrics",
                "use_opd",
                "debug_rollout_only",
                "debug_train_only",
            )
        },
    },
    let={
        "asynchronous": "ends(program, 'train_async.py')",
        "gpus": "actor_num_nodes * actor_num_gpus_per_node",
        "copy": "tensor_model_parallel_size * pipeline_model_parallel_size * context_parallel_size",
        "processes": "gpus // copy",
        "samples": "rollout_batch_size * n_samples_per_prompt",
        "share": "micro_batch_size * world_size",
        "steps": "num_steps_per_rollout",
        "fitting_steps": "nearest(steps, samples // it > 0 and samples // it % share == 0)",
        "prompts_per_rollout": "rollout_batch_size",
        "samples_per_prompt": "n_samples_per_prompt",
        "samples_per_microbatch": "None if use_dynamic_batch_size else share",
        "frozen_rollouts": "num_critic_only_steps if critic else 0",
        "critic": "advantage_estimator == 'ppo'",
        "algorithm": "upper(advantage_estimator)",
        "picks_prompts": "(over_sampling_batch_size or 0) > rollout_batch_size or dynamic_sampling_filter_path is not None "
        "or partial_rollout",
        "rows_bound": "'data_dependent' if picks_prompts else 'exact'",
        "data_epochs": "unknown('prompts are dropped and replaced as the run goes') if known(rows) and picks_prompts else None",
        "loader_epochs": "data_epochs",
        "rows_reshuffled": "rollout_shuffle",
        "reference_source": "'at_rollout' if use_kl_loss or kl_coef != 0 else 'none'",
        "fully": "'fully_async' in (rollout_function_path or '')",
        "interval": "1 if release_train else update_weights_interval",
        "correction": "'' if not (asynchronous or fully) or use_rollout_logprobs "
        "else 'old log-probs of weights that are kept back (--keep-old-actor)' if keep_old_actor "
        "else 'none' if not use_tis else custom_tis_function_path if custom_tis_function_path is not None "
        "else 'token importance weights, ' + quoted(decimal(tis_clip_low)) + ' to ' + quoted(decimal(tis_clip))",
        "correction_biased": "'rollout_top_p = ' + quoted(decimal(rollout_top_p)) "
        "if rollout_top_p < 1 and correction not in ('', 'none') or rollout_top_p < 1 and use_rollout_logprobs else ''",
        # `train_actor`, and `policy_loss_function` where it finds no old log-probs.
        "own_forward": "updates_per_rollout > 1 or loss_type != 'policy_loss' or kl_coef != 0 "
        "or advantage_estimator in ('ppo', 'gspo') or use_routing_replay and not use_rollout_routing_replay "
        "or get_mismatch_metrics or use_opd",
        "old_logprob_source": "'engine' if use_rollout_logprobs else 'detach' if disable_compute_advantages_and_returns "
        "else 'at_rollout' if keep_old_actor else 'recompute' if own_forward else 'detach'",
        # With an interval of 1 the kept weights are those before the last sync (update_weights in actor.py).
        "syncs_behind": "2 if update_weights_interval == 1 else update_weights_interval",
        "lags": "(0,) if old_logprob_source == 'detach' "
        "else range(syncs_behind * updates_per_rollout) if old_logprob_source == 'at_rollout' else None",
        "ratio_one_updates": "() if old_logprob_source == 'at_rollout' else None",
    },
    always={"loader": "wraps", "remainder": "drop", "syncs": "first_and_after_updates"},
    formulas=(
        Formula("samples_per_rollout", "samples", f"{_ARGUMENTS} --rollout-batch-size"),
        Formula(
            "samples_per_update",
            "floor(samples / steps)",
            f"{_ARGUMENTS} slime_validate_args",
            where="steps is not None",
        ),
        Formula(
            "samples_per_update",
            "global_batch_size",
            f"{_ARGUMENTS} (samples, not prompts)",
            where="global_batch_size is not None",
        ),
        Formula("samples_per_update", "micro_batch_size * world_size", f"{_MEGATRON} (no --global-batch-size)"),
        Formula("updates_per_rollout", "floor(samples_per_rollout / samples_per_update)", _SCHEDULE),
        Formula("samples_dropped_per_rollout", "samples_per_rollout % samples_per_update", _SCHEDULE),
        # The engine's version is compared when a group is taken, and the group is trained after up to one more interval.
        Formula(
            "max_age",
            "(max_weight_staleness + 1) * interval",
            "miles 31f1ca9 miles/rollout/fully_async_data_buffer.py:142-162; train_async.py",
            where="fully and max_weight_staleness is not None",
        ),
        Formula("max_age", "unknown(rollout_function_path + ' samples as fast as it can')", _ASYNC, where="fully"),
        # Ages 0, 1, ..., K, 1, ..., K with a sync every K rollouts.
        Formula("max_age", "interval", _ASYNC, where="asynchronous"),
        Formula("max_age", "0", "slime 624b824 train.py train (a sync after each rollout)"),
        Formula("rollouts", "num_rollout", "slime 624b824 train.py train", where="num_rollout is not None"),
        Formula("rollouts", "num_epoch * floor(rows / rollout_batch_size)", _MANAGER),
        Formula("updates", "max(rollouts - frozen_rollouts, 0) * updates_per_rollout", "slime 624b824 train.py train"),
        Formula(
            "lr_horizon",
            "lr_decay_iters or floor(rollouts * samples_per_rollout / samples_per_update)",
            f"{_MODEL} get_optimizer_param_scheduler",
        ),
    ),
    checks=(
        Demand(
            "loss_type != 'sft_loss'",
            "loss_type = sft_loss learns given texts (slime/backends/megatron_utils/loss.py sft_loss_function): nothing is sampled",
            about="loss_type",
        ),
        Demand(
            "not debug_rollout_only",
            "with debug_rollout_only it samples, and trains nothing (slime/backends/megatron_utils/actor.py train)",
            about="debug_rollout_only",
        ),
        Demand(
            "not debug_train_only and load_debug_rollout_data is None",
            "it trains on rollouts that were saved before, and how many samples these have, only their files show "
            "(slime/ray/rollout.py _get_rollout_data)",
            about="load_debug_rollout_data",
        ),
        Check(
            "over_sampling_batch_size is None or over_sampling_batch_size >= rollout_batch_size",
            "over_sampling_batch_size {over_sampling_batch_size} should be greater than or equal to rollout_batch_size "
            "{rollout_batch_size}",
            fix="--over-sampling-batch-size = {rollout_batch_size} or more",
            when=_START_UP,
            source=f"{_ARGUMENTS} slime_validate_args",
        ),
        Check(
            "num_rollout is not None or num_epoch is not None",
            "num_epoch is not set, but num_rollout is not set, please set --num-rollout or --num-epoch",
            fix="--num-rollout N or --num-epoch N",
            when=_START_UP,
            source=f"{_ARGUMENTS} slime_validate_args",
        ),
        Check(
            "not (asynchronous and colocate)",
            "Colocation is not supported for async training.",
            fix="train.py, or no --colocate",
            when="at start-up",
            source="slime 624b824 train_async.py train",
        ),
        Check(
            "not (use_rollout_logprobs and use_tis)",
            "use_rollout_logprobs and use_tis cannot be set at the same time.",
            fix="one of them",
            when=_START_UP,
            source=f"{_ARGUMENTS} slime_validate_args",
        ),
        Check(
            "gpus % copy == 0",
            "world size ({gpus}) is not divisible by total_model_size ({copy})",
            fix="actor_num_nodes * actor_num_gpus_per_node = {multiples(gpus, copy)}",
            when=_START_UP,
            source=_MEGATRON,
        ),
        Check(
            "steps is None or global_batch_size is None or global_batch_size == samples_per_update",
            "global_batch_size {global_batch_size} is not equal to rollout_batch_size {rollout_batch_size} * "
            "n_samples_per_prompt {n_samples_per_prompt} // num_steps_per_rollout {steps}",
            fix="--global-batch-size {samples_per_update}, or no --num-steps-per-rollout",
            when=_START_UP,
            source=f"{_ARGUMENTS} slime_validate_args",
        ),
        Check(
            "samples_per_update > 0",
            "assert args.global_batch_size > 0 ({samples} samples // {steps} steps is 0)",
            fix="--num-steps-per-rollout {samples} or fewer",
            when=_START_UP,
            source=_MEGATRON,
        ),
        Check(
            "samples_per_update % share == 0 or decrease_batch_size_if_needed",
            "global batch size ({samples_per_update}) is not divisible by micro batch size ({micro_batch_size}) times data parallel "
            "size ({world_size})",
            fix="{'--global-batch-size = ' + multiples(samples_per_update, share) if steps is None "
            "else '--num-steps-per-rollout = ' + fitting_steps if fitting_steps "
            "else 'a rollout of ' + multiples(samples, share) + ' samples'}",
            when="at start-up, when the trainer is initialised; also with --use-dynamic-batch-size",
            source="Megatron-LM megatron/core/num_microbatches_calculator.py ConstantNumMicroBatchesCalculator",
        ),
        Check(
            "samples_per_update <= samples",
            "num_rollouts ({samples}) < global_batch_size ({samples_per_update}); need at least one rollout per step.",
            fix="--global-batch-size = {nearest(samples_per_update, it <= samples and it % share == 0)}",
            when="after the first rollout",
            source=_SCHEDULE,
        ),
        Check(
            "num_rollout is not None or rollouts > 0",
            "assert args.num_rollout > 0 ({rows} rows // {rollout_batch_size} prompts is 0)",
            fix="--rollout-batch-size {rows} or less",
            when="at start-up, when the rollout manager is made",
            source=_MANAGER,
        ),
    ),
    notes=(
        Note("unit", "rollout_batch_size counts prompts, global_batch_size counts samples"),
        Note(
            "grows",
            "num_steps_per_rollout = {steps} makes mini-batches of {samples} // {steps} = {samples_per_update} samples, and these "
            "make {updates_per_rollout} updates",
            "steps is not None and updates_per_rollout != steps",
        ),
        Note(
            "drops",
            "{samples_dropped_per_rollout} of {samples} samples of each rollout do not fill a mini-batch of {samples_per_update}",
            "samples_dropped_per_rollout",
        ),
        Note(
            "assumes",
            "without global_batch_size Megatron-LM takes one micro-batch a process: {samples_per_update} samples",
            "steps is None and global_batch_size is None",
        ),
        Note(
            "ignores",
            "num_epoch: num_rollout is given as well",
            "num_epoch is not None and num_rollout is not None",
        ),
        Note(
            "carries",
            "keep_old_actor keeps the weights before the last sync: here one rollout older than the sampler's",
            "old_logprob_source == 'at_rollout' and max_age == 0",
        ),
        Note(
            "assumes",
            "max_weight_staleness is a setting of miles, which drops or regenerates samples that are older when they are taken; each "
            "of the {updates_per_rollout} updates on a rollout adds its lag to that",
            "max_weight_staleness is not None and fully",
        ),
        Note(
            "ignores",
            "max_weight_staleness: it holds for a fully asynchronous rollout function only (miles 31f1ca9 arguments.py)",
            "max_weight_staleness is not None and not fully",
        ),
    ),
    facts={
        "more_updates": "'--num-steps-per-rollout above 1'",
        "minibatch_unit": "'samples'",
        "lr_constant": "lr_decay_style == 'constant'",
        "lr_warmup": "lr_warmup_iters if lr_warmup_fraction is None else floor(lr_warmup_fraction * lr_horizon)",
        "save_every": "save_interval",
        "eval_every": "eval_interval",
        "nominal_updates_per_rollout": "steps",
        "correct_by": "'--use-tis, or --use-rollout-logprobs'",
    },
    writes=_write,
)
