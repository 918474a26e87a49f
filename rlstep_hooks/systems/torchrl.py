"""torchrl's PPO scripts: sizes in frames (of which Atari skips three in four), a rate per update, whole rollouts.

Read in the wheel of 0.10.0 and at commit ae9719f (0.14): sota-implementations/ppo/ppo_mujoco.py, ppo_atari.py and their configuration
files, torchrl/data/replay_buffers/samplers.py `SamplerWithoutReplacement`, torchrl/collectors/collectors.py `__len__`. The sampler of
0.10.0 was run: its last batch is short, not filled up as its documentation says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.minibatches import rollouts_of
from rlstep_hooks.planning.phases import Passes, equal_minibatches, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading, multiples, nearest
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.reader import Reader, Request, release_of

if TYPE_CHECKING:
    from collections.abc import Mapping

FRAME_SKIP = 4
"""Frames of one timestep in ppo_atari.py."""

MUJOCO: dict[str, Any] = {
    "env.num_envs": 1,
    "collector.frames_per_batch": 2048,
    "collector.total_frames": 1_000_000,
    "loss.mini_batch_size": 64,
    "loss.ppo_epochs": 10,
    "optim.anneal_lr": True,
}
ATARI: dict[str, Any] = {
    "env.num_envs": 8,
    "collector.frames_per_batch": 4096,
    "collector.total_frames": 40_000_000,
    "loss.mini_batch_size": 1024,
    "loss.ppo_epochs": 3,
    "optim.anneal_lr": True,
}


class TorchRL(Reader):
    """sota-implementations/ppo."""

    name = "torchrl"
    title = "torchrl"
    version = "0.10.0"
    overrides = True

    def defaults(self, version: str) -> Mapping[str, Any]:
        """None in common: each script has its own configuration file."""
        return {}

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        settings = request.settings
        atari = "atari" in request.command.program.name
        own, skip = (ATARI, FRAME_SKIP) if atari else (MUJOCO, 1)
        script = f"torchrl {request.version} sota-implementations/ppo/ppo_{'atari' if atari else 'mujoco'}.py"
        sizes = {name: settings.optional_count(name) or int(own[name]) for name in own if name != "optim.anneal_lr"}
        samples, size = sizes["collector.frames_per_batch"] // skip, sizes["loss.mini_batch_size"] // skip
        timesteps, environments = sizes["collector.total_frames"] // skip, sizes["env.num_envs"]
        epochs = sizes["loss.ppo_epochs"]
        if samples % environments:
            raise LaunchError(
                f"{samples} timesteps on {environments} environments are not read: the collector rounds them up, past the buffer",
                settings.place("collector.frames_per_batch"),
            )
        if size == 0 or samples % size:
            raise PlanError(
                f"IndexError: index {samples // max(size, 1)} is out of bounds for dimension 1 with size {samples // max(size, 1)}",
                when="in the first pass over the first rollout, at the short last mini-batch",
                fix=f"loss.mini_batch_size = {_divisors(min(size, samples + 1), samples, skip)}, or "
                f"collector.frames_per_batch = {multiples(samples * skip, max(size, 1) * skip)}",
                source=f"{script} losses[j, k]",
            )
        rollouts = rollouts_of(timesteps, samples, "up")
        per_rollout = epochs * (samples // size)
        horizon = timesteps // samples * per_rollout
        formulas = _formulas(script, skip)
        schedule = schedule_in_phases(
            framework=self.title,
            version=request.version,
            algorithm="PPO",
            passes=Passes.without_rows(rollouts),
            prompts_per_rollout=environments,
            samples_per_prompt=samples // environments,
            minibatches=equal_minibatches(samples, samples // size),
            reuse_epochs=epochs,
            microbatches_per_update=1,
            old_logprob_source="at_rollout",
            lr_clock="update",
            lr_horizon=horizon,
            step_unit="timestep",
            step_means=f"collected frames: {samples * skip} for each rollout"
            + (f", {skip} for each timestep" if atari else ""),
            settings=sizes,
            formulas=formulas,
        )
        anneals = settings.flag("optim.anneal_lr") if settings.is_given("optim.anneal_lr") else True
        clamped = release_of(request.version) >= (0, 14) and not atari
        return Reading(
            schedule=schedule,
            formulas=formulas,
            notes=tuple(_notes(rollouts * samples, timesteps, skip, anneals, clamped)),
            facts={"lr_constant": not anneals, "lr_warmup": 0},
        )


def _divisors(size: int, samples: int, skip: int) -> str:
    """The mini-batches next to `size` that divide a rollout, in frames."""
    return nearest(size * skip, lambda frames: frames % skip == 0 and samples % (frames // skip) == 0)


def _formulas(script: str, skip: int) -> tuple[Formula, ...]:
    frames = f" / {skip}" if skip > 1 else ""
    rollout = f"floor(collector.frames_per_batch{frames})"
    size = f"floor(loss.mini_batch_size{frames})"
    total = f"floor(collector.total_frames{frames})"
    return (
        Formula("samples_per_rollout", rollout, f"{script} frames_per_batch"),
        Formula("samples_per_update", size, f"{script} mini_batch_size"),
        Formula("updates_per_rollout", f"loss.ppo_epochs * {rollout} / {size}", f"{script} main"),
        Formula("rollouts", f"ceil({total} / samples_per_rollout)", "torchrl torchrl/collectors/collectors.py __len__"),
        Formula(
            "lr_horizon",
            f"floor({total} / samples_per_rollout) * updates_per_rollout",
            f"{script} total_network_updates",
        ),
    )


def _notes(collected: int, timesteps: int, skip: int, anneals: bool, clamped: bool) -> list[Note]:
    notes = []
    if skip > 1:
        notes.append(
            Note("unit", f"frames_per_batch, mini_batch_size and total_frames count frames, {skip} for each timestep")
        )
    if collected != timesteps:
        notes.append(
            Note("grows", f"the run ends at {collected * skip} frames, not {timesteps * skip}: rollouts are whole")
        )
        if anneals:
            rate = "0" if clamped else "0 and below"
            notes.append(
                Note("assumes", f"the learning rate of the last rollout is {rate}: its length was planned without it")
            )
    return notes


READER = TorchRL()
