"""Which program belongs to which reader. Data only, so that recognising a launch imports no reader but the one that fits."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.text import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.systems.reader import Reader


class Entry(msgspec.Struct, frozen=True):
    """How one system is recognised."""

    name: str
    """Name of the reader and of its module in `rlstep_hooks.systems`."""
    programs: tuple[str, ...] = ()
    """Patterns of `Program.matches`: "module:verl.trainer.main_ppo", "script:train_ppo_ray.py", "executable:trl grpo"."""
    keys: tuple[str, ...] = ()
    """Settings of which one is enough to know the system: for configuration files and for scripts with common names."""
    calls: tuple[str, ...] = ()
    """Classes or functions of which a Python file calls one."""
    with_key: str = ""
    """A setting that must be there as well, where the program alone is not enough."""


ENTRIES: tuple[Entry, ...] = (
    Entry("paper", programs=("executable:paper",), keys=("prompts_per_rollout",)),
    # Forks and relatives stand before the system whose program they share; what tells them apart is `with_key`.
    Entry(
        "trlx",
        calls=("TRLConfig",),
        keys=("method.num_rollouts", "PPOConfig.num_rollouts"),
    ),
    Entry(
        "trl_ppo",
        programs=("script:scripts/ppo/*.py", "script:ppo_tldr.py", "script:rloo_tldr.py"),
        keys=(
            "num_ppo_epochs",
            "rloo_k",
            "PPOConfig.num_ppo_epochs",
            "PPOConfig.num_mini_batches",
            "PPOConfig.total_episodes",
            "PPOConfig.per_device_train_batch_size",
            "PPOv2Config.num_ppo_epochs",
            "PPOv2Config.num_mini_batches",
            "PPOv2Config.total_episodes",
            "RLOOConfig.rloo_k",
            "RLOOConfig.num_ppo_epochs",
        ),
    ),
    Entry(
        "trl_ppo_step",
        keys=("PPOConfig.mini_batch_size", "PPOConfig.ppo_epochs", "PPOConfig.batch_size"),
        programs=("script:stack_llama/scripts/rl_training.py", "script:examples/scripts/ppo.py"),
    ),
    Entry(
        "trl",
        programs=(
            "executable:trl grpo",
            "executable:trl rloo",
            "module:trl.scripts.grpo",
            "module:trl.scripts.rloo",
            "script:trl/scripts/grpo.py",
            "script:trl/scripts/rloo.py",
            "module:open_r1.grpo",
            "script:open_r1/grpo.py",
        ),
        calls=("GRPOConfig", "RLOOConfig", "GRPOTrainer", "RLOOTrainer"),
        keys=("num_generations", "steps_per_generation"),
    ),
    Entry(
        "llamafactory",
        programs=(
            "executable:llamafactory-cli train",
            "module:llamafactory.cli",
            "script:src/train.py",
            "script:src/train_bash.py",
        ),
        keys=("ppo_buffer_size",),
    ),
    Entry(
        "swift",
        programs=(
            "executable:swift rlhf",
            "executable:megatron rlhf",
            "module:swift.cli.rlhf",
            "script:swift/cli/rlhf.py",
        ),
        keys=("rlhf_type",),
    ),
    Entry("rllm", keys=("rllm.backend", "rllm.algorithm.use_rllm", "rllm.trainer.total_batches")),
    Entry(
        "tinyzero",
        programs=("module:verl.trainer.main_ppo",),
        with_key="trainer.default_hdfs_dir",
    ),
    Entry("simplerl", programs=("executable:*train_grpo_math_tune_ray.sh", "script:train_grpo_math_tune_ray.sh")),
    Entry("simplerl", programs=("module:verl.trainer.main_ppo",), with_key="trainer.remove_clip"),
    Entry(
        "verl",
        programs=(
            "module:verl.trainer.main_ppo",
            "module:verl.trainer.main_ppo_sync",
            "module:recipe.*.main_*",
            "module:verl.experimental.*",
            "script:verl/trainer/main_ppo.py",
            "module:verl.trainer.main",
        ),
        keys=("actor_rollout_ref.actor.ppo_mini_batch_size", "data.gen_batch_size"),
    ),
    Entry("simplerl_v0", programs=("script:train_ppo_ray_box.py", "module:openrlhf.cli.train_ppo_ray_box")),
    Entry(
        "openrlhf",
        programs=(
            "module:openrlhf.cli.train_ppo_ray",
            "module:openrlhf.cli.train_ppo",
            "script:train_ppo_ray.py",
            "script:train_ppo.py",
        ),
    ),
    Entry(
        "skyrl",
        programs=("module:skyrl_train.entrypoints.*", "module:skyrl.train.entrypoints.*", "module:examples.*.main_*"),
        keys=("trainer.policy_mini_batch_size", "trainer.update_epochs_per_batch", "generator.n_samples_per_prompt"),
    ),
    Entry(
        "nemo_rl",
        programs=("script:run_grpo.py", "script:run_grpo_*.py", "script:run_vlm_grpo.py", "script:run_ppo.py"),
        keys=("grpo.num_prompts_per_step", "ppo.num_prompts_per_step"),
    ),
    Entry(
        "nemo_aligner",
        programs=("script:train_gpt_ppo_actor.py", "script:train_gpt_reinforce_actor.py"),
        keys=("model.ppo.num_rollout_samples", "model.reinforce.num_rollout_samples"),
    ),
    Entry(
        "roll",
        programs=("script:start_rlvr_pipeline.py", "script:start_agentic_pipeline.py", "module:roll.pipeline.*"),
        keys=("actor_train.training_args.per_device_train_batch_size", "num_return_sequences_in_group"),
    ),
    Entry(
        "areal",
        programs=(
            "module:areal.launcher.*",
            "module:areal.infra.launcher.*",
            "script:gsm8k_grpo.py",
            "script:boba_grpo.py",
            "script:gsm8k_rl.py",
        ),
        keys=("actor.ppo_n_minibatches", "gconfig.n_samples"),
    ),
    Entry(
        "prime_rl",
        programs=(
            "executable:rl",
            "executable:rl @",
            "module:prime_rl.entrypoints.rl",
            "executable:orchestrator",
            "module:prime_rl.entrypoints.orchestrator",
        ),
        keys=("orchestrator.batch_size", "orchestrator.rollouts_per_example", "orchestrator.group_size"),
    ),
    Entry(
        "open_instruct",
        programs=("script:open_instruct/grpo_fast.py", "script:grpo_fast.py", "module:open_instruct.grpo_fast"),
        keys=("num_unique_prompts_rollout", "num_samples_per_prompt_rollout"),
    ),
    Entry(
        "torchtune",
        programs=(
            "executable:tune run *ppo*",
            "executable:tune run *grpo*",
            "script:ppo_full_finetune_single_device.py",
            "script:grpo_full_finetune_distributed.py",
        ),
        keys=("ppo_batch_size", "grpo_samples"),
    ),
    Entry(
        "oat",
        programs=("script:train_zero_math.py", "module:oat.experiment.*", "script:oat/experiment/*.py"),
        keys=("pi_buffer_maxlen_per_device",),
    ),
    Entry(
        "open_reasoner_zero",
        programs=("module:playground.*", "script:playground/orz_*.py", "script:orz_*.py"),
        keys=("PPOExpConfig.policy_update_steps", "exp.policy_update_steps", "exp.critic_update_steps"),
    ),
    Entry(
        "slime",
        programs=("script:train.py", "script:train_async.py"),
        with_key="rollout_batch_size",
        keys=("num_steps_per_rollout", "num_rollout"),
    ),
    Entry(
        "deepspeed_chat",
        programs=("script:step3_rlhf_finetuning/main.py", "script:main.py"),
        with_key="per_device_generation_batch_size",
        keys=("per_device_generation_batch_size", "generation_batches"),
    ),
    Entry(
        "baselines",
        programs=("module:baselines.run",),
        keys=("nminibatches", "noptepochs", "learn.nminibatches", "learn.noptepochs"),
    ),
    Entry(
        "sb3",
        programs=("module:rl_zoo3.train", "module:rl_zoo3", "script:rl_zoo3/train.py", "executable:rl_zoo3"),
        calls=("make_vec_env", "make_atari_env"),
        keys=("PPO.n_steps", "PPO.n_epochs", "PPO.0", "A2C.n_steps", "A2C.0"),
    ),
    Entry(
        "torchrl",
        programs=("script:ppo_mujoco.py", "script:sota-implementations/ppo/*.py"),
        keys=("collector.frames_per_batch",),
    ),
    Entry(
        "cleanrl",
        programs=(
            "script:cleanrl/ppo*.py",
            "script:ppo_atari_*.py",
            "script:ppo_continuous_action.py",
            "script:ppo_pettingzoo_ma_atari.py",
            "script:ppo_procgen.py",
            "script:ppo_rnd_envpool.py",
        ),
        # `ppo.py` and `ppo_atari.py` alone may be anyone's.
        keys=("num_minibatches", "update_epochs", "Args.num_minibatches", "Args.update_epochs"),
    ),
    Entry(
        "rllib",
        calls=("AlgorithmConfig",),
        keys=(
            "training.train_batch_size_per_learner",
            "training.minibatch_size",
            "training.num_epochs",
            "training.num_sgd_iter",
            "train_batch_size_per_learner",
        ),
    ),
    Entry(
        "lm_human_preferences",
        keys=("ppo.noptepochs", "ppo.nminibatches", "ppo.total_episodes", "ppo.batch_size"),
    ),
)
"""All systems, the more special before the more general."""

BY_NAME = {entry.name: entry for entry in ENTRIES}


def reader_of(name: str) -> Reader:
    """The reader of a system.

    Raises:
        LaunchError: There is none of that name.
    """
    if not exists(name):
        raise LaunchError(f"there is no framework {name!r}; there are {', '.join(names())}")
    home = f"rlstep_hooks.systems.{name}"
    spec = find_spec(home)
    observed_too = spec is not None and spec.submodule_search_locations is not None
    reader: Reader = import_module(f"{home}.launch" if observed_too else home).READER
    return reader


def exists(name: str) -> bool:
    """Whether a system can be read."""
    return name in BY_NAME and find_spec(f"rlstep_hooks.systems.{name}") is not None


def names() -> list[str]:
    """All systems that can be read."""
    return [name for name in BY_NAME if exists(name)]


def recognise(command: Command, keys: Iterable[str]) -> str | None:
    """The system that a command belongs to, or None.

    Args:
        command: The command.
        keys: Names of the settings that it gives, in arguments and configuration files ("Callee.keyword" in Python files).
    """
    given = set(keys)
    callees = {key.partition(".")[0] for key in given}
    for entry in ENTRIES:
        if entry.with_key and entry.with_key not in given:
            continue
        if any(command.program.matches(pattern) for pattern in entry.programs) and exists(entry.name):
            return entry.name
    if command.program.kind == "executable":
        return None
    for entry in ENTRIES:
        if (given.intersection(entry.keys) or callees.intersection(entry.calls)) and exists(entry.name):
            return entry.name
    return None
