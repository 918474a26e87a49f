"""What verl refuses because of sizes that do not fit each other, in the order in which a run meets it.

utils/config.py 0.9.1:103-152, workers/config/actor.py 0.9.1:193-229, critic.py 0.9.1:103-135, and the workers.
"""

from __future__ import annotations

from rlstep_hooks.systems.engine.declaration import Check, Demand
from rlstep_hooks.systems.verl.settings import ACTOR, ROLLOUT
from rlstep_hooks.systems.verl.sizes import GROUP, MINIBATCH
from rlstep_hooks.systems.verl.trainers import is_megatron

_START = "at the start"
_BUILT = "when the workers are built"
_TRAINED = "after the first rollout"
_SEPARATE = "trainer/ppo/v1/trainer_separate_async.py __init__"


def _given(name: str, section: str, sized: str, message: str, dynamic: str, where: str) -> Check:
    """Whether a role has a size of micro-batches."""
    return Check(
        sized,
        message,
        fix=f"set {name}.ppo_micro_batch_size_per_gpu",
        when=_START,
        source=f"workers/config/{name}.py __post_init__",
        where=f"{where}not {dynamic}",
    )


def _fills(name: str, size: str, dynamic: str, where: str) -> Check:
    """Whether a rollout fills a mini-batch of a role."""
    return Check(
        f"data.train_batch_size >= {size}",
        f"{{'ValueError' if has_config_classes else 'AssertionError'}}: train_batch_size ({{data.train_batch_size}}) must be >= "
        f"{name}.ppo_mini_batch_size ({{{size}}})",
        fix=f"choose {name}.ppo_mini_batch_size {{data.train_batch_size}} or smaller",
        when=_START,
        source=f"workers/config/{name}.py validate",
        where=f"{where}release >= (0, 3) and not {dynamic}",
    )


def _one_copy(gpus: str, processes: str, where: str) -> Check:
    return Check(
        f"{processes} > 0",
        f"{{{gpus}}} GPUs do not hold one copy of the model: no process is left that trains",
        fix="choose parallel sizes whose product divides the number of GPUs",
        when=_BUILT,
        source="workers/engine 0.9.1 get_data_parallel_size",
        where=where,
    )


def _legacy(
    name: str, processes: str, share: str, group: str, each: str, strategy: str, where: str
) -> tuple[Check, ...]:
    """What legacy workers ask of the share of one process.

    Those of Megatron split it without that question, into a last micro-batch that is smaller (megatron_workers.py 0.4.1 init_model,
    megatron_actor.py forward_backward_batch).
    """
    return (
        Check(
            f"samples_per_rollout % {processes} == 0",
            f"AssertionError: only support equal chunk. Got size of DataProto {{samples_per_rollout}} and chunk {{{processes}}}.",
            fix=f"choose rollouts (train_batch_size x rollout.n) that are a multiple of {{{processes}}} samples",
            when="at the first rollout",
            source="protocol.py DataProto.chunk",
            where=where,
        ),
        Check(
            f"{share} > 0",
            "AssertionError: ppo_mini_batch_size 0 should be larger than 0 after normalization",
            fix=f"choose {name}.ppo_mini_batch_size {{ceil({processes} / {group})}} or larger",
            when=_BUILT,
            source="workers/fsdp_workers.py",
            where=where,
        ),
        Check(
            f"{each} is None or ({each} > 0 and {share} % {each} == 0)",
            f"AssertionError: normalized ppo_mini_batch_size {{{share}}} should be divisible by ppo_micro_batch_size_per_gpu "
            f"{{{each}}}",
            fix=f"choose {name}.ppo_micro_batch_size_per_gpu as a divisor of {{{share}}}",
            when=_BUILT,
            source="workers/fsdp_workers.py",
            where=f"{where} and not {is_megatron(strategy)}",
        ),
    )


