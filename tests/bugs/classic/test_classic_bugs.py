"""Real bugs in runs of Stable-Baselines3: named at their first event, and silence without them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("stable_baselines3")

from gymnasium.wrappers import TimeLimit
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from rlstep_hooks import StepAuditSB3Callback
from tests.bugs.bug import bugs_of
from tests.bugs.classic.mistakes import MISTAKES
from tests.bugs.outcomes import check_after, check_before

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.finding import Finding

pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")

BUGS = bugs_of("classic")


@pytest.fixture(autouse=True)
def numbers_with_each_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a run whose rollouts take longer than the interval, which is a second; these take milliseconds."""
    monkeypatch.setattr("rlstep_hooks.session.session.INTERVAL", 0.0)


def learned(settings: Mapping[str, Any], act: Callable[[Any], None]) -> Report:
    """The report of three rollouts of PPO, before which `act` may do something to the model."""
    wanted = {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "seed": 1, "device": "cpu"} | dict(settings)
    limit = wanted.pop("limit", 500)
    name = wanted.pop("env", "CartPole-v1")
    env = make_vec_env(name, 2, seed=1, wrapper_class=lambda made: TimeLimit(made, limit))
    model = PPO("MlpPolicy", env, **wanted)
    act(model)
    audit = StepAuditSB3Callback(listeners=(), log_dir=None)
    model.learn(192, callback=[audit])
    return audit.report


def alarms(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity != "info"]


@pytest.mark.parametrize("name", BUGS)
def test_after_is_silent(name: str) -> None:
    report = learned(MISTAKES[BUGS[name].fault].settings, lambda model: None)
    check_after(name, report.verdict, alarms(report))


@pytest.mark.parametrize("name", BUGS)
def test_before_is_found(name: str) -> None:
    mistake = MISTAKES[BUGS[name].fault]
    report = learned(mistake.settings, mistake.apply)
    check_before(name, BUGS[name], report.verdict, alarms(report))
