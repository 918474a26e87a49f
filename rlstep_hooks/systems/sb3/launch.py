"""PPO and A2C from a Python file or from the zoo's command line; read where `rlstep_hooks.systems.sb3.system` says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.settings import Setting, Settings
from rlstep_hooks.launch.text import LaunchError, SettingError, UnknownValueError
from rlstep_hooks.launch.values import primitive
from rlstep_hooks.systems.engine.python_launch import calls_of
from rlstep_hooks.systems.engine.trains import file_of
from rlstep_hooks.systems.sb3.environments import BY_LIST, BY_NUMBER, ONE, made_by

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.request import Request

OWN: dict[str, dict[str, Any]] = {
    "PPO": {"n_steps": 2048, "batch_size": 64, "n_epochs": 10, "learning_rate": 3e-4, "normalize_advantage": True},
    "A2C": {"n_steps": 5, "learning_rate": 7e-4},
}
"""Defaults of the classes."""
MASKABLE, RECURRENT = "MaskablePPO", "RecurrentPPO"
OWN[MASKABLE] = OWN["PPO"]  # sb3_contrib ppo_mask/ppo_mask.py: the same parameters, rollouts and mini-batches
OWN[RECURRENT] = OWN["PPO"] | {"n_steps": 128, "batch_size": 128}  # ppo_recurrent/ppo_recurrent.py
_POSITIONS: dict[str, tuple[str, ...]] = {
    "PPO": ("learning_rate", "n_steps", "batch_size", "n_epochs"),
    "A2C": ("learning_rate", "n_steps"),
    MASKABLE: ("learning_rate", "n_steps", "batch_size", "n_epochs"),
    RECURRENT: ("learning_rate", "n_steps", "batch_size", "n_epochs"),
}
"""The parameters after `policy` and `env`, in their order."""
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


def settings_of(request: Request) -> dict[str, Setting]:
    """The settings of a Python file or of the zoo, under the names of the parameters, and the algorithm.

    Raises:
        LaunchError: The launch trains with neither PPO nor A2C.
        SettingError: A size is not written anywhere, or is not a whole number.
    """
    settings = request.settings
    by_zoo = "rl_zoo3" in request.command.program.name
    algorithm = _zoo_algorithm(settings) if by_zoo else _called(settings)
    given = _zoo_settings(settings, algorithm) if by_zoo else _python_settings(request, algorithm)
    return {**given, "algo": Setting("algo", algorithm)}


def learning_rate(launch: Request) -> str | None:
    """The schedule of the learning rate: "constant", "to_zero" for the zoo's linear one; None where the file computes it."""
    try:
        value = launch.settings.value("learning_rate")
    except UnknownValueError:
        return None
    return "to_zero" if isinstance(value, str) and value.startswith("lin_") else "constant"


def _called(settings: Settings) -> str:
    """The class that a Python file builds."""
    for algorithm, parameters in _POSITIONS.items():
        names = (*parameters, "0", "policy", "gamma", "verbose", "tensorboard_log", *OWN[algorithm])
        if any(settings.is_given(f"{algorithm}.{name}") for name in names):
            return algorithm
    raise LaunchError(
        "the Python file builds neither PPO nor A2C of stable_baselines3, nor MaskablePPO or RecurrentPPO of sb3_contrib"
    )


def _raw(settings: Settings, name: str, key: str) -> Setting | None:
    """A setting under its plain name. A value that cannot be known stays unknown, and reading it raises the error."""
    try:
        setting = settings.given(name)
    except UnknownValueError as error:
        return Setting(key, None, error.unknown.place, key, (error.unknown,))
    return None if setting is None else msgspec.structs.replace(setting, name=key)


def _python_settings(request: Request, algorithm: str) -> dict[str, Setting]:
    """Arguments of `PPO(...)` or `A2C(...)`, of `learn(...)`, and the number of environments.

    Raises:
        SettingError: The number of environments is not written down.
    """
    settings = request.settings
    positions = dict(enumerate(_POSITIONS[algorithm], 2))
    sources = [(f"{algorithm}.{index}", key) for index, key in positions.items()]
    sources += [(f"{algorithm}.{key}", key) for key in (*OWN[algorithm], "target_kl", "normalize_advantage")]
    sources += [("learn.0", "total_timesteps"), ("learn.total_timesteps", "total_timesteps")]
    found = {key: setting for name, key in sources if (setting := _raw(settings, name, key)) is not None}
    return {**found, "n_envs": _environments(request, algorithm)}


def _environments(request: Request, algorithm: str) -> Setting:
    """The number of environments of a Python file.

    Raises:
        SettingError: It is not written down.
    """
    settings = request.settings
    said = _raw(settings, "make_vec_env.n_envs", "n_envs")
    if said is not None and said.place.source == "--set":
        return said
    file = file_of(request.command, request.folder)
    maker = made_by(file, request.command.folder, algorithm) if file is not None else ""
    if maker == ONE:
        return Setting("n_envs", 1)
    if maker in BY_LIST:
        calls = calls_of(request.command, request.folder)
        number = calls.lengths.get(f"{maker}.0") if calls is not None else None
        if number is not None:
            return msgspec.structs.replace(number, name="n_envs", written="n_envs")
    # Where the file does not show what the algorithm is given, the only vector that it makes is taken for it.
    for vector in BY_NUMBER if not maker or maker in BY_NUMBER else ():
        number = _raw(settings, f"{vector}.1", "n_envs") or _raw(settings, f"{vector}.n_envs", "n_envs")
        if number is not None:
            return number
        if any(settings.is_given(f"{vector}.{name}") for name in ("0", "env_id")):
            return Setting("n_envs", 1)
    raise SettingError(
        "the Python file builds the environments in a way that says no number; give it with --set make_vec_env.n_envs=N"
    )


def _zoo_algorithm(settings: Settings) -> str:
    algo = settings.text("algo") if settings.is_given("algo") else "ppo"
    algorithm = (algo or "").upper()
    if algorithm not in ("PPO", "A2C"):
        raise LaunchError(f"algo = {algo}: PPO and A2C are read", settings.place("algo"))
    return algorithm


def _zoo_settings(settings: Settings, algorithm: str) -> dict[str, Setting]:
    """Hyperparameters of the zoo: those of the environment in its file, under `-params` of the command.

    Raises:
        SettingError: The file with the environment's hyperparameters is not here.
    """
    environment = (settings.text("env") if settings.is_given("env") else "CartPole-v1") or ""
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
    asked = settings.optional_count("n_timesteps", "n", least=-1) or 0
    name = next((name for name in ("n_timesteps", "n") if settings.is_given(name)), "")
    steps = _raw(settings, name, "total_timesteps") if asked > 0 else found.pop("n_timesteps", None)
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