def _micro(samples: str, each: str, processes: str, where: str) -> Check:
    """Whether micro-batches of `each` samples on one process divide a number of samples over all processes."""
    return Check(
        f"{each} is None or {samples} % ({each} * {processes}) == 0",
        "AssertionError: data size must be divisible by force_group_size * micro_batch_size_per_gpu",
        fix=f"{{{samples} // {processes}}} samples of one process are not a multiple of {{{each}}}: choose micro-batches, also where "
        "log-probs are computed, that divide them",
        when=_TRAINED,
        source="workers/engine/utils.py prepare_micro_batches",
        where=where,
    )


def _whole(size: str, minibatch: str, processes: str, each: str, where: str) -> tuple[Check, ...]:
    """What engine workers ask, which take whole mini-batches (engine_workers.py 0.9.1:266-269, tensordict_utils.py 0.9.1:588)."""
    step = f"({processes} // gcd({processes}, {GROUP}))"
    return (
        Check(
            f"{size} % {processes} == 0",
            f"AssertionError: Got mini_batch_size={{{size}}} and self.engine.get_data_parallel_size()={{{processes}}}",
            fix=f"choose ppo_mini_batch_size as a multiple of {{{step}}}",
            when=_TRAINED,
            source="workers/engine_workers.py TrainingWorker.train_mini_batch",
            where=where,
        ),
        Check(
            f"trained % {size} == 0",
            f"AssertionError: {{trained // {processes}}} % {{{size} // {processes}}} != 0",
            fix=f"choose ppo_mini_batch_size {{near_divisors(trained // {GROUP}, {minibatch}, {step})}}, or rollouts of "
            f"{{multiples(trained // {GROUP}, {minibatch})}} prompts",
            when=_TRAINED,
            source="utils/tensordict_utils.py make_iterator",
            where=where,
        ),
        _micro(size, each, processes, where),
    )


_MODE = "trainer.v1.trainer_mode"
_SAMPLER = "trainer.v1.sampler.custom_sampler.path"

