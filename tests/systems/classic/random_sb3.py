"""Random legal configurations of Stable-Baselines3 and sb3-contrib, over every parameter that the constructors have.

The parameters are read from the signatures: one that nobody draws fails a test, so that a new release is noticed.
"""

from __future__ import annotations

import inspect
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import SimpleMultiObsEnv
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

if TYPE_CHECKING:
    from collections.abc import Callable

CLASSES = (PPO, A2C, MaskablePPO, RecurrentPPO)


class Spaces(gymnasium.Env[Any, Any]):
    """An environment whose rewards and ends are random, with any space of actions; time limits cut some episodes."""

    def __init__(self, actions: gymnasium.Space[Any]) -> None:
        self.observation_space = gymnasium.spaces.Box(-10, 10, (5,), np.float32)
        self.action_space = actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observed(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        ended, cut = self.np_random.random() < 0.1, self.np_random.random() < 0.05
        return self._observed(), float(self.np_random.normal()), bool(ended), bool(cut), {}

    def _observed(self) -> Any:
        return self.np_random.normal(size=5).astype(np.float32)


def masks(env: Any) -> Any:
    """Masks that leave at least one choice of each kind."""
    space = env.action_space
    if isinstance(space, gymnasium.spaces.MultiBinary):
        sizes = [2] * int(space.n)
    else:
        sizes = list(space.nvec) if hasattr(space, "nvec") else [space.n]
    parts = [env.unwrapped.np_random.random(int(size)) < 0.7 for size in sizes]
    for part in parts:
        part[0] = True
    return np.concatenate(parts)


@dataclass
class Drawn:
    """One configuration."""

    kind: type
    policy: str
    environment: Callable[[], Any]
    settings: dict[str, Any]
    timesteps: int

    def model(self) -> Any:
        return self.kind(self.policy, self.environment(), **self.settings)


def drawn(seed: int) -> Drawn:
    """The configuration of a seed."""
    chance = random.Random(seed)
    kind = CLASSES[seed % len(CLASSES)]
    envs = chance.choice((1, 2, 3))
    steps = chance.choice((8, 16, 25, 32))
    name, environment, continuous = _environment(chance, kind, envs)
    drawers = drawers_of(chance, kind, steps, envs, continuous=continuous)
    settings = {key: drawers[key]() for key in parameters(kind)}
    if settings.get("use_sde") and not continuous:
        settings["use_sde"] = False
    left_out = chance.sample(sorted(settings), chance.randint(0, len(settings) // 2))
    settings = {
        key: of
        for key, of in settings.items()
        if key not in left_out or key in ("n_steps", "batch_size", "n_epochs", "device", "seed")
    }
    if kind is PPO and settings.get("normalize_advantage", True):
        settings["batch_size"] = max(settings["batch_size"], 2)
    rollouts = chance.choice((2, 3, 4))
    policies = {"multi": "MultiInput", "": "Mlp"}
    policy = policies["multi" if name == "multi" else ""] + ("LstmPolicy" if kind is RecurrentPPO else "Policy")
    return Drawn(kind, policy, environment, settings, rollouts * steps * envs - chance.choice((0, 1)))


def parameters(kind: type) -> list[str]:
    """The parameters of a class but policy and environment."""
    return [name for name in inspect.signature(kind).parameters if name not in ("policy", "env", "_init_setup_model")]


def _environment(chance: random.Random, kind: type, envs: int) -> tuple[str, Callable[[], Any], bool]:
    """A name, what makes the environments, and whether actions are continuous."""
    discrete = [
        gymnasium.spaces.Discrete(3),
        gymnasium.spaces.MultiDiscrete([3, 2]),
        gymnasium.spaces.MultiBinary(3),
    ]
    if kind is RecurrentPPO:
        discrete.pop()  # sb3-contrib 2.9.2 fails itself: its padding keeps whole numbers, and the loss wants others
    kinds = ["CartPole-v1", "spaces", "spaces", "multi"]
    if kind is not MaskablePPO:
        kinds += ["Pendulum-v1", "box"]
    name = chance.choice(kinds)
    space = gymnasium.spaces.Box(-1, 1, (2,)) if name == "box" else chance.choice(discrete)
    seed, normalised = chance.randint(0, 1000), chance.random() < 0.3
    wrapper = (lambda env: ActionMasker(env, masks)) if kind is MaskablePPO else None

    def made() -> Any:
        ids: Any = (
            name
            if name.endswith("-v1")
            else (lambda: SimpleMultiObsEnv())
            if name == "multi"
            else (lambda: Spaces(space))
        )
        found = make_vec_env(ids, envs, seed=seed, wrapper_class=wrapper)
        return VecNormalize(found, norm_obs=name != "multi") if normalised else found

    return name, made, name in ("Pendulum-v1", "box")


def _rate(chance: random.Random) -> Any:
    rate = 10 ** chance.uniform(-4.5, -2)
    return chance.choice(
        [
            rate,
            LinearSchedule(rate, rate / 10, chance.choice((0.5, 1.0))),
            lambda left, rate=rate: rate * max(left, 0.1),
        ]
    )


def drawers_of(
    chance: random.Random, kind: type, steps: int, envs: int, *, continuous: bool
) -> dict[str, Callable[[], Any]]:
    """What draws each parameter."""
    samples = steps * envs
    # Mini-batches of one sample are NaN in sb3-contrib, which normalises them.
    sizes = [size for size in (4, 7, 16, 24, samples, samples + 5) if samples % size != 1]
    clips = (0.2, 0.05, 1e-3, LinearSchedule(0.3, 0.05, 1.0), lambda left: 0.1 + 0.1 * left)
    return {
        "learning_rate": lambda: _rate(chance),
        "n_steps": lambda: steps,
        "batch_size": lambda: chance.choice(sizes),
        "n_epochs": lambda: chance.choice((1, 2, 3, 4)),
        "gamma": lambda: chance.choice((0.0, 0.5, 0.9, 0.99, 1.0)),
        "gae_lambda": lambda: chance.choice((0.0, 0.5, 0.95, 1.0)),
        "clip_range": lambda: chance.choice(clips),
        "clip_range_vf": lambda: chance.choice((None, 0.2, 1e-3, LinearSchedule(0.3, 0.05, 1.0))),
        "normalize_advantage": lambda: chance.random() < 0.5,
        "ent_coef": lambda: chance.choice((0.0, 0.01, 0.5)),
        "vf_coef": lambda: chance.choice((0.0, 0.25, 0.5, 2.0)),
        "max_grad_norm": lambda: chance.choice((0.5, 1e-3, 100.0)),
        "use_sde": lambda: continuous and chance.random() < 0.5,
        "sde_sample_freq": lambda: chance.choice((-1, 4)),
        "rollout_buffer_class": lambda: None,
        "rollout_buffer_kwargs": lambda: None,
        "target_kl": lambda: chance.choice((None, None, 1e-3, 0.02)),
        "use_rms_prop": lambda: chance.random() < 0.5,
        "rms_prop_eps": lambda: chance.choice((1e-5, 1e-3)),
        "stats_window_size": lambda: chance.choice((1, 100)),
        "tensorboard_log": lambda: None,  # writes events, and needs a package of its own
        "policy_kwargs": lambda: _policy(chance, kind),
        "verbose": lambda: 0,
        "seed": lambda: chance.randint(0, 1000),
        "device": lambda: "cpu",
    }


def _policy(chance: random.Random, kind: type) -> dict[str, Any] | None:
    """Settings of a policy."""
    optimizers: list[dict[str, Any]] = [
        {},
        {"optimizer_class": torch.optim.SGD, "optimizer_kwargs": {"momentum": chance.choice((0.0, 0.9))}},
        {"optimizer_class": torch.optim.AdamW, "optimizer_kwargs": {"weight_decay": 0.1}},
        {"optimizer_class": torch.optim.RMSprop, "optimizer_kwargs": {"alpha": 0.9, "momentum": 0.5}},
        {"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"alpha": 0.99, "eps": 1e-5}},
        {"optimizer_class": torch.optim.NAdam},
    ]
    layers: Any = chance.choice(([], [16], {"pi": [8, 8], "vf": [16]}, {"pi": [], "vf": [8]}))
    found = {
        "net_arch": layers,
        "ortho_init": chance.random() < 0.7,
        "activation_fn": chance.choice((torch.nn.Tanh, torch.nn.ReLU)),
        **chance.choice(optimizers),
    }
    shared = chance.random() < 0.5
    found["share_features_extractor"] = shared
    if kind is RecurrentPPO:
        lstms: list[dict[str, Any]] = [{}, {"enable_critic_lstm": False}]
        lstms += [{"enable_critic_lstm": False, "shared_lstm": True}] if shared else []
        found |= {"lstm_hidden_size": 8, "n_lstm_layers": chance.choice((1, 2)), **chance.choice(lstms)}
    return found
