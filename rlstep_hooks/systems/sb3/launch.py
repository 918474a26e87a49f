"""PPO and A2C from a Python file or from the zoo's command line; read where `rlstep_hooks.systems.sb3.system` says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.settings import Setting, Settings
from rlstep_hooks.launch.text import LaunchError, SettingError, UnknownValueError
from rlstep_hooks.launch.values import primitive
from rlstep_hooks.planning.reading import Note, Reading
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.sb3.plan import FORMULAS, Algorithm, Sizes, make_schedule

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.declaration import Quantities

_PPO = "SB3 2.7.0 stable_baselines3/ppo/ppo.py"

OWN: dict[Algorithm, dict[str, Any]] = {
    "PPO": {"n_steps": 2048, "batch_size": 64, "n_epochs": 10, "learning_rate": 3e-4, "normalize_advantage": True},
    "A2C": {"n_steps": 5, "learning_rate": 7e-4},
}
"""Defaults of the two classes."""
_POSITIONS: dict[Algorithm, tuple[str, ...]] = {
    "PPO": ("learning_rate", "n_steps", "batch_size", "n_epochs"),
    "A2C": ("learning_rate", "n_steps"),
}
"""Parameters behind `policy` and `env`, in their order."""
ZOO_ATARI: dict[str, dict[str, Any]] = {
    "PPO": {
        "n_envs": 8,
        "n_steps": 128,
        "n_epochs": 4,
        "batch_size": 256,
        "n_timesteps": 10_000_000,
        "learning_rate": "lin_2.5e-4",
    },
    "A2C": {"n_envs": 16, "n_timesteps": 10_000_000},
}
"""The zoo's hyperparameters of Atari games (hyperparams/ppo.yml, a2c.yml)."""
_ATARI = re.compile(r"(ALE/.*|.*NoFrameskip-v\d)")


def read(launch: Quantities) -> Reading:
    """The Schedule.

    Raises:
        LaunchError: The file builds neither PPO nor A2C.
        SettingError: A size is missing, or no whole number.
        PlanError: The class refuses its sizes.
    """
    request = launch.request
    by_zoo = "rl_zoo3" in request.command.program.name
    algorithm = _zoo_algorithm(launch) if by_zoo else _called(request.settings)
    given = _zoo_settings(launch, algorithm) if by_zoo else _python_settings(request.settings, algorithm)
    settings = Settings(given, OWN[algorithm])
    environments, steps = settings.count("n_envs"), settings.count("n_steps")
    timesteps = int(settings.number("total_timesteps"))
    if timesteps < 1:
        raise SettingError(f"total_timesteps = {timesteps}: it must be at least 1", settings.place("total_timesteps"))
    sizes = Sizes(algorithm=algorithm, n_envs=environments, n_steps=steps, total_timesteps=timesteps)
    if algorithm == "PPO":
        size = settings.count("batch_size")
        _check(settings, size, sizes.samples, steps, environments)
        sizes = msgspec.structs.replace(
            sizes,
            batch_size=size,
            n_epochs=settings.count("n_epochs"),
            stops_early=settings.text("target_kl") is not None,
        )
    schedule = make_schedule(sizes, request.version)
    rate = _rate(settings)
    return Reading(
        schedule=schedule,
        formulas=FORMULAS[algorithm],
        notes=tuple(_notes(schedule, timesteps, rate)),
        facts={"lr_constant": rate == "constant"} if rate else {},
    )


def _called(settings: Settings) -> Algorithm:
    """The class that a Python file builds."""
    for algorithm, parameters in _POSITIONS.items():
        names = (*parameters, "0", "policy", "gamma", "verbose", "tensorboard_log", *OWN[algorithm])
        if any(settings.is_given(f"{algorithm}.{name}") for name in names):
            return algorithm
    raise LaunchError("the Python file builds neither PPO nor A2C of stable_baselines3")


def _raw(settings: Settings, name: str, key: str) -> Setting | None:
    """A setting under its plain name; one that cannot be known stays so, and says it when it is read."""
    try:
        setting = settings.given(name)
    except UnknownValueError as error:
        return Setting(key, None, error.unknown.place, key, (error.unknown,))
    return None if setting is None else msgspec.structs.replace(setting, name=key)


def _python_settings(settings: Settings, algorithm: Algorithm) -> dict[str, Setting]:
    """Arguments of `PPO(...)` or `A2C(...)`, of `learn(...)`, and the number of environments.

    Raises:
        SettingError: The number of environments is not written down.
    """
    positions = dict(enumerate(_POSITIONS[algorithm], 2))
    sources = [(f"{algorithm}.{index}", key) for index, key in positions.items()]
    sources += [(f"{algorithm}.{key}", key) for key in (*OWN[algorithm], "target_kl", "normalize_advantage")]
    sources += [("learn.0", "total_timesteps"), ("learn.total_timesteps", "total_timesteps")]
    vectors = [f"{maker}.{name}" for maker in ("make_vec_env", "make_atari_env") for name in ("1", "n_envs")]
    sources += [(name, "n_envs") for name in vectors]
    found = {key: setting for name, key in sources if (setting := _raw(settings, name, key)) is not None}
    if "n_envs" not in found:
        made = any(
            settings.is_given(f"{maker}.{name}")
            for maker in ("make_vec_env", "make_atari_env")
            for name in ("0", "env_id")
        )
        by_name = _raw(settings, f"{algorithm}.1", "env") or _raw(settings, f"{algorithm}.env", "env")
        single = by_name is not None and not by_name.unknown and isinstance(by_name.value, str)
        if not (made or single or settings.is_given("make.0", "make.id")):
            raise SettingError(
                "the Python file builds the environments in a way that says no number; give it with --set make_vec_env.n_envs=N"
            )
        found["n_envs"] = Setting("n_envs", 1)
    return found


