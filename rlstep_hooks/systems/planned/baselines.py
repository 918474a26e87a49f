"""openai/baselines ppo2: mini-batches are equal, else an assertion fails; its logs call a rollout an update.

Read at commit ea25b9e: baselines/ppo2/ppo2.py `learn`, baselines/ppo2/defaults.py, baselines/run.py (defaults by the type of
environment, number of environments), baselines/common/cmd_util.py `common_arg_parser`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.text import SettingError
from rlstep_hooks.systems.engine.declaration import Check, Demand, Entry, Formula, Note, System, count, number, text

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.request import Request

_LEARN = "baselines ea25b9e baselines/ppo2/ppo2.py learn"
_COMMAND = "module:baselines.run"

OWN = {"nsteps": 2048, "nminibatches": 4, "noptepochs": 4}
"""Defaults of `learn`."""
OF_TYPE: dict[str, dict[str, int]] = {
    "atari": {"nsteps": 128, "nminibatches": 4, "noptepochs": 4},
    "retro": {"nsteps": 128, "nminibatches": 4, "noptepochs": 4},
    "mujoco": {"nsteps": 2048, "nminibatches": 32, "noptepochs": 10},
}
"""Defaults of `baselines.run` for a type of environment (defaults.py); other types have the defaults of `learn`."""

_MUJOCO = re.compile(
    "Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedDoublePendulum|InvertedPendulum|Pusher|Reacher|Striker|Swimmer|Thrower|"
    "Walker2d"
)
_OTHERS = re.compile(
    "Acrobot|BipedalWalker|BipedalWalkerHardcore|CarRacing|CartPole|FrozenLake|LunarLander|LunarLanderContinuous|MountainCar|"
    "MountainCarContinuous|Pendulum|Taxi"
)
_ATARI = re.compile(
    ".*(NoFrameskip|Deterministic|-ram).*|Alien|Amidar|Assault|Asterix|Asteroids|Atlantis|BankHeist|BattleZone|BeamRider|Berzerk|Bowling|"
    "Boxing|Breakout|Centipede|ChopperCommand|CrazyClimber|DemonAttack|DoubleDunk|Enduro|FishingDerby|Freeway|Frostbite|Gopher|"
    "Gravitar|IceHockey|Jamesbond|Kangaroo|Krull|KungFuMaster|MontezumaRevenge|MsPacman|NameThisGame|Phoenix|Pitfall|Pong|PrivateEye|"
    "Qbert|Riverraid|RoadRunner|Robotank|Seaquest|Skiing|Solaris|SpaceInvaders|StarGunner|Tennis|TimePilot|Tutankham|UpNDown|Venture|"
    "VideoPinball|WizardOfWor|YarsRevenge|Zaxxon"
)


def _environment_type(launch: Request) -> str:
    """Type of the environment, from gym's registry (run.py `get_env_type`); empty for a Python file.

    Raises:
        SettingError: It is not among those that every gym has.
    """
    settings = launch.settings
    if not launch.command.program.matches(_COMMAND):
        return ""
    given = settings.text("env_type")
    if given is not None:
        return given
    name = (settings.text("env") if settings.is_given("env") else "Reacher-v2") or ""
    game = re.sub(r"-v\d+$", "", name)
    if name in OF_TYPE:
        return name
    for kind, names in (("mujoco", _MUJOCO), ("atari", _ATARI), ("other", _OTHERS)):
        if names.fullmatch(game):
            return kind
    raise SettingError(
        f"env = {name}: whether it is of type atari, retro, mujoco or another decides the defaults; give --env_type",
        settings.place("env"),
    )


def _environments(launch: Request, kind: str) -> int:
    """Environments that run at the same time (run.py `build_env`).

    Raises:
        SettingError: They are as many as the machine has processors, or the Python file builds them.
    """
    given = launch.settings.optional_count("num_env", "make_vec_env.num_env", "make_vec_env.2", least=0)
    if given:
        return given
    if not kind:
        raise SettingError(
            "the environments are built by the Python file; give their number with --set learn.num_env=N"
        )
    if kind not in ("atari", "retro"):
        return 1
    raise SettingError(
        "num_env is not given: baselines takes the number of processors of the machine; give --num_env N"
    )


def _timesteps(launch: Request) -> int:
    """`int(args.num_timesteps)`: the flag is a float such as 1e7."""
    settings = launch.settings
    names = ("learn.total_timesteps",) if settings.is_given("learn.total_timesteps") else ("num_timesteps",)
    timesteps = int(settings.number(*names))
    if timesteps < 1:
        raise SettingError(f"{settings.spelled(*names)} = {timesteps}: it must be at least 1", settings.place(*names))
    return timesteps


SYSTEM = System(
    name="baselines",
    title="baselines ppo2",
    version="ea25b9e",
    recognised=(
        Entry(
            "baselines",
            programs=(_COMMAND,),
            keys=("nminibatches", "noptepochs", "learn.nminibatches", "learn.noptepochs"),
        ),
    ),
    keywords_of=("learn",),
    defaults_of=lambda launch: OF_TYPE.get(_environment_type(launch), OWN),
    settings={
        "alg": text("ppo2"),
        "num_timesteps": number(1_000_000),
        "network": text(None),
        "nsteps": count(),
        "nminibatches": count(),
        "noptepochs": count(),
        "lr": text(),
    },
    shown=("nsteps", "nminibatches", "noptepochs", "num_env", "num_timesteps"),
    functions={"type_of": _environment_type, "environments_of": _environments, "whole_timesteps": _timesteps},
    let={
        "framework": "'baselines'",
        "kind": "type_of(launch)",
        "num_env": "environments_of(launch, kind)",
        "timesteps": "whole_timesteps(launch)",
        "nbatch": "num_env * nsteps",
        "prompts_per_rollout": "num_env * world_size",
        "samples_per_prompt": "nsteps",
        "reuse_epochs": "noptepochs",
        "samples_per_microbatch": "samples_per_update",
    },
    always={
        "algorithm": "PPO",
        "loader": "none",
        "old_logprob_source": "at_rollout",
        "lr_clock": "rollout",
        "step_unit": "rollout",
        "step_means": "misc/nupdates counts rollouts: 1 = {updates_per_rollout} updates; misc/total_timesteps counts {nbatch} for each",
    },
    formulas=(
        Formula("samples_per_rollout", "num_env * nsteps * world_size", f"{_LEARN} nbatch"),
        Formula("samples_per_update", "num_env * nsteps / nminibatches * world_size", f"{_LEARN} nbatch_train"),
        Formula("updates_per_rollout", "noptepochs * nminibatches", _LEARN),
        Formula("rollouts", "floor(timesteps / (num_env * nsteps))", f"{_LEARN} nupdates"),
        Formula("lr_ticks", "rollouts", f"{_LEARN} lrnow"),
    ),
    checks=(
        Demand("alg == 'ppo2'", "alg = {alg}: only ppo2 is read", about="alg"),
        Check(
            "nbatch % nminibatches == 0",
            "AssertionError: assert nbatch % nminibatches == 0 ({nbatch} % {nminibatches})",
            fix="nminibatches = {nearest(min(nminibatches, nbatch + 1), nbatch % it == 0)}",
            when="at the first rollout",
            source=_LEARN,
            where="rollouts",
        ),
        Check(
            "num_env % nminibatches == 0",
            "AssertionError: assert nenvs % nminibatches == 0 ({num_env} % {nminibatches}): a recurrent policy takes whole "
            "environments",
            fix="nminibatches = {nearest(min(nminibatches, num_env + 1), num_env % it == 0)}",
            when="after the first rollout",
            source=_LEARN,
            where="rollouts and 'lstm' in (network or '')",
        ),
    ),
    notes=(
        Note(
            "drops",
            "the last {timesteps % nbatch} of {timesteps} timesteps are not run; "
            "{'they do not fill a rollout' if rollouts else 'nothing is trained: they do not fill one rollout'}",
            "timesteps % nbatch",
        ),
        Note(
            "unit",
            "num_timesteps, nsteps and nminibatches are those of one of {world_size} MPI processes; gradients are averaged",
            "world_size > 1",
        ),
    ),
    facts={"lr_constant": f"kind not in {tuple(OF_TYPE)} if lr is None else 'lambda' not in lr"},
)
