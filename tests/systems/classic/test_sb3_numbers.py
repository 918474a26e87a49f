"""Stable-Baselines3, from the reward to the weight: each fault is found by the rule of its link, and sound runs are silent."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy
import pytest
import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.utils import LinearSchedule

from rlstep_hooks.judge.causes import groups
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.planning.finding import Where
from rlstep_hooks.systems.sb3.observe.loss import MiniBatch, Settings
from rlstep_hooks.systems.sb3.observe.pure import is_pure
from tests.bugs.undo import rewritten
from tests.detection.outcomes import Clean, Detected, delay_of, note
from tests.systems.classic.sb3_faults import FAULTS, Fault, FromSecond, nothing, rising
from tests.systems.classic.test_sb3 import audited, codes, events_of, ppo

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report

pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")

LINKS = {"RLS521", "RLS515", "RLS516", "RLS517", "RLS605", "RLS801", "RLS803", "RLS806", "RLS807", "RLS808", "RLS810"}


def passed(report: Report) -> set[str]:
    return {rule.code for rule in report.rules if rule.verdict == "PASS"}


@pytest.fixture(autouse=True)
def numbers_with_each_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlstep_hooks.session.session.INTERVAL", 0.0)


def a2c(**settings: Any) -> A2C:
    return A2C("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=1), n_steps=32, seed=1, device="cpu", **settings)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found_by_its_rule_at_its_event(fault: Fault) -> None:
    model = ppo(**fault.settings) if fault.algorithm == "PPO" else a2c(**fault.settings)
    fault.prepare(model)
    audit = audited(model, 192, fault.callback)
    named = [finding for finding in audit.report.findings if finding.code == fault.code]
    place = Where(rollout=1, update=fault.update)
    early = [f for f in audit.report.findings if f.severity != "info" and f.where.rollout == 0]
    note(
        Detected(
            framework="Stable-Baselines3",
            fault=fault.name,
            report=fault.report,
            code=fault.code,
            found=bool(named) and named[0].where.rollout == 1,
            delay=delay_of(events_of(audit), Judge(), fault.code, place),
            early=len(early),
        )
    )
    assert named, [str(finding) for finding in audit.report.findings]
    found = named[0]
    assert (found.where.rollout, found.where.update) == (1, fault.update), str(found)
    assert fault.cause in f"{found.expected} {found.observed} {found.why}", str(found)
    assert not early
    heads = [head.code for head, _ in groups(audit.report.findings) if head.severity != "info"]
    assert heads == [fault.headline or fault.code], "one cause, one headline"


SOUND: dict[str, dict[str, Any]] = {
    "plain": {},
    "values clipped, entropy": {"clip_range_vf": 0.1, "ent_coef": 0.02, "learning_rate": 3e-3},
    "advantages as they are": {"normalize_advantage": False, "gamma": 1.0, "gae_lambda": 1.0},
    "a mini-batch of one": {"n_steps": 25, "batch_size": 7, "learning_rate": 3e-3},
    "linear rate and clip": {
        "learning_rate": LinearSchedule(1e-3, 1e-5, 0.7),
        "clip_range": LinearSchedule(0.3, 0.05, 1.0),
    },
    "target_kl": {"target_kl": 0.002, "n_epochs": 6, "learning_rate": 3e-3},
    "a small limit": {"max_grad_norm": 1e-3, "vf_coef": 0.0},
    "weight decay": {
        "policy_kwargs": {"optimizer_class": torch.optim.AdamW, "optimizer_kwargs": {"weight_decay": 0.1}}
    },
    "a function of somebody's that only computes": {
        "learning_rate": rising,
        "clip_range": lambda left: 0.1 + 0.1 * max(left, 0.5),
    },
    "rmsprop": {
        "policy_kwargs": {
            "optimizer_class": torch.optim.RMSprop,
            "optimizer_kwargs": {"momentum": 0.9, "weight_decay": 0.01, "alpha": 0.9},
        }
    },
    "rmsprop as in TensorFlow": {
        "policy_kwargs": {
            "optimizer_class": RMSpropTFLike,
            "optimizer_kwargs": {"alpha": 0.99, "eps": 1e-5, "momentum": 0.5, "weight_decay": 0.01},
        }
    },
    "sgd": {"policy_kwargs": {"optimizer_class": torch.optim.SGD, "optimizer_kwargs": {"momentum": 0.9}}},
    "a state-dependent deviation": {"use_sde": True, "env": "Pendulum-v1"},
    "a critic whose gradient leaves nothing of the policy's under the clip": {
        "env": "Pendulum-v1",
        "gamma": 1.0,
        "max_grad_norm": 0.01,
        "policy_kwargs": {"optimizer_class": torch.optim.SGD, "optimizer_kwargs": {"momentum": 0.1}},
    },
    "squashed actions have no entropy": {
        "use_sde": True,
        "env": "Pendulum-v1",
        "policy_kwargs": {"squash_output": True},
    },
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_runs_are_silent_and_every_link_is_compared(name: str) -> None:
    settings = dict(SOUND[name])
    wanted = {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "seed": 1, "device": "cpu"}
    env = make_vec_env(settings.pop("env", "CartPole-v1"), 2, seed=1)
    audit = audited(PPO("MlpPolicy", env, **(wanted | settings)), 320)
    report = audit.report
    note(Clean(framework="Stable-Baselines3", alarms=tuple(codes(report))))
    assert (report.verdict, codes(report)) == ("PASS", set()), [str(f) for f in report.findings]
    assert passed(report) >= LINKS, [rule for rule in report.rules if rule.code in LINKS]


def test_a_clip_that_ends_every_gradient_is_no_missing_gradient() -> None:
    """Found by a random configuration: RLS809 took a ratio within 1 % for one that no clip touches."""
    report = audited(ppo(clip_range=1e-3, batch_size=4, vf_coef=0.0, learning_rate=3e-4, n_epochs=4), 192).report
    assert (report.verdict, codes(report)) == ("PASS", set()), [str(f) for f in report.findings]
    assert "RLS809" in passed(report)


def test_layers_that_died_are_no_missing_gradient() -> None:
    """Found by a random configuration: all probed tensors stood before a layer of ReLUs that had died."""

    def dies(model: Any) -> None:
        with torch.no_grad():
            model.policy.mlp_extractor.policy_net[2].bias.fill_(-100.0)

    layers = {"net_arch": {"pi": [8, 8], "vf": [8]}, "activation_fn": torch.nn.ReLU}
    report = audited(ppo(vf_coef=0.0, ent_coef=0.1, policy_kwargs=layers), 320, FromSecond(dies, nothing)).report
    assert codes(report) == {"RLS404"}  # the weight that this test wrote


@pytest.mark.parametrize("settings", [{}, {"normalize_advantage": True, "use_rms_prop": False, "ent_coef": 0.01}])
def test_a2c(settings: dict[str, Any]) -> None:
    model = A2C("MlpPolicy", make_vec_env("CartPole-v1", 4, seed=1), seed=1, device="cpu", **settings)
    report = audited(model, 400).report
    assert (report.verdict, codes(report)) == ("PASS", set())
    assert passed(report) >= LINKS | {"RLS301"}


def test_a_second_call_of_learn_goes_on_with_its_rate() -> None:
    model = ppo(learning_rate=LinearSchedule(1e-3, 1e-5, 0.7))
    audit = audited(model, 128)
    model.learn(128, callback=audit, reset_num_timesteps=False)
    assert (audit.report.verdict, codes(audit.report)) == ("PASS", set())
    assert "RLS605" in passed(audit.report)


CALLS: list[float] = []


def counted(left: float) -> float:
    CALLS.append(left)
    return 1e-3


class OfAClass:
    """A schedule with a state."""

    def __init__(self) -> None:
        self.rate = 1e-3

    def __call__(self, left: float) -> float:
        self.rate *= 0.99
        return self.rate


def test_functions_that_do_more_than_compute_are_not_called_once_more() -> None:
    CALLS.clear()
    report = audited(ppo(learning_rate=counted, clip_range=OfAClass()), 128).report
    assert report.verdict == "PASS"
    assert len(CALLS) == 2 * 2 + 1, "twice a rollout, and when the model is built"
    assert "a function of somebody's" in report.not_evaluated["formula"]
    assert not {"RLS605", "RLS801"} & passed(report)


FACTOR = 0.5


def schedules() -> dict[str, tuple[Any, bool]]:
    """Functions, and whether they only compute."""
    start, seen = 3e-4, {"rate": 1e-3}
    inner = lambda left: start * left  # noqa: E731
    return {
        "closure": (inner, True),
        "of another": (lambda left: FACTOR * inner(left), True),
        "of math": (lambda left: start * (1 + math.cos(math.pi * left)), True),
        "of numpy": (lambda left: float(numpy.interp(left, (0.0, 1.0), (1e-4, 1e-3))), True),
        "branches": (lambda left: 1e-3 if left > FACTOR else max(1e-4, left * 1e-3), True),
        "partial": (functools.partial(pow, 0.5), True),
        "a state": (OfAClass(), False),
        "a list": (counted, False),
        "a dictionary": (lambda left: seen["rate"], False),
        "random": (lambda left: start * numpy.random.rand(), False),
        "a default": (lambda left, known=seen: 1e-3, False),
        "prints": (lambda left: print(left) or 1e-3, False),
        "of itself": (recursive, False),
    }


def recursive(left: float) -> float:
    return left if left < 1e-3 else recursive(left / 2)


@pytest.mark.parametrize("name", schedules())
def test_what_only_computes(name: str) -> None:
    function, computes = schedules()[name]
    assert is_pure(function) == computes


def test_a_lowered_bonus_is_told_and_no_fault() -> None:
    class Lowering(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            self.model.ent_coef *= 0.5

    report = audited(ppo(ent_coef=0.02), 256, Lowering()).report
    assert (report.verdict, codes(report)) == ("PASS", set()), [str(f) for f in report.findings]
    told = next(finding for finding in report.findings if finding.code == "RLS101")
    assert (told.severity, told.observed) == ("info", "ent_coef = 0.01")
    assert "RLS801" in passed(report)


def test_actions_that_are_no_longer_drawn() -> None:
    """Somebody evaluates between rollouts and leaves the policy deterministic."""

    def begins(model: PPO) -> None:
        with torch.no_grad():
            model.policy.action_net.weight.mul_(300)
        forward = model.policy.forward
        model.policy.forward = lambda observations, deterministic=False: forward(observations, deterministic=True)

    audit = audited(ppo(n_steps=128, batch_size=128, n_epochs=1), 256 * 24, FromSecond(begins, nothing))
    (finding,) = (finding for finding in audit.report.findings if finding.code == "RLS413")
    assert "more probable than that" in finding.observed
    assert "a temperature near 0" in finding.why


class Images(gymnasium.Env[Any, Any]):
    """Observations of several kinds, in an array that is used again."""

    def __init__(self) -> None:
        kinds = {"image": gymnasium.spaces.Box(0, 255, (3, 36, 36), numpy.uint8), "place": gymnasium.spaces.Discrete(5)}
        self.observation_space = gymnasium.spaces.Dict(kinds)
        self.action_space = gymnasium.spaces.MultiDiscrete([2, 3])
        self._left = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._left = 7
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        return self._seen(), float(action[0]), self._left == 0, False, {}

    def _seen(self) -> dict[str, Any]:
        image = self.np_random.integers(0, 255, (3, 36, 36), dtype=numpy.uint8)
        return {"image": image, "place": self._left % 5}


def test_observations_of_several_kinds() -> None:
    env = make_vec_env(Images, 2, seed=1)
    kinds = {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "seed": 1, "device": "cpu"}
    report = audited(PPO("MultiInputPolicy", env, **kinds), 160).report
    assert (report.verdict, codes(report)) == ("PASS", set()), [str(f) for f in report.findings]
    assert passed(report) >= {"RLS413", "RLS515", "RLS521"}


def test_a_loss_that_may_be_the_documented_one_has_no_other_name() -> None:
    """Where the value's term has no weight, the documented loss is also one without it."""
    from stable_baselines3.common.type_aliases import RolloutBufferSamples

    numbers = torch.arange(1.0, 9.0)
    settings = Settings(clip=0.2, value_clip=None, normalises=False, entropy=0.0, value=0.0)
    loss = MiniBatch.of(-numbers, numbers, None, settings=settings)
    loss.add_samples(RolloutBufferSamples(numbers, numbers, numbers, -numbers, numbers, numbers))
    documented = -numbers / 8  # of the ratio 1
    for roundings, name in ((0, ""), (60, ""), (1e5, "that with a policy's term 1.024 times as large")):
        away = 1 + roundings * 2 * torch.finfo(torch.float32).eps
        loss.arrived = {"log_probs": documented * away, "values": torch.zeros(8)}
        assert loss.like() == name


def test_a_count_of_timesteps_that_does_not_begin_at_0(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = rewritten(BaseAlgorithm._setup_learn, BaseAlgorithm, "self.num_timesteps = 0", "self.num_timesteps = -1")
    monkeypatch.setattr(BaseAlgorithm, "_setup_learn", wrong)
    report = audited(ppo(), 128).report
    assert [finding.code for finding in report.findings if finding.severity == "error"] == ["RLS206"]
