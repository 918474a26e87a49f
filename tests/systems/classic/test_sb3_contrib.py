"""sb3-contrib: MaskablePPO and RecurrentPPO are compared link by link as PPO is; TRPO is refused by name, with what is different."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
import torch
from sb3_contrib import TRPO, MaskablePPO, RecurrentPPO
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule, set_random_seed

from rlstep_hooks import StepAuditSB3Callback
from tests.reports import report_of
from tests.systems.classic.sb3_faults import FAULTS, UPDATES, Fault
from tests.systems.classic.test_sb3 import audited, codes, same, state_of
from tests.systems.classic.test_sb3_numbers import LINKS, passed
from tests.systems.run_command import run_script

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")


@pytest.fixture(autouse=True)
def numbers_with_each_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlstep_hooks.session.session.INTERVAL", 0.0)


WANTED: dict[str, Any] = {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "seed": 1, "device": "cpu"}


class TwoChoices(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Acrobot with two actions at a time."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.action_space = gymnasium.spaces.MultiDiscrete([3, 2])

    def step(self, action: Any) -> Any:
        return self.env.step(int(action[0]))


def allowed(env: Any) -> Any:
    """One of the actions is forbidden in some states."""
    mask = np.ones(5 if hasattr(env.action_space, "nvec") else 3, dtype=bool)
    mask[int(env.unwrapped.state[0] * 50) % 3] = False
    return mask


def masked(*, several: bool = False, **settings: Any) -> MaskablePPO:
    env = make_vec_env(
        "Acrobot-v1", 2, seed=1, wrapper_class=lambda env: ActionMasker(TwoChoices(env) if several else env, allowed)
    )
    return MaskablePPO("MlpPolicy", env, **(WANTED | settings))


def recurrent(*, env: str = "CartPole-v1", **settings: Any) -> RecurrentPPO:
    small = {"lstm_hidden_size": 16} | settings.pop("policy_kwargs", {})
    return RecurrentPPO("MlpLstmPolicy", make_vec_env(env, 2, seed=1), policy_kwargs=small, **(WANTED | settings))


SOUND: dict[str, tuple[Any, dict[str, Any]]] = {
    "masks": (masked, {"ent_coef": 0.01, "learning_rate": 3e-3}),
    "masks of several actions, target_kl": (masked, {"several": True, "target_kl": 0.002, "n_epochs": 4}),
    "masks, values clipped, the whole rollout at once": (masked, {"clip_range_vf": 0.1, "batch_size": None}),
    "masks, advantages as they are": (
        masked,
        {"normalize_advantage": False, "learning_rate": LinearSchedule(1e-3, 0, 1)},
    ),
    "an LSTM for each": (recurrent, {"ent_coef": 0.01, "learning_rate": 3e-3, "batch_size": 20}),
    "one LSTM for both": (
        recurrent,
        {"policy_kwargs": {"enable_critic_lstm": False, "shared_lstm": True}, "clip_range_vf": 0.1},
    ),
    "an LSTM for the policy alone, target_kl": (
        recurrent,
        {"policy_kwargs": {"enable_critic_lstm": False, "n_lstm_layers": 2}, "target_kl": 0.002, "n_epochs": 4},
    ),
    "an LSTM, continuous actions": (recurrent, {"env": "Pendulum-v1", "batch_size": 24, "normalize_advantage": False}),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_runs_are_silent_and_every_link_is_compared(name: str) -> None:
    make, settings = SOUND[name]
    report = audited(make(**settings), 320).report
    assert (report.verdict, codes(report)) == ("PASS", set()), [str(finding) for finding in report.findings]
    assert passed(report) >= LINKS, [rule for rule in report.rules if rule.code in LINKS]


def masks_lost(model: Any) -> None:
    """The loss takes every action for allowed."""
    evaluate = model.policy.evaluate_actions
    model.policy.evaluate_actions = lambda observations, actions, action_masks=None: evaluate(observations, actions)


def states_lost(model: Any) -> None:
    """The loss begins each sequence with an LSTM that remembers nothing."""
    evaluate = model.policy.evaluate_actions

    def evaluated(observations: Any, actions: Any, states: Any, starts: Any) -> Any:
        zeros = type(states)(*(tuple(torch.zeros_like(of) for of in pair) for pair in states))
        return evaluate(observations, actions, zeros, starts)

    model.policy.evaluate_actions = evaluated


def padding_trained(model: Any) -> None:
    """The loss counts the padding of sequences; the first mini-batch of that rollout is one sequence and has none."""
    get = model.rollout_buffer.get

    def changed(*args: Any, **kwargs: Any) -> Any:
        for samples in get(*args, **kwargs):
            yield samples._replace(mask=torch.ones_like(samples.mask))

    model.rollout_buffer.get = changed


OF_PPO = {
    fault.name: fault
    for fault in FAULTS
    if fault.name in ("values_zeroed", "rewards_cut", "targets_scaled", "layer_zeroed_by_a_hook", "actions_moved")
}
OWN = {
    "masks_lost": Fault(
        "masks_lost", "masks lost on the way", "RLS521", "other observations or actions", begins=masks_lost
    ),
    "states_lost": Fault(
        "states_lost", "an LSTM that starts anew", "RLS521", "other observations or actions", begins=states_lost
    ),
    "padding_trained": Fault(
        "padding_trained", "padding in the loss", "RLS801", "", begins=padding_trained, update=UPDATES + 1
    ),
}
BROKEN = [
    *((masked, OF_PPO[name]) for name in ("targets_scaled", "layer_zeroed_by_a_hook", "actions_moved")),
    (masked, OWN["masks_lost"]),
    *(
        (recurrent, OF_PPO[name])
        for name in ("targets_scaled", "layer_zeroed_by_a_hook", "actions_moved", "values_zeroed")
    ),
    (recurrent, OWN["states_lost"]),
    (recurrent, OWN["padding_trained"]),
]


@pytest.mark.parametrize(("make", "fault"), BROKEN, ids=lambda of: of.name if isinstance(of, Fault) else of.__name__)
def test_fault_is_found_by_its_rule_at_its_event(make: Any, fault: Fault) -> None:
    model = make()
    fault.prepare(model)
    report = audited(model, 192, fault.callback).report
    named = [finding for finding in report.findings if finding.code == fault.code]
    assert named, [str(finding) for finding in report.findings]
    assert (named[0].where.rollout, named[0].where.update) == (1, fault.update)
    assert fault.cause in f"{named[0].expected} {named[0].observed} {named[0].why}", str(named[0])
    assert not [finding for finding in report.findings if finding.severity != "info" and finding.where.rollout == 0]
    assert report.verdict == "FAIL"


@pytest.mark.parametrize("make", [masked, recurrent])
def test_bit_for_bit_the_same(make: Any) -> None:
    states = []
    for callback in (None, StepAuditSB3Callback(listeners=())):
        set_random_seed(5)
        model = make()
        model.learn(192, callback=callback)
        states.append(state_of(model))
    assert callback is not None
    assert callback.report.counts.updates
    for part, before in states[0].items():
        assert same(before, states[1][part]), part


def test_what_is_different_in_trpo_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    model = TRPO("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=1), n_steps=32, batch_size=16, device="cpu")
    audit = audited(model, 64)
    assert audit.report.verdict == "NOT_EVALUATED"
    assert "line search" in str(audit.report.not_evaluated["order"])
    assert model.num_timesteps == 64


SCRIPT = """
from sb3_contrib import MaskablePPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete

model = MaskablePPO("MlpPolicy", InvalidActionEnvDiscrete(dim=20, n_invalid_actions=10), n_steps=32, batch_size=16, n_epochs=2)
model.learn(64)
"""


def test_a_script_is_audited_without_an_edit(tmp_path: Path) -> None:
    done = run_script(tmp_path, SCRIPT)
    assert done.returncode == 0, done.stderr
    report = report_of(tmp_path / "log")
    assert (report.verdict, report.counts.updates) == ("PASS", 2 * 2 * 2)
