"""CleanRL's PPO scripts: size of a mini-batch by floor division, an extra one where that leaves samples over.

Read at commit fe8d8a0 (2026-04-20): cleanrl/ppo.py and its variants (dataclass `Args`, the loop under `__main__`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.calls import names_of
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.counting import countable
from rlstep_hooks.planning.minibatches import cut_by_count_floored, rollouts_of
from rlstep_hooks.planning.phases import Passes, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading, nearest
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.reader import Reader, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings

_LOOP = "CleanRL fe8d8a0 cleanrl/{}.py"

_ATARI = {
    "total_timesteps": 10_000_000,
    "num_envs": 8,
    "num_steps": 128,
    "num_minibatches": 4,
    "update_epochs": 4,
    "anneal_lr": True,
}
SCRIPTS: dict[str, dict[str, Any]] = {
    "ppo": {**_ATARI, "total_timesteps": 500_000, "num_envs": 4},
    "ppo_atari": _ATARI,
    "ppo_atari_envpool": _ATARI,
    "ppo_atari_lstm": _ATARI,
    "ppo_atari_multigpu": _ATARI,
    "ppo_continuous_action": {
        "total_timesteps": 1_000_000, "num_envs": 1, "num_steps": 2048, "num_minibatches": 32, "update_epochs": 10, "anneal_lr": True,
    },
    "ppo_pettingzoo_ma_atari": {**_ATARI, "total_timesteps": 20_000_000, "num_envs": 16},
    "ppo_procgen": {
        "total_timesteps": 25_000_000, "num_envs": 64, "num_steps": 256, "num_minibatches": 8, "update_epochs": 3, "anneal_lr": False,
    },
    "ppo_rnd_envpool": {**_ATARI, "total_timesteps": 2_000_000_000, "num_envs": 128},
}  # fmt: skip
"""Defaults of each script."""


class CleanRL(Reader):
    """The single-file PPO scripts; a local copy is read for its own defaults."""

    name = "cleanrl"
    title = "CleanRL"
    version = "fe8d8a0"

    def defaults(self, version: str) -> Mapping[str, Any]:
        """None in common: each script has its own."""
        return {}

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        script = request.command.program.name.rpartition("/")[2].removesuffix(".py")
        args = _Args(request.settings, script)
        world_size = request.world_size() if script == "ppo_atari_multigpu" else 1
        environments = args.count("num_envs", "local_num_envs") * world_size
        steps, count = args.count("num_steps"), args.count("num_minibatches")
        timesteps, epochs = args.count("total_timesteps"), args.count("update_epochs")
        samples = environments * steps
        rollouts = rollouts_of(timesteps, samples, "down")
        source = _LOOP.format(script if script in SCRIPTS else "ppo")
        minibatches = _minibatches(args, script, environments // world_size, steps, source) if rollouts else ()
        written = {
            "num_envs": environments,
            "num_steps": steps,
            "num_minibatches": count,
            "update_epochs": epochs,
            "total_timesteps": timesteps,
        }
        early = args.is_set("target_kl")
        formulas = _formulas(source, world_size) if rollouts else ()
        schedule = schedule_in_phases(
            framework=self.title,
            version=request.version,
            algorithm="PPO",
            passes=Passes.without_rows(rollouts),
            prompts_per_rollout=environments,
            samples_per_prompt=steps,
            minibatches=tuple(size * world_size for size in minibatches),
            world_size=world_size,
            reuse_epochs=epochs,
            microbatches_per_update=1,
            updates_bound="upper" if early else "exact",
            remainder="error" if len(set(minibatches)) <= 1 else "keep",
            old_logprob_source="at_rollout",
            lr_clock="rollout",
            step_unit="timestep",
            step_means=f"1 step (global_step) = 1 timestep, {samples} for each rollout",
            settings=written,
            formulas=formulas,
        )
        return Reading(
            schedule=schedule,
            formulas=formulas,
            notes=tuple(_notes(minibatches, count, timesteps, samples, rollouts, early)),
            facts={"lr_constant": not args.anneals(), "nominal_updates_per_rollout": epochs * count},
        )


class _Args:
    """Arguments of a script: its flags, else the defaults of the copy that is here, else those of the published script."""

    def __init__(self, settings: Settings, script: str) -> None:
        self._settings = settings
        self._own = SCRIPTS.get(script, {})
        if not self._own and not settings.is_given("Args.num_steps"):
            raise LaunchError(f"{script}.py is none of CleanRL's PPO scripts that are read: {', '.join(SCRIPTS)}")

    def count(self, key: str, *others: str) -> int:
        """A whole number of at least 1."""
        names = tuple(name for each in (key, *others) for name in names_of(self._settings, each, "Args"))
        given = self._settings.optional_count(*names)
        return given if given is not None else int(self._own[key])

    def is_set(self, key: str) -> bool:
        """Whether a setting without a default has a value."""
        return self._settings.text(*names_of(self._settings, key, "Args")) is not None

    def flag(self, key: str, default: bool) -> bool:
        """A flag, which `--no-...` turns off."""
        if self._settings.is_given(f"no_{key}"):
            return False
        names = names_of(self._settings, key, "Args")
        return self._settings.flag(*names) if self._settings.is_given(*names) else default

    def anneals(self) -> bool:
        """Whether the learning rate goes down to 0."""
        return self.flag("anneal_lr", bool(self._own.get("anneal_lr", True)))


def _minibatches(args: _Args, script: str, environments: int, steps: int, source: str) -> tuple[int, ...]:
    """Samples behind each update of one pass, on one process.

    Raises:
        PlanError: The sizes end the run, or break the policy.
    """
    count, samples = args.count("num_minibatches"), environments * steps
    if script == "ppo_atari_lstm":
        if environments % count:
            raise PlanError(
                f"AssertionError: assert args.num_envs % args.num_minibatches == 0 ({environments} % {count})",
                when="after the first rollout",
                fix=f"num_minibatches = {nearest(min(count, environments + 1), lambda m: environments % m == 0)}",
                source=source,
            )
        return (samples // count,) * countable(count)
    if samples < count:
        raise PlanError(
            f"ValueError: range() arg 3 must not be zero (minibatch_size = {samples} // {count} = 0)",
            when="after the first rollout",
            fix=f"num_minibatches = {samples} or less",
            source=source,
        )
    minibatches = cut_by_count_floored(samples, count)
    if minibatches[-1] == 1 and args.flag("norm_adv", True):
        raise PlanError(
            f"the policy becomes nan: the last mini-batch has 1 sample ({samples} = {len(minibatches) - 1} x {minibatches[0]} + 1), "
            "and advantages are divided by the standard deviation of a single one",
            when="in the first pass over the first rollout",
            fix=f"num_minibatches = {nearest(count, lambda m: samples % m == 0)}",
            source=source,
        )
    return minibatches


def _formulas(source: str, world_size: int) -> tuple[Formula, ...]:
    local = "num_envs * num_steps" if world_size == 1 else "num_envs * num_steps / world_size"
    size = f"floor({local} / num_minibatches)"
    return (
        Formula("samples_per_rollout", "num_envs * num_steps", f"{source} batch_size"),
        Formula("samples_per_update", f"{size} * world_size", f"{source} minibatch_size"),
        Formula(
            "updates_per_rollout",
            f"update_epochs * ceil({local} / {size})",
            f"{source} loop over range(0, batch_size, minibatch_size)",
        ),
        Formula("rollouts", "floor(total_timesteps / samples_per_rollout)", f"{source} num_iterations"),
        Formula("lr_ticks", "rollouts", f"{source} anneal_lr"),
    )


def _notes(
    minibatches: tuple[int, ...], count: int, timesteps: int, samples: int, rollouts: int, early: bool
) -> list[Note]:
    notes = []
    if len(minibatches) > count:
        notes.append(
            Note(
                "grows",
                f"{len(minibatches)} updates a pass, not num_minibatches = {count}: {minibatches[0]} samples each by floor division, "
                f"and {minibatches[-1]} in the last",
            )
        )
    if timesteps % samples:
        what = "they do not fill a rollout" if rollouts else "nothing is trained: they do not fill one rollout"
        notes.append(Note("drops", f"the last {timesteps % samples} of {timesteps} timesteps are not run; {what}"))
    if early:
        notes.append(
            Note("shrinks", "target_kl ends the passes over a rollout after one whose last mini-batch has a larger KL")
        )
    return notes


READER = CleanRL()
