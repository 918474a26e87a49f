"""Sizes that do not fit each other: OpenRLHF refuses them, or hangs. Said before anything is started."""

from __future__ import annotations

from rlstep_hooks.systems.engine.declaration import Check, Demand
from rlstep_hooks.systems.openrlhf.settings import ALGORITHMS, NEEDS_GROUP

_CLI = "{home} cli/train_ppo_ray.py"
_START = "at the start"

_PROMPTS, _GROUP, _PIECE = "rollout.batch_size", "rollout.n_samples_per_prompt", "rollout.micro_batch_size"
_BATCH, _MICRO = "train.batch_size", "train.micro_batch_size"


def flag_of(name: str) -> str:
    """A setting as the release's command line calls it, in a template."""
    return f"{{flag_name('{name}', openrlhf)}}"


def _of_role(role: str, name: str, gpus: str, processes: str, where: str) -> tuple[Check, ...]:
    """The GPUs of a role must hold whole copies of the model; DeepSpeed checks its batch (config.py `_batch_assertion`)."""
    accumulation = f"{_BATCH} * copies // {_MICRO} // {gpus}"
    each = f"{_MICRO} * {processes}"
    asserted = f"{where} and not dynamic" if where else "not dynamic"
    fix = f"{flag_of(_BATCH)} = {{multiples({_BATCH}, {each})}} (a multiple of {flag_of(_MICRO)} x {{{processes}}} processes)"
    when = f"when the {name} is built, after generation engines and models were started"
    source = "DeepSpeed runtime/config.py _batch_assertion"
    return (
        Check(
            f"{processes} > 0",
            f"{{{gpus}}} GPUs of the {name} cannot hold one copy of the model on {{copies}}",
            fix="{copies} GPUs or more",
            when="when the models are built",
            source="{home} utils/deepspeed/deepspeed.py setup_distributed",
            where=where,
        ),
        Check(
            f"{_BATCH} >= {processes}",
            "ZeroDivisionError: integer division or modulo by zero",
            fix=f"{flag_of(_BATCH)} = {{{processes}}} or more",
            when="after the first rollout",
            source="{home} trainer/ppo_utils/replay_buffer.py setup_dynamic_batch",
            where=f"{where} and dynamic" if where else "dynamic",
        ),
        Check(
            f"{role}accumulation > 0",
            "AssertionError: Gradient accumulation steps: 0 has to be greater than 0",
            fix=fix,
            when=when,
            source=source,
            where=asserted,
        ),
        Check(
            f"{_BATCH} * copies == {_MICRO} * {role}accumulation * {gpus}",
            "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
            f"gradient_acc_step * world_size {{{_BATCH} * copies}} != {{{_MICRO}}} * {{{accumulation}}} * {{{gpus}}}",
            fix=fix,
            when=when,
            source=source,
            where=asserted,
        ),
    )


def _shared(samples: str, processes: str, when: str, where: str) -> tuple[Check, ...]:
    """All processes must get the same number of micro-batches of a rollout, at least one each."""
    looked_at = f"not ranks_generate and not dynamic and {samples} > 0{where}"
    pieces = f"ceil({samples} / {_PIECE})"
    shares = f"shares({samples}, {_PIECE}, {processes}, {_MICRO})"
    fix = (
        f"rollouts of a multiple of {{{processes} * lcm({_PIECE}, {_MICRO})}} samples ({flag_of(_PROMPTS)} x {flag_of(_GROUP)}; with "
        f"{flag_of('data.max_samples')} also the last one)"
    )
    source = "{home} trainer/ray/launcher.py async_run_method_batch"
    return (
        Check(
            f"{pieces} >= {processes}",
            f"ValueError: Insufficient batch size for async_run_method_batch: total_length={{{pieces}}}, "
            f"effective_actors={{{processes}}}",
            fix=fix,
            when=when,
            source=source,
            where=f"{looked_at} and openrlhf >= (0, 9, 9)",
        ),
        Check(
            f"{pieces} >= {processes}",
            f"AssertionError: Total length {{{pieces}}} must be greater than or equal to effective actors {{{processes}}}",
            fix=fix,
            when=when,
            source=source,
            where=looked_at,
        ),
        Check(
            f"min({shares}) == max({shares})",
            f"no message: of {{{processes}}} processes some train {{max({shares})}} micro-batches and others {{min({shares})}}, and "
            "wait for each other until the collective times out",
            fix=fix,
            when=when,
            source=source,
            where=looked_at,
        ),
    )


_LAST = "in the last rollout of an episode, which is smaller"