CHECKS: tuple[Check | Demand, ...] = (
    # Anybody may register a trainer (trainer/ppo/v1/trainer_base.py `register_trainer`), or give the samples of a rollout another way.
    Demand(
        f"not v1 or {_MODE} is None or {_MODE} in ('sync', 'colocate_async', 'separate_async')",
        f"{_MODE}={{{_MODE}}} is a trainer of somebody's own, which verl does not have and which was not read",
        about=_MODE,
    ),
    Demand(
        f"not v1 or {_SAMPLER} is None",
        f"{_SAMPLER} gives the samples of a rollout in a way of its own, which was not read: a run may train fewer, or end early",
        about=_SAMPLER,
    ),
    _one_copy("configured_gpus", "configured_processes", "asked is None"),
    _one_copy("gpus", "critic.world_size", "critic"),
    # Up to 0.5 with token counts too (ray_trainer.py 0.2:388-391, 0.5.0:414-418).
    Check(
        f"data.train_batch_size * {GROUP} % batch_multiple == 0",
        f"AssertionError: real_train_batch_size ({{data.train_batch_size * {GROUP}}}) must be divisible by "
        "{'minimal possible batch size' if release >= (0, 4) else 'total n_gpus'} ({batch_multiple})",
        fix="choose train_batch_size x rollout.n as a multiple of {batch_multiple}",
        when=_START,
        source="{'utils/config.py validate_config' if has_config_classes else 'trainer/ppo/ray_trainer.py _validate_config'}",
        where=f"not has_config_classes or not {ACTOR}.use_dynamic_bsz",
    ),
    _given(
        "actor",
        ACTOR,
        "sized",
        "AssertionError: [actor] Please set at least one of 'actor.ppo_micro_batch_size' or 'actor.ppo_micro_batch_size_per_gpu' if "
        "use_dynamic_bsz is not enabled.",
        f"{ACTOR}.use_dynamic_bsz",
        "",
    ),
    Check(
        f"{ACTOR}.ppo_micro_batch_size_per_gpu is not None",
        "AssertionError: actor.ppo_micro_batch_size_per_gpu is not None",
        fix="set actor.ppo_micro_batch_size_per_gpu",
        when=_BUILT,
        source="workers/engine_workers.py ActorRolloutRefWorker.init_model",
        where=f"not legacy and not {ACTOR}.use_dynamic_bsz",
    ),
    _fills("actor", MINIBATCH, f"{ACTOR}.use_dynamic_bsz", ""),
    _given(
        "critic",
        "critic",
        "critic_sized",
        "ValueError: [critic] Please set at least one of 'critic.micro_batch_size' or 'critic.micro_batch_size_per_gpu'.",
        "critic_checked",
        "critic and ",
    ),
    _fills("critic", "critic_minibatch", "critic_checked", "critic and "),
    Check(
        "data.train_batch_size % loader_batch == 0",
        "ValueError: num_prompts ({data.train_batch_size}) must be a positive multiple of gen_batch_size ({loader_batch}); it is "
        "submitted in whole gen_batch_size dataloader fetches.",
        fix="choose data.gen_batch_size as a divisor of data.train_batch_size, or leave it out",
        when="at the first rollout",
        source="trainer/ppo/v1/trainer_base.py _next_train_batch",
        where="v1",
    ),
    Check(
        f"data.train_batch_size == calls * {MINIBATCH}",
        "AssertionError: train_batch_size must equal parameter_sync_step * ppo_mini_batch_size in separate async training",
        fix=f"choose train_batch_size {{calls * {MINIBATCH}}}",
        when=_START,
        source=_SEPARATE,
        where="separate",
    ),
    # What separate_async asks of its engine (trainer_separate_async.py 0.9.1:68-74).
    Check(
        f"({ROLLOUT}.nnodes or 0) > 0",
        "AssertionError: nnodes must be > 0 in separate async training",
        fix=f"set {ROLLOUT}.nnodes to the nodes that generate",
        when=_START,
        source=_SEPARATE,
        where="separate",
    ),
    Check(
        f"({ROLLOUT}.checkpoint_engine.backend or 'naive') != 'naive'",
        "AssertionError: please use nccl/nixl/mooncake, etc. backend for separate async training",
        fix=f"set {ROLLOUT}.checkpoint_engine.backend, for instance to nccl",
        when=_START,
        source=_SEPARATE,
        where=f"separate and ({ROLLOUT}.nnodes or 0) > 0",
    ),
    Check(
        "algorithm != 'ReMax' or evaluates_only",
        "TypeError: compute_remax_outcome_advantage() missing 1 required positional argument: 'reward_baselines'",
        fix="choose trainer.use_v1=False, whose trainer generates the greedy baselines, or another adv_estimator",
        when=_TRAINED,
        source="trainer/ppo/v1/trainer_base.py _compute_advantage",
        where="v1",
    ),
    *_legacy("actor", "world_size", "share", GROUP, "micro", "policy_strategy", "legacy"),
    *_legacy(
        "critic",
        "critic.world_size",
        "critic_share",
        f"({GROUP} if critic_counts_prompts else 1)",
        "critic_micro",
        "critic_strategy",
        "legacy and critic",
    ),
    *_whole("samples_per_update", MINIBATCH, "world_size", "micro", "not legacy"),
    *_whole(
        "critic.samples_per_update", "critic_minibatch", "critic.world_size", "critic_micro", "not legacy and critic"
    ),
    *(
        _micro(samples, each, "world_size", where)
        for samples, where in (("trained", ""), ("warmup_trained", "trainer.critic_warmup > 1"))
        for each in ("logprob_micro", "reference_micro")
    ),
    Check(
        "rows >= prompts_per_rollout",
        "{'ZeroDivisionError' if pads else 'AssertionError: Train dataloader is empty!'}",
        fix="{rows} rows do not fill a single rollout: choose data.train_batch_size {rows} or smaller",
        when=_START,
        source="{'trainer/ppo/v1/trainer_base.py fit' if v1 else 'trainer/ppo/ray_trainer.py _create_dataloader'}",
        where="not filtered",
    ),
)
