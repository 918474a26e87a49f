"""What NeMo-RL refuses, in its own words, and what this plan refuses to guess."""

from __future__ import annotations

from rlstep_hooks.systems.engine.declaration import Check, Demand
from rlstep_hooks.systems.planned.nemo_rl.settings import APART
from rlstep_hooks.systems.planned.nemo_rl.sources import COMMIT, DATA, POLICY, SETUP, TRUNCATED

_START_UP = "at start-up"
_FIRST_TRAINING = "after the first rollout, when its samples are shared among the processes"


def _shared(role: str, where: str) -> Check:
    """The training GPUs must hold whole copies of a model."""
    return Check(
        f"training_gpus % {role}_copy == 0",
        f"World size ({{training_gpus}}) must be divisible by PP * CP * TP ({{{role}_copy}})",
        fix=f"a number of training GPUs of {{multiples(training_gpus, {role}_copy)}}",
        when=_START_UP,
        source=POLICY,
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
            source=f"{DATA} shard_by_batch_size",
            where=where,
        ),
        Check(
            f"samples_per_rollout % {size} == 0",
            f"Total batch size ({{samples_per_rollout}}) is not a multiple of batch_size ({{{size}}})",
            fix=fitting,
            when=_FIRST_TRAINING,
            source=f"{DATA} shard_by_batch_size",
            where=where,
        ),
        Check(
            f"{size} % {processes} == 0",
            f"Batch size ({{{size}}}) is not a multiple of shards ({{{processes}}})",
            fix=fitting,
            when=_FIRST_TRAINING,
            source=f"{DATA} shard_by_batch_size",
            where=where,
        ),
        Check(
            f"{role}_by_tokens or {share} % {micro} == 0",
            f"Data dict size ({{{share}}}) is not a multiple of the provided microbatch size ({{{micro}}})",
            fix=f"{micro} = {{nearest({micro}, gcd(it, {share}) == it)}}",
            when="after the first rollout, in the first update",
            source=f"{DATA} make_microbatch_iterator",
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
        source=f"{COMMIT} examples/run_{{part}}.py",
        where="asynchronous",
    )


CHECKS: tuple[Check | Demand, ...] = (
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
        source=SETUP,
    ),
    Check(
        "samples_per_rollout == policy.train_global_batch_size",
        "force_on_policy_ratio requires train_global_batch_size == num_prompts_per_step * num_generations_per_prompt "
        "({policy.train_global_batch_size} != {samples_per_rollout})",
        fix="policy.train_global_batch_size = {samples_per_rollout}",
        when=_START_UP,
        source=SETUP,
        where="loss_fn.force_on_policy_ratio",
    ),
    Check(
        "loss_fn.use_importance_sampling_correction",
        f"{TRUNCATED} is only supported when use_importance_sampling_correction is True",
        fix="loss_fn.use_importance_sampling_correction = true",
        when=_START_UP,
        source=f"{COMMIT} nemo_rl/algorithms/loss/loss_functions.py:292 ClippedPGLossFn.__init__",
        where="loss_fn.truncated_importance_sampling_type is not None",
    ),
    _not_asynchronous("{part}.use_dynamic_sampling", "not dynamic"),
    _not_asynchronous("data.use_multiple_dataloader", "not data.use_multiple_dataloader"),
    Check(
        "loss_fn.use_importance_sampling_correction",
        "Importance sampling correction must be enabled for async GRPO for good convergence due to off-policy samples!",
        fix="loss_fn.use_importance_sampling_correction = true",
        when="after start-up, when training begins",
        source=f"{COMMIT} nemo_rl/algorithms/grpo.py async_grpo_train",
        where="asynchronous and not ppo",
    ),
    Check(
        f"{APART}.gpus_per_node == cluster.gpus_per_node",
        f"{APART}.gpus_per_node must be explicitly set and equal to cluster.gpus_per_node when cluster.num_nodes > 1 and "
        f"inference is non-colocated, but got inference_gpus_per_node={{{APART}.gpus_per_node}}, "
        "cluster.gpus_per_node={cluster.gpus_per_node}.",
        fix=f"{APART}.gpus_per_node = {{cluster.gpus_per_node}}",
        when=_START_UP,
        source=SETUP,
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
        source=POLICY,
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
        source=f"{COMMIT} nemo_rl/algorithms/grpo.py async_grpo_train, async_utils/trajectory_collector.py _collection_loop",
        where="asynchronous and not endless",
    ),
    _shared("value", where="ppo and given_processes(launch) is None"),
    *_batches("value", "critic.world_size", where="ppo"),
)
