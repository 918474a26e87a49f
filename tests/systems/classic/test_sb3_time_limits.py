"""Episodes that a time limit cuts: their last reward gets the value of the last observation (RLS515 where it does not)."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import A2C, PPO
from stable_baselines3.common import on_policy_algorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from tests.bugs.undo import rewritten
from tests.mutants.operators import mutations
from tests.mutants.sources import LivingFunctions, source_of
from tests.systems.classic.test_sb3 import audited, codes

LIMIT = 10


class Limited(gymnasium.Env[Any, Any]):
    """Rewards of 1, and episodes of ten steps that a time limit cuts."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return self._seen(), 1.0, False, self._steps == LIMIT, {}

    def _seen(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


def model(kind: Any, **settings: Any) -> Any:
    return kind("MlpPolicy", make_vec_env(Limited, 2, seed=1), n_steps=24, gamma=0.9, seed=1, device="cpu", **settings)


@pytest.mark.parametrize(
    ("kind", "settings"), [(PPO, {"batch_size": 16, "n_epochs": 1}), (A2C, {})], ids=["ppo", "a2c"]
)
def test_the_documented_value_is_added(kind: Any, settings: dict[str, Any]) -> None:
    report = audited(model(kind, **settings), 3 * 48).report
    assert (report.verdict, codes(report)) == ("PASS", set())
    assert next(rule.verdict for rule in report.rules if rule.code == "RLS515") == "PASS"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("infos[idx].get('terminal_observation') is not None", "infos[idx].get('terminal_observation') is None"),
        ("self.gamma * terminal_value", "self.gamma / terminal_value"),
        ("self.gamma * terminal_value", "self.gamma"),
    ],
)
def test_another_value_is_found(before: str, after: str) -> None:
    module = on_policy_algorithm.__name__
    made = [one for one in mutations(module, source_of(module)) if (one.before, one.after) == (before, after)]
    assert made, {one.after for one in mutations(module, source_of(module)) if one.before == before}
    with LivingFunctions([module]).in_force(made[0]):
        report = audited(model(PPO, batch_size=16, n_epochs=1), 3 * 48).report
    first = next(finding for finding in report.findings if finding.severity != "info")
    assert (first.code, first.severity, first.where.rollout) == ("RLS515", "error", 0), [
        str(f) for f in report.findings
    ]


def test_a_value_for_an_episode_that_no_time_limit_cut_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    documented = OnPolicyAlgorithm.collect_rollouts
    wrong = rewritten(documented, OnPolicyAlgorithm, 'and infos[idx].get("TimeLimit.truncated", False)', "and True")
    monkeypatch.setattr(OnPolicyAlgorithm, "collect_rollouts", wrong)
    falls = PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", 2, seed=1), n_steps=64, batch_size=32, n_epochs=1, seed=1, device="cpu"
    )
    report = audited(falls, 3 * 128).report
    assert next((f.code, f.where.rollout) for f in report.findings if f.severity == "error") == ("RLS515", 0)
