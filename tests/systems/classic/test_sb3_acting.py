"""How actions were drawn (RLS421): gSDE's noise, and policies that act without chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from tests.systems.classic.sb3_faults import (
    FromSecond,
    acts_on_noise,
    acts_without_chance,
    noise_of_all_environments,
    noise_of_before,
    nothing,
)
from tests.systems.classic.test_sb3 import audited, codes, ppo

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.judge.report import Report


def swings(environments: int = 2, **settings: Any) -> PPO:
    return PPO(
        "MlpPolicy", make_vec_env("Pendulum-v1", environments, seed=1), n_steps=32, batch_size=16, n_epochs=1, seed=1,
        device="cpu", **settings,
    )  # fmt: skip


def outcome(report: Report) -> tuple[str, int]:
    rule = next(rule for rule in report.rules if rule.code == "RLS421")
    return rule.verdict, rule.checks


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_sde": True},
        {"use_sde": True, "sde_sample_freq": 4},
        {"use_sde": True, "sde_sample_freq": 4, "environments": 1},
        {"use_sde": True, "policy_kwargs": {"squash_output": True, "full_std": False}},
    ],
    ids=str,
)
def test_actions_that_are_drawn_as_configured(settings: dict[str, Any]) -> None:
    model = swings(**settings)
    rollouts = 3
    report = audited(model, rollouts * 32 * model.n_envs).report
    assert (report.verdict, codes(report), outcome(report)) == ("PASS", set(), ("PASS", rollouts))


def test_a_callback_that_asks_the_policy_hides_how_it_acted() -> None:
    class Asking(BaseCallback):
        def _on_step(self) -> bool:
            self.model.predict(self.locals["new_obs"])
            return True

    model = swings()
    audit = audited(model, 64, Asking())
    assert audit.report.verdict == "PASS"
    asked_first = swings()
    asking = Asking()
    from rlstep_hooks import StepAuditSB3Callback

    late = StepAuditSB3Callback(log_dir=None, listeners=())
    asked_first.learn(64, callback=[asking, late])
    assert outcome(late.report)[0] == "NOT_EVALUATED"
    assert codes(late.report) == set()


@pytest.mark.parametrize(
    ("begins", "words"),
    [
        (noise_of_all_environments, "with one noise of gSDE for all environments: 64 actions"),
        (noise_of_before, "with noise of gSDE that was not drawn anew when it was due: "),
        (acts_on_noise, "not the mean plus the noise of gSDE: 64 actions"),
        (acts_without_chance, "not the mean plus the noise of gSDE: 64 actions"),
    ],
)
def test_noise_that_is_not_as_documented_is_found(begins: Callable[[Any], None], words: str) -> None:
    report = audited(swings(use_sde=True, sde_sample_freq=8), 3 * 64, FromSecond(begins, nothing)).report
    [found] = [finding for finding in report.findings if finding.code == "RLS421"]
    assert (found.severity, found.where.rollout) == ("error", 1)
    assert found.observed.startswith(words)


@pytest.mark.parametrize("make", [ppo, swings], ids=["categorical", "gaussian"])
def test_a_policy_that_acts_without_chance_is_found(make: Callable[[], Any]) -> None:
    report = audited(make(), 4 * 64, FromSecond(acts_without_chance, nothing)).report
    [found] = [finding for finding in report.findings if finding.code == "RLS421"]
    assert (found.severity, found.where.rollout) == ("error", 1)
    assert found.observed.startswith("the likeliest ones and nothing else: ")


def test_few_steps_a_rollout_are_added_up() -> None:
    model = A2C("MlpPolicy", "CartPole-v1", n_steps=12, seed=1, device="cpu")
    acts_without_chance(model)
    report = audited(model, 96).report
    [found] = [finding for finding in report.findings if finding.code == "RLS421"]
    assert found.where.rollout is not None
    assert 2 < found.where.rollout < 8


def test_another_deviation_of_gsde_is_found() -> None:
    def widened(model: Any) -> None:
        distribution = model.policy.action_dist
        make = distribution.proba_distribution

        def made(*args: Any) -> Any:
            made_of = make(*args)
            made_of.distribution.scale = made_of.distribution.scale * 2
            return made_of

        distribution.proba_distribution = made

    report = audited(swings(use_sde=True), 3 * 64, FromSecond(widened, nothing)).report
    [found] = [finding for finding in report.findings if finding.code == "RLS421"]
    assert (found.severity, found.where.rollout) == ("error", 1)
    assert found.observed == "with another deviation than the noise of gSDE has: 64 actions"
