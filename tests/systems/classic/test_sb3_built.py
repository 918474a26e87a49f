"""The network of a policy and the weights that it begins with, compared with its settings (RLS420)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from tests.systems.classic.test_sb3 import audited, codes, ppo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")


def checks(report: Report) -> int:
    return next(rule.checks for rule in report.rules if rule.code == "RLS420")


def squashed(**settings: Any) -> PPO:
    return PPO("MlpPolicy", "Pendulum-v1", n_steps=32, batch_size=16, n_epochs=1, seed=1, device="cpu", **settings)


@pytest.mark.parametrize(
    ("settings", "compared"),
    [
        ({}, 2 + 5 + 6),
        ({"policy_kwargs": {"net_arch": [8], "activation_fn": nn.ReLU}}, 2 + 5 + 4),
        ({"policy_kwargs": {"net_arch": {"pi": [], "vf": [16, 4]}}}, 2 + 5 + 4),
        ({"policy_kwargs": {"ortho_init": False}}, 2 + 5),
    ],
    ids=["defaults", "sizes and activation", "of one part", "not orthogonal"],
)
def test_a_network_as_configured(settings: dict[str, Any], compared: int) -> None:
    report = audited(ppo(**settings), 64).report
    assert (report.verdict, codes(report), checks(report)) == ("PASS", set(), compared)


@pytest.mark.parametrize(
    ("settings", "compared"),
    [
        ({}, 2 + 5 + 1 + 6),
        ({"use_sde": True, "policy_kwargs": {"log_std_init": -2.0, "use_expln": True}}, 2 + 3 + 5 + 1 + 6),
        ({"use_sde": True, "policy_kwargs": {"squash_output": True}}, 2 + 3 + 5 + 1 + 6),
    ],
    ids=["gaussian", "expln", "squashed"],
)
def test_distributions_as_configured(settings: dict[str, Any], compared: int) -> None:
    report = audited(squashed(**settings), 64).report
    assert (report.verdict, codes(report), checks(report)) == ("PASS", set(), compared)


def test_weights_of_an_earlier_training_are_nobodys_fault(tmp_path: Path) -> None:
    model = ppo()
    model.learn(64)
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", env=model.get_env(), device="cpu")
    begun_with_others = ppo()
    begun_with_others.policy.load_state_dict(model.policy.state_dict())
    for each in (loaded, begun_with_others):
        report = audited(each, 64).report
        assert (report.verdict, codes(report), checks(report)) == ("PASS", set(), 2 + 5)


def layer_left_out(model: Any) -> None:
    extractor = model.policy.mlp_extractor
    extractor.policy_net = nn.Sequential(*list(extractor.policy_net)[:-1])


def test_an_activation_that_is_left_out_is_an_error() -> None:
    model = ppo()
    layer_left_out(model)
    report = audited(model, 64).report
    [found] = [finding for finding in report.findings if finding.code == "RLS420"]
    assert (report.verdict, found.severity, found.where.update) == ("FAIL", "error", None)
    assert found.expected == "Linear 64, Tanh, Linear 64, Tanh"
    assert found.observed == "Linear 64, Tanh, Linear 64 in mlp_extractor.policy_net"


def test_another_setting_of_the_optimizer_is_a_warning() -> None:
    model = ppo()
    for group in model.policy.optimizer.param_groups:
        group["eps"] = 1e-8
    report = audited(model, 64).report
    [found] = [finding for finding in report.findings if finding.code == "RLS420"]
    assert (found.severity, found.expected, found.observed) == ("warning", "1e-05", "1e-08 in the optimizer's eps")


def no_weights(module: nn.Module, gain: float = 1) -> None:
    """Nothing is written."""


@pytest.mark.parametrize(
    ("makes", "observed"),
    [
        (no_weights, "weights that are not orthogonal in mlp_extractor.policy_net.0"),
        (
            lambda module, gain=1: ORTHOGONAL(module, gain=2 * gain),
            "orthogonal weights with a gain of 2.828 in mlp_extractor.policy_net.0",
        ),
    ],
    ids=["none", "another gain"],
)
def test_other_weights_to_begin_with_are_a_warning(
    makes: Callable[..., None], observed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ActorCriticPolicy, "init_weights", staticmethod(makes))
    report = audited(A2C("MlpPolicy", "CartPole-v1", seed=1, device="cpu"), 20).report
    found = [finding for finding in report.findings if finding.code == "RLS420"]
    assert {finding.severity for finding in found} == {"warning"}
    assert len(found) == 6
    assert found[0].observed == observed


ORTHOGONAL = ActorCriticPolicy.init_weights