CHECKS: tuple[Check | Demand, ...] = (
    # Without GAE the critic's model is unset, and only that starts it (train_ppo_ray.py): its machines may be none.
    *(
        Demand(f"{name} >= 1", f"{name} = 0: the critic trains nowhere", about=name, where="critic")
        for name in ("critic.num_nodes", "critic.num_gpus_per_node")
    ),
    Check(
        f"algo.advantage.estimator in {tuple(ALGORITHMS)}",
        f"argument --{flag_of('algo.advantage.estimator')}: invalid choice: {{quoted(algo.advantage.estimator)}} (choose from "
        f"{', '.join(ALGORITHMS)})",
        fix=f"GRPO is {flag_of('algo.advantage.estimator')} = group_norm, REINFORCE++ is reinforce",
        when=_START,
        source=_CLI,
        where="program_kind != 'config'",
    ),
    # The assertions on sizes at the end of cli/train_ppo_ray.py, in its order.
    Check(
        f"{_GROUP} > 1",
        "AssertionError: {algo.advantage.estimator} requires n_samples_per_prompt > 1",
        fix=f"{flag_of(_GROUP)} = 2 or more",
        when=_START,
        source=_CLI,
        where=f"algo.advantage.estimator in {NEEDS_GROUP}",
    ),
    Check(
        "not train.partial_rollout_enable or asynchronous",
        "AssertionError: {'--train.partial_rollout_enable requires --train.async_enable.' if openrlhf >= (0, 11) "
        "else '--partial_rollout requires --async_train.'}",
        fix=f"{flag_of('train.async_enable')} as well, or leave {flag_of('train.partial_rollout_enable')} out",
        when=_START,
        source=_CLI,
    ),
    Check(
        f"generated <= {_PROMPTS} or asynchronous",
        f"AssertionError: --{flag_of('rollout.vllm_generate_batch_size')} > --{flag_of(_PROMPTS)} requires "
        f"--{flag_of('train.async_enable')} (over-sampling needs async queue to buffer extra batches).",
        fix=f"{flag_of('rollout.vllm_generate_batch_size')} = {{{_PROMPTS}}}, or leave it out",
        when=_START,
        source=_CLI,
        where="openrlhf >= (0, 10)",
    ),
    Check(
        f"{_GROUP} > 1",
        "AssertionError: n_samples_per_prompt must be greater than 1 when using dynamic filtering",
        fix=f"{flag_of(_GROUP)} = 2 or more",
        when=_START,
        source=_CLI,
        where="filtered",
    ),
    Check(
        f"{_GROUP} * {_PROMPTS} // {_PIECE} >= world_size",
        "AssertionError: The number of sample batches must be greater than or equal to the effective number of actor processes. "
        f"({{{_GROUP}}} * {{{_PROMPTS}}} // {{{_PIECE}}} < {{world_size}})",
        fix=f"{{flag_name('{_PIECE}', openrlhf) + ' = ' + quoted({_GROUP} * {_PROMPTS} // world_size) + ' or smaller' "
        f"if {_GROUP} * {_PROMPTS} // world_size "
        f"else 'at most ' + quoted({_GROUP} * {_PROMPTS} // {_PIECE}) + ' processes'}}",
        when=_START,
        source=_CLI,
        where="not ranks_generate",
    ),
    Check(
        "train.async_queue_size > 0",
        "ValueError: async_queue_size must be positive, got {train.async_queue_size}",
        fix=f"{flag_of('train.async_queue_size')} = 1",
        when="when the trainer is built",
        source="{home} trainer/ppo_trainer_async.py PPOTrainerAsync",
        where="openrlhf >= (0, 9, 1) and asynchronous",
    ),
    Check(
        "actor_gpus == vllm.num_engines * vllm.tensor_parallel_size",
        "AssertionError: actor_num_nodes * actor_num_gpus_per_node must be equal to vllm_num_engines * "
        "vllm_tensor_parallel_size, got {actor_gpus} and {vllm.num_engines * vllm.tensor_parallel_size}",
        fix=f"{flag_of('vllm.num_engines')} x {flag_of('vllm.tensor_parallel_size')} = {{actor_gpus}}",
        when=_START,
        source=f"{_CLI} train",
        where="train.colocate_all and vllm.num_engines and not asynchronous",
    ),
    *_of_role("", "actor", "actor_gpus", "world_size", where=""),
    *_of_role("critic_", "critic", "critic_gpus", "critic.world_size", where="critic"),
    Check(
        f"{_PROMPTS} >= world_size",
        "ValueError: batch_size should be a positive integer value, but got batch_size=0",
        fix="rollout_batch_size = {world_size} or more",
        when="when the policy is built",
        source="{home} trainer/ray/ppo_actor.py prepare_datasets",
        where="ranks_generate",
    ),
    *(
        check
        for processes, where in (("world_size", ""), ("critic.world_size", " and critic"))
        for samples, when in (("samples_per_rollout", "in the first rollout"), ("samples_of_last_rollout", _LAST))
        for check in _shared(samples, processes, when, where)
    ),
    # The parameters of PEFT's wrapper are sent under its names, and vLLM's model has none of these. Raised by 0.11.2 with vLLM 0.32;
    # the same loop was read in 0.5.7, 0.9.9, 0.10.3 and 0.11.0. Reported: OpenRLHF issues 546, 991, 1081.
    Check(
        "ds.lora.rank <= 0",
        "ValueError: There is no module or parameter named 'base_model' in vLLM's model: OpenRLHF sends the weights of an adapter "
        "under the names that PEFT gives them",
        fix=f"{flag_of('ds.lora.rank')} = 0",
        when="at the first sync of the weights, after the first updates",
        source="{home} trainer/ray/ppo_actor.py broadcast_to_vllm",
        where="vllm.num_engines",
    ),
)
"""All refusals, in the order in which a run meets them."""
