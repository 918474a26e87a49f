"""What passes between policy and environment (RLS521): the environment gets the action, and the policy sees what it returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnvWrapper

from tests.bugs.undo import rewritten
from tests.systems.classic.test_sb3 import audited, codes

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report

TIMESTEPS = 2 * 2 * 32


def trained(environment: str = "Pendulum-v1", **settings: Any) -> Report:
    wrapped = settings.pop("wrapper", lambda of: of)(make_vec_env(environment, 2, seed=1))
    model = PPO("MlpPolicy", wrapped, n_steps=32, batch_size=16, n_epochs=1, seed=1, device="cpu", **settings)
    return audited(model, TIMESTEPS).report


class Reuses(VecEnvWrapper):
    """Writes each observation into the array that it returned before."""

    def reset(self) -> Any:
        self.kept = self.venv.reset()
        return self.kept

    def step_wait(self) -> Any:
        observations, *others = self.venv.step_wait()
        numpy.copyto(self.kept, observations)
        return self.kept, *others


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"environment": "CartPole-v1"},
        {"policy_kwargs": {"log_std_init": 2.0}},
        {"use_sde": True, "policy_kwargs": {"squash_output": True}},
    ],
    ids=["a box", "separate actions", "actions beyond the bounds", "squashed"],
)
def test_what_passes_as_documented_is_silent(settings: dict[str, Any]) -> None:
    report = trained(**settings)
    assert (report.verdict, codes(report)) == ("PASS", set())


@pytest.mark.parametrize(
    ("mended", "before", "settings", "part"),
    [
        ("self._last_obs = new_obs", "pass", {}, "observations"),
        ("self._last_obs = new_obs", "self._last_obs = new_obs[::-1].copy()", {}, "observations"),
        ("if self.policy.squash_output:", "if not self.policy.squash_output:", {}, "actions for the environment"),
        (
            "env.step(clipped_actions)", "env.step(actions)", {"policy_kwargs": {"log_std_init": 2.0}},
            "actions for the environment",
        ),
        (
            "self.policy.unscale_action(clipped_actions)", "clipped_actions",
            {"use_sde": True, "policy_kwargs": {"squash_output": True}}, "actions for the environment",
        ),
    ],
    ids=["observations stand still", "of the other environment", "scaled", "not cut", "not scaled"],
)  # fmt: skip
def test_what_passes_otherwise_is_found(
    mended: str, before: str, settings: dict[str, Any], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = rewritten(OnPolicyAlgorithm.collect_rollouts, OnPolicyAlgorithm, mended, before)
    monkeypatch.setattr(OnPolicyAlgorithm, "collect_rollouts", wrong)
    report = trained(**settings)
    found = [finding for finding in report.findings if finding.code == "RLS521"]
    assert found, codes(report)
    assert found[0].where.rollout == 0
    assert f"other {part} in" in found[0].observed


def test_an_environment_that_writes_into_what_it_returned_is_found() -> None:
    report = trained(wrapper=Reuses)
    assert "RLS521" in codes(report)
