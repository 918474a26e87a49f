"""Which of verl's trainers runs, for which algorithm, and on how many processes each role trains.

Lines are those of verl 0.9.1 unless another release is named.
"""

from __future__ import annotations

from rlstep_hooks.systems.verl.settings import ACTOR, MEGATRON_PARALLEL

_MODE = "trainer.v1.trainer_mode"


def _strategy(role: str) -> str:
    """What trains a role: the configuration's name or `model_engine` chooses for both roles, unless they say it themselves."""
    return f"({role}.strategy or 'fsdp') if given({role}.strategy) else engine"


def gpus_of_megatron(role: str, engine: str = "megatron") -> str:
    """GPUs that work on the same samples in Megatron, or in an engine that is made of it."""
    return " * ".join(f"({role}.{engine}.{name}_parallel_size or 1)" for name in MEGATRON_PARALLEL)


def is_megatron(strategy: str) -> str:
    """Whether Megatron trains a role: MindSpeed's engine of copies after 0.8 derives from Megatron's (workers/engine)."""
    return f"({strategy} == 'megatron' or {strategy} == 'mindspeed')"


def _gpus_of_process(role: str, strategy: str, sequence: str) -> str:
    """GPUs that work on the same samples (`get_data_parallel_size` of the engines in workers/engine).

    Args:
        role: Section of the role.
        strategy: Name of its strategy.
        sequence: Sequence-parallel processes as the engine's section says.
    """
    # The setting of the role is the older one; above 1 it replaces the engine's (workers/config/actor.py:328-329).
    older = f"{role}.ulysses_sequence_parallel_size"
    return (
        f"{gpus_of_megatron(role)} if {strategy} == 'megatron' "
        f"else {gpus_of_megatron(role, 'mindspeed')} if {strategy} == 'mindspeed' "
        f"else ({role}.veomni.ulysses_parallel_size or 1) if {strategy} == 'veomni' "
        f"else {older} if {older} is not None and {older} > 1 else ({sequence} or 1)"
    )


def _processes(role: str, gpus: str, strategy: str, sequence: str) -> str:
    """W: processes that train on different samples; torchtitan's are given, and not what a process takes.

    Args:
        role: Section of the role.
        gpus: Name of the GPUs that it has.
        strategy: Name of its strategy.
        sequence: Sequence-parallel processes as the engine's section says.
    """
    titan = " * ".join(f"({role}.torchtitan.data_parallel_{name}_size or 1)" for name in ("shard", "replicate"))
    return f"{titan} if {strategy} == 'torchtitan' else {gpus} // ({_gpus_of_process(role, strategy, sequence)})"


_OF_POLICY = (ACTOR, "policy_strategy", f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size")
_OF_CRITIC = (
    "critic",
    "critic_strategy",
    "(critic.fsdp.ulysses_sequence_parallel_size if critic_has_engine_section "
    "else critic.model.fsdp_config.ulysses_sequence_parallel_size)",
)

TRAINERS: dict[str, str] = {
    # What the program sets, whatever the launch says (recipe/dapo/main_dapo.py, trainer/main_ppo_sync.py 0.8.0).
    "dapo": "program_kind != 'config' and (ends(program, 'main_dapo') or ends(program, 'main_dapo.py'))",
    "sets_v0": "dapo or one_step_off "
    "or (program_kind != 'config' and (ends(program, 'main_ppo_v0') or ends(program, 'main_ppo_v0.py')))",
    # Its configuration turns the bypass on (experimental/one_step_off_policy/config/one_step_off_ppo_trainer.yaml).
    # A live configuration is read with its name (`plan_config`).
    "one_step_off": "program == 'verl.experimental.one_step_off_policy.main_ppo' "
    "or program_kind != 'config' and 'one_step_off_policy' in program",
    "sets_queue": "program_kind != 'config' and (ends(program, 'main_ppo_sync') or ends(program, 'main_ppo_sync.py'))",
    # The trainers of `trainer/ppo/v1`, each by its mode; 0.8's `main_ppo_sync`; else RayPPOTrainer, with engine workers or legacy ones.
    "v1": "has_v1 and not sets_v0 and (trainer.use_v1 is None or trainer.use_v1)",
    "colocated": f"v1 and {_MODE} == 'colocate_async'",
    "separate": f"v1 and {_MODE} == 'separate_async'",
    "synchronous": "v1 and not colocated and not separate",
    "queued": "has_queue and (sets_queue or transfer_queue.enable)",
    "legacy": "has_legacy_workers and (trainer.use_legacy_worker_impl or 'auto') != 'disable'",
    # A rollout is filled up until it divides.
    "pads": "v1 or queued",
    # `val_only` is read after the validation before training, and nowhere else (trainer_base.py:440, ray_trainer.py:1447).
    "evaluates_only": "trainer.val_only and (trainer.val_before_train is None or trainer.val_before_train)",
    # An agent loop that verl does not ship may give several samples for a session, or none.
    "own_loop": "actor_rollout_ref.rollout.agent.agent_loop_manager_class is not None "
    "or not shipped_loop(actor_rollout_ref.rollout.agent.default_agent_loop, "
    "actor_rollout_ref.rollout.agent.agent_loop_config_path)",
    # The algorithm. `need_critic`, trainer/ppo/utils.py:96-107: `critic.enable`, or GAE where that is not set.
    "algorithm": "algorithm_named(algorithm.adv_estimator)",
    "critic": "critic.enable if critic.enable is not None else algorithm.adv_estimator == 'gae'",
    # `need_reference_policy`, trainer/ppo/utils.py:75-79.
    "uses_reference": f"algorithm.use_kl_in_reward or {ACTOR}.use_kl_loss",
    "reference_source": "'at_rollout' if always_has_reference or uses_reference else 'none'",
    # Whether the engine's log-probs stand in for recomputed ones.
    "bypass": "True if one_step_off and not given(algorithm.rollout_correction.bypass_mode) "
    "else algorithm.rollout_correction.bypass_mode",
    # The engines, and GPUs of all nodes. With `--world-size` there are as many as give the policy that many processes.
    "engine": "model_engine or ('megatron' if 'megatron' in (config_name or '') else 'veomni' if 'veomni' in (config_name or '') "
    "else 'torchtitan' if 'torchtitan' in (config_name or '') else 'dp')",
    "policy_strategy": _strategy(ACTOR),
    "critic_strategy": _strategy("critic"),
    "configured_gpus": "trainer.n_gpus_per_node * trainer.nnodes",
    "configured_processes": _processes(_OF_POLICY[0], "configured_gpus", *_OF_POLICY[1:]),
    "asked": "asked_processes(launch)",
    "gpus": "configured_gpus if asked is None else asked * (configured_gpus // configured_processes "
    f"if policy_strategy == 'torchtitan' else {_gpus_of_process(*_OF_POLICY)})",
    "world_size": _processes(_OF_POLICY[0], "gpus", *_OF_POLICY[1:]),
    "critic.world_size": _processes(_OF_CRITIC[0], "gpus", *_OF_CRITIC[1:]),
    # What verl wants T*n to be a multiple of: `minimal_bsz` of `validate_config`, utils/config.py:103-120.
    "batch_multiple": f"world_size * ({ACTOR}.ppo_micro_batch_size_per_gpu or 1) if {is_megatron('policy_strategy')} else gpus",
}
"""Quantities of `rlstep_hooks.systems.verl.system`."""