def _zoo_algorithm(launch: Quantities) -> Algorithm:
    wanted = (launch["algo"] or "").upper()
    algorithm = next((known for known in OWN if known == wanted), None)
    if algorithm is None:
        place = launch.request.settings.place("algo")
        raise LaunchError(f"algo = {launch['algo']}: PPO and A2C are read", place)
    return algorithm


def _zoo_settings(launch: Quantities, algorithm: Algorithm) -> dict[str, Setting]:
    """Hyperparameters of the zoo: those of the environment in its file, under `-params` of the command.

    Raises:
        SettingError: The file with the environment's hyperparameters is not here.
    """
    settings = launch.request.settings
    environment = launch["env"] or ""
    keys = ("n_envs", "n_timesteps", "target_kl", *OWN[algorithm])
    found: dict[str, Setting] = {}
    if settings.is_given("conf_file", "conf"):
        groups = (environment, *(("atari",) if _ATARI.fullmatch(environment) else ()), "default")
        group = next(
            (g for g in groups if settings.is_given(*(f"{g}.{key}" for key in (*keys, "policy")))), environment
        )
        found = {key: setting for key in keys if (setting := _raw(settings, f"{group}.{key}", key)) is not None}
    elif _ATARI.fullmatch(environment):
        found = {key: Setting(key, value) for key, value in ZOO_ATARI[algorithm].items()}
    over = _parameters(settings)
    if not found and not {"n_steps", "n_envs"} <= over.keys():
        raise SettingError(
            f"the zoo's hyperparameters of {environment} are in its hyperparams/{algorithm.lower()}.yml; give that file with "
            "--conf-file",
            settings.place("env"),
        )
    found |= over
    found.setdefault("n_envs", Setting("n_envs", 1))
    asked = launch["n_timesteps"]
    name = next((name for name in ("n_timesteps", "n") if settings.is_given(name)), "")
    steps = _raw(settings, name, "total_timesteps") if name and asked > 0 else found.pop("n_timesteps", None)
    if steps is not None:
        found["total_timesteps"] = msgspec.structs.replace(steps, name="total_timesteps")
    return found


def _parameters(settings: Settings) -> dict[str, Setting]:
    """`-params n_envs:4 n_steps:256`."""
    setting = settings.given("params", "hyperparams")
    if setting is None:
        return {}
    pairs = setting.value if isinstance(setting.value, list) else [setting.value]
    found = {}
    for pair in pairs:
        key, colon, value = str(pair).partition(":")
        if not colon:
            raise SettingError(f"{setting} takes name:value, not {pair!r}", setting.place)
        found[key] = Setting(key, primitive(value), setting.place, f"{setting} {key}")
    return found


def _rate(settings: Settings) -> str:
    """ "constant", "to_zero" for the zoo's linear schedule, or "" where the file computes it."""
    try:
        value = settings.value("learning_rate")
    except UnknownValueError:
        return ""
    if isinstance(value, str) and value.startswith("lin_"):
        return "to_zero"
    return "constant"


def _check(settings: Settings, size: int, samples: int, steps: int, environments: int) -> None:
    """The two assertions of PPO's `__init__`.

    Raises:
        PlanError: One of them fails.
    """
    if not settings.flag("normalize_advantage"):
        return
    message = None
    if size == 1:
        message, fix = "`batch_size` must be greater than 1", "batch_size = 2, or normalize_advantage = False"
    elif samples == 1:
        message = f"`n_steps * n_envs` must be greater than 1. Currently n_steps={steps} and n_envs={environments}"
        fix = "n_steps = 2"
    if message is not None:
        raise PlanError(message, when="when the model is built", fix=fix, source=f"{_PPO} __init__")


def _notes(schedule: Schedule, timesteps: int, rate: str) -> list[Note]:
    samples, rollouts = schedule.samples_per_rollout, schedule.rollouts or 0
    notes = []
    if len(schedule.minibatches) > 1 and schedule.minibatches[-1] != schedule.minibatches[0]:
        notes.append(
            Note(
                "grows",
                f"a truncated mini-batch of size {schedule.minibatches[-1]} after every {len(schedule.minibatches) - 1} untruncated "
                "ones is an update of its own",
            )
        )
    if schedule.minibatches[0] == samples and schedule.settings.get("batch_size", samples) > samples:
        notes.append(
            Note(
                "shrinks", f"batch_size {schedule.settings['batch_size']} is above the {samples} timesteps of a rollout"
            )
        )
    if rollouts * samples != timesteps:
        notes.append(
            Note("grows", f"the run ends at {rollouts * samples} timesteps, not {timesteps}: rollouts are whole")
        )
    if rate == "to_zero":
        last = "0" if rollouts * samples == timesteps else "below 0"
        notes.append(
            Note(
                "assumes",
                f"the linear learning rate is {last} in the last rollout: progress is counted before its updates",
            )
        )
    if schedule.updates_bound == "upper":
        notes.append(
            Note(
                "shrinks",
                "target_kl ends the updates on a rollout before the mini-batch whose KL is above 1.5 x target_kl",
            )
        )
    if schedule.algorithm == "A2C":
        notes.append(Note("assumes", "A2C has no ratio and no clipping; each rollout is one update"))
    return notes
