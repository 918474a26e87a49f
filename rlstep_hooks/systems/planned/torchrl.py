"""torchrl's PPO scripts: sizes count frames (a timestep of Atari is four), the learning rate changes at each update, rollouts are
whole.

Read in the wheel of 0.10.0 and at commit ae9719f (0.14): sota-implementations/ppo/ppo_mujoco.py, ppo_atari.py and their configuration
files, torchrl/data/replay_buffers/samplers.py `SamplerWithoutReplacement`, torchrl/collectors/collectors.py `__len__`. The sampler of
0.10.0 was run: its last batch is short, not filled up as its documentation says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.engine.declaration import (
    Check,
    Demand,
    Entry,
    Formula,
    Note,
    System,
    count,
    flag,
    program_assumed,
)

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.request import Request

FRAME_SKIP = 4
"""Frames of one timestep in ppo_atari.py."""
MUJOCO: dict[str, Any] = {
    "env.num_envs": 1,
    "collector.frames_per_batch": 2048,
    "collector.total_frames": 1_000_000,
    "loss.mini_batch_size": 64,
    "loss.ppo_epochs": 10,
}
ATARI: dict[str, Any] = {
    "env.num_envs": 8,
    "collector.frames_per_batch": 4096,
    "collector.total_frames": 40_000_000,
    "loss.mini_batch_size": 1024,
    "loss.ppo_epochs": 3,
}


def _of_script(launch: Request) -> dict[str, Any]:
    """The configuration file of the script that is launched."""
    return ATARI if "atari" in launch.command.program.name else MUJOCO


SYSTEM = System(
    name="torchrl",
    title="torchrl",
    version="0.10.0",
    recognised=(
        Entry(
            "torchrl",
            programs=("script:ppo_mujoco.py", "script:sota-implementations/ppo/*.py"),
            keys=("collector.frames_per_batch",),
        ),
    ),
    overrides=True,
    defaults_of=_of_script,
    settings={
        "env.num_envs": count(),
        "collector.frames_per_batch": count(),
        "collector.total_frames": count(),
        "loss.mini_batch_size": count(),
        "loss.ppo_epochs": count(),
        "optim.anneal_lr": flag(True),
    },
    shown=tuple(MUJOCO),
    let={
        "atari": "'atari' in program",
        "skip": f"{FRAME_SKIP} if atari else 1",
        "script": "'torchrl ' + version + ' sota-implementations/ppo/ppo_' + ('atari' if atari else 'mujoco') + '.py'",
        "timesteps": "floor(collector.total_frames / skip)",
        "size": "floor(loss.mini_batch_size / skip)",
        "world_size": "1",
        "prompts_per_rollout": "env.num_envs",
        "samples_per_prompt": "samples_per_rollout // env.num_envs",
        "reuse_epochs": "loss.ppo_epochs",
        "collected": "rollouts * samples_per_rollout",
        "annealed_to": "'0' if release >= (0, 14) and not atari else '0 and below'",
    },
    always={
        "algorithm": "PPO",
        "loader": "none",
        "microbatches_per_update": 1,
        "old_logprob_source": "at_rollout",
        "lr_clock": "update",
        "step_unit": "timestep",
        "step_means": "collected frames: {samples_per_rollout * skip} for each rollout"
        "{', 4 for each timestep' if atari else ''}",
    },
    formulas=(
        Formula("samples_per_rollout", "floor(collector.frames_per_batch / skip)", "{script} frames_per_batch"),
        Formula("samples_per_update", "size", "{script} mini_batch_size"),
        Formula("updates_per_rollout", "loss.ppo_epochs * samples_per_rollout / size", "{script} main"),
        Formula(
            "rollouts", "ceil(timesteps / samples_per_rollout)", "torchrl torchrl/collectors/collectors.py __len__"
        ),
        Formula(
            "lr_horizon",
            "floor(timesteps / samples_per_rollout) * updates_per_rollout",
            "{script} total_network_updates",
        ),
    ),
    checks=(
        Demand(
            "samples_per_rollout % env.num_envs == 0",
            "{samples_per_rollout} timesteps on {env.num_envs} environments are not read: "
            "the collector rounds them up, past the buffer",
            about="collector.frames_per_batch",
        ),
        Check(
            "size and samples_per_rollout % size == 0",
            "IndexError: index {samples_per_rollout // max(size, 1)} is out of bounds for dimension 1 with size "
            "{samples_per_rollout // max(size, 1)}",
            fix="loss.mini_batch_size = {nearest(min(size, samples_per_rollout + 1) * skip, "
            "it % skip == 0 and samples_per_rollout % (it // skip) == 0)}, or collector.frames_per_batch = "
            "{multiples(samples_per_rollout * skip, max(size, 1) * skip)}",
            when="in the first pass over the first rollout, at the short last mini-batch",
            source="{script} losses[j, k]",
        ),
    ),
    notes=(
        program_assumed("ppo_mujoco.py", "not atari"),
        Note(
            "unit", "frames_per_batch, mini_batch_size and total_frames count frames, {skip} for each timestep", "atari"
        ),
        Note(
            "grows",
            "the run ends at {collected * skip} frames, not {timesteps * skip}: rollouts are whole",
            "collected != timesteps",
        ),
        Note(
            "assumes",
            "the learning rate of the last rollout is {annealed_to}: the schedule was made without that rollout",
            "collected != timesteps and optim.anneal_lr",
        ),
    ),
    facts={"lr_constant": "not optim.anneal_lr", "lr_warmup": "0"},
)
