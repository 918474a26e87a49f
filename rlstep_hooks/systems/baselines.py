"""openai/baselines ppo2: equal mini-batches or an assertion; what its logs call an update is a rollout.

Read at commit ea25b9e: baselines/ppo2/ppo2.py `learn`, baselines/ppo2/defaults.py, baselines/run.py (defaults by the type of
environment, number of environments), baselines/common/cmd_util.py `common_arg_parser`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.calls import names_of
from rlstep_hooks.launch.text import LaunchError, SettingError
from rlstep_hooks.planning.minibatches import rollouts_of
from rlstep_hooks.planning.phases import Passes, equal_minibatches, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading, nearest
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.reader import Reader, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings

_LEARN = "baselines ea25b9e baselines/ppo2/ppo2.py learn"
_RUN = "baselines ea25b9e baselines/run.py"

DEFAULTS: dict[str, Any] = {"alg": "ppo2", "env": "Reacher-v2", "num_timesteps": 1e6, "network": None}

OWN = {"nsteps": 2048, "nminibatches": 4, "noptepochs": 4}
"""Defaults of `learn`."""
OF_TYPE: dict[str, dict[str, int]] = {
    "atari": {"nsteps": 128, "nminibatches": 4, "noptepochs": 4},
    "retro": {"nsteps": 128, "nminibatches": 4, "noptepochs": 4},
    "mujoco": {"nsteps": 2048, "nminibatches": 32, "noptepochs": 10},
}
"""Defaults of `baselines.run` for a type of environment (defaults.py); the others take those of `learn`."""

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

FORMULAS = (
    Formula("samples_per_rollout", "num_env * nsteps * world_size", f"{_LEARN} nbatch"),
    Formula("samples_per_update", "num_env * nsteps / nminibatches * world_size", f"{_LEARN} nbatch_train"),
    Formula("updates_per_rollout", "noptepochs * nminibatches", _LEARN),
    Formula("rollouts", "floor(num_timesteps / (num_env * nsteps))", f"{_LEARN} nupdates"),
    Formula("lr_ticks", "rollouts", f"{_LEARN} lrnow"),
)


class Baselines(Reader):
    """`python -m baselines.run --alg=ppo2`, and `ppo2.learn(...)` in a Python file."""

    name = "baselines"
    title = "baselines ppo2"
    version = "ea25b9e"

    def defaults(self, version: str) -> Mapping[str, Any]:
        """Defaults of the command line; those of the environment's type are filled in by `read`."""
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        settings = request.settings
        by_command = request.command.program.matches("module:baselines.run")
        if settings.text("alg") != "ppo2":
            raise LaunchError(f"alg = {settings.text('alg')}: only ppo2 is read", settings.place("alg"))
        kind = _environment_type(settings) if by_command else ""
        of_type = OF_TYPE.get(kind, OWN)
        sizes = {name: _count(settings, name, default) for name, default in of_type.items()}
        environments = _environments(settings, kind, by_command)
        timesteps = _timesteps(settings)
        world_size = request.world_size()
        nbatch, minibatches = environments * sizes["nsteps"], sizes["nminibatches"]
        rollouts = rollouts_of(timesteps, nbatch, "down")
        if rollouts and nbatch % minibatches:
            raise PlanError(
                f"AssertionError: assert nbatch % nminibatches == 0 ({nbatch} % {minibatches})",
                when="at the first rollout",
                fix=f"nminibatches = {nearest(min(minibatches, nbatch + 1), lambda m: nbatch % m == 0)}",
                source=_LEARN,
            )
        if (
            rollouts
            and "lstm" in (settings.text(*names_of(settings, "network", "learn")) or "")
            and environments % minibatches
        ):
            raise PlanError(
                f"AssertionError: assert nenvs % nminibatches == 0 ({environments} % {minibatches}): a recurrent policy takes whole "
                "environments",
                when="after the first rollout",
                fix=f"nminibatches = {nearest(min(minibatches, environments + 1), lambda m: environments % m == 0)}",
                source=_LEARN,
            )
        schedule = schedule_in_phases(
            framework="baselines",
            version=request.version,
            algorithm="PPO",
            passes=Passes.without_rows(rollouts),
            prompts_per_rollout=environments * world_size,
            samples_per_prompt=sizes["nsteps"],
            minibatches=equal_minibatches(nbatch * world_size, minibatches),
            world_size=world_size,
            reuse_epochs=sizes["noptepochs"],
            samples_per_microbatch=nbatch // minibatches * world_size,
            old_logprob_source="at_rollout",
            lr_clock="rollout",
            step_unit="rollout",
            step_means=f"misc/nupdates counts rollouts: 1 = {sizes['noptepochs'] * minibatches} updates; misc/total_timesteps "
            f"counts {nbatch} for each",
            settings={**sizes, "num_env": environments, "num_timesteps": timesteps},
            formulas=FORMULAS,
        )
        return Reading(
            schedule=schedule,
            formulas=FORMULAS,
            notes=tuple(_notes(timesteps, nbatch, rollouts, world_size)),
            facts={"lr_constant": _constant_rate(settings, kind)},
        )


def _count(settings: Settings, name: str, default: int) -> int:
    return settings.optional_count(*names_of(settings, name, "learn")) or default


def _timesteps(settings: Settings) -> int:
    """`int(args.num_timesteps)`: the flag is a float such as 1e7."""
    names = ("learn.total_timesteps",) if settings.is_given("learn.total_timesteps") else ("num_timesteps",)
    timesteps = int(settings.number(*names))
    if timesteps < 1:
        raise SettingError(f"{settings.spelled(*names)} = {timesteps}: it must be at least 1", settings.place(*names))
    return timesteps


def _environment_type(settings: Settings) -> str:
    """Type of the environment, which gym's registry knows (run.py `get_env_type`).

    Raises:
        SettingError: It is not among those that every gym has.
    """
    given = settings.text("env_type")
    if given is not None:
        return given
    name = settings.text("env") or ""
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


def _environments(settings: Settings, kind: str, by_command: bool) -> int:
    """Environments that run at the same time (run.py `build_env`).

    Raises:
        SettingError: They are as many as the machine has processors, or the Python file builds them.
    """
    given = settings.optional_count("num_env", "make_vec_env.num_env", "make_vec_env.2", least=0)
    if given:
        return given
    if by_command and kind not in ("atari", "retro"):
        return 1
    if by_command:
        raise SettingError(
            "num_env is not given: baselines takes the number of processors of the machine; give --num_env N"
        )
    raise SettingError("the environments are built by the Python file; give their number with --set learn.num_env=N")


def _constant_rate(settings: Settings, kind: str) -> bool:
    rate = settings.given(*names_of(settings, "lr", "learn"))
    return kind not in OF_TYPE if rate is None else "lambda" not in str(rate.value)


def _notes(timesteps: int, nbatch: int, rollouts: int, world_size: int) -> list[Note]:
    notes = []
    if timesteps % nbatch:
        what = "nothing is trained: they do not fill one rollout" if not rollouts else "they do not fill a rollout"
        notes.append(Note("drops", f"the last {timesteps % nbatch} of {timesteps} timesteps are not run; {what}"))
    if world_size > 1:
        notes.append(
            Note(
                "unit",
                f"num_timesteps, nsteps and nminibatches are those of one of {world_size} MPI processes; gradients are averaged",
            )
        )
    return notes


READER = Baselines()
