"""Real training with Stable-Baselines3 on CartPole: PPO with its early stop and its truncated mini-batch, A2C, and their faults."""

from __future__ import annotations

import copy
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy
import pytest
import torch
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import ConstantSchedule, LinearSchedule, set_random_seed

import rlstep_hooks
from rlstep_hooks import StepAuditError, StepAuditSB3Callback
from rlstep_hooks.record.events import MicroBatch, RunEnded, Unobserved
from rlstep_hooks.record.ledger import MemoryLedger
from rlstep_hooks.systems.sb3.observe.training import TrainingWatch
from tests.record.test_remote import status
from tests.reports import claimed, report_of
from tests.systems.broken import MESSAGE, break_method
from tests.systems.classic.sb3_faults import FromSecond, nothing, rising
from tests.systems.run_command import run_script

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.events import AnyEvent

pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")


def ppo(**settings: Any) -> PPO:
    wanted = {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "seed": 1, "device": "cpu"}
    return PPO("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=1), **(wanted | settings))


def audited(model: Any, timesteps: int, *more: BaseCallback, **settings: Any) -> StepAuditSB3Callback:
    audit = StepAuditSB3Callback(listeners=(), **({"log_dir": None} | settings))
    model.learn(timesteps, callback=[audit, *more])
    return audit


def events_of(audit: StepAuditSB3Callback) -> list[AnyEvent]:
    recorder = audit._session.recorder
    assert recorder is not None
    assert isinstance(recorder.ledger, MemoryLedger)
    return list(recorder.ledger.events)


def codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings if finding.severity != "info"}


def test_the_public_name() -> None:
    assert rlstep_hooks.StepAuditSB3Callback is StepAuditSB3Callback


def test_updates_and_passes() -> None:
    model = ppo(n_epochs=3)
    audit = audited(model, 150)
    report = audit.report
    assert report.verdict == "PASS"
    assert not codes(report)
    assert report.complete
    assert claimed(report, "sb3") == set()
    assert (report.counts.rollouts, report.counts.samples) == (3, 192)  # rollouts are whole
    assert report.counts.updates == report.counts.microbatches == report.schedule.updates == 3 * 3 * 4
    assert model._n_updates == 3 * 3  # n_updates counts passes
    assert "n_updates counts passes, 3 for each rollout" in report.schedule.step_means
    assert [values.lag for values in report.lags] == list(range(12))
    assert report.lags[0].max_abs_log_ratio < 1e-5
    assert report.lags[1].max_abs_log_ratio > 1e-4
    intact = next(rule for rule in report.rules if rule.code == "RLS305")
    assert (intact.verdict, intact.checks) == ("PASS", 36)


def test_a_truncated_last_minibatch_is_an_update() -> None:
    audit = audited(ppo(n_steps=25, batch_size=16), 100)
    assert audit.report.verdict == "PASS"
    assert audit.report.schedule.minibatches == (16, 16, 16, 2)
    sizes = [event.samples for event in events_of(audit) if isinstance(event, MicroBatch)]
    assert sizes == [16, 16, 16, 2] * 4
    assert audit.report.counts.updates == 16


def test_target_kl_saves_updates() -> None:
    model = ppo(n_epochs=8, target_kl=0.002, learning_rate=3e-3)
    audit = audited(model, 256)
    report = audit.report
    assert report.schedule.updates_bound == "upper"
    assert report.verdict == "PASS"
    assert not codes(report)
    saved = report.schedule.updates - report.counts.updates
    assert saved > 0
    found = next(finding for finding in report.findings if finding.code == "RLS212")
    assert found.severity == "info"
    assert str(saved) in found.observed
    assert model._n_updates < 4 * 8


def test_target_kl_that_never_acts() -> None:
    report = audited(ppo(target_kl=1e6), 128).report
    assert (report.verdict, report.counts.updates) == ("PASS", 2 * 2 * 4)


def test_a2c_makes_one_update_and_has_no_ratio() -> None:
    model = A2C("MlpPolicy", make_vec_env("CartPole-v1", 4, seed=1), seed=1, device="cpu")
    audit = audited(model, 200)
    report = audit.report
    assert report.verdict == "PASS"
    assert not codes(report)
    assert (report.counts.rollouts, report.counts.updates, model._n_updates) == (10, 10, 10)
    assert report.counts.old_logprob_refreshes == 0
    assert report.schedule.old_logprob_source == "none"
    assert not report.lags


def test_learning_goes_on_and_is_audited_anew() -> None:
    model = ppo()
    audit = audited(model, 128)
    first = audit.report
    model.learn(64, callback=audit, reset_num_timesteps=False)
    assert audit.report is not first
    assert (audit.report.verdict, audit.report.counts.rollouts, audit.report.schedule.rollouts) == ("PASS", 1, 1)


# Training is as without the audit.


def state_of(model: PPO) -> dict[str, Any]:
    return {
        "policy": copy.deepcopy(model.policy.state_dict()),
        "optimizer": copy.deepcopy(model.policy.optimizer.state_dict()["state"]),
        "torch": torch.get_rng_state(),
        "numpy": numpy.random.get_state()[1],
        "logged": {k: v for k, v in model.logger.name_to_value.items() if k.startswith("train/")},
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor | numpy.ndarray):
        return bool((one == other).all())
    return bool(one == other)


@pytest.mark.parametrize(
    "settings", [{}, {"target_kl": 0.002, "n_epochs": 6, "learning_rate": 3e-3}], ids=["plain", "kl"]
)
def test_bit_for_bit_the_same(settings: dict[str, Any]) -> None:
    states = []
    for callback in (None, StepAuditSB3Callback(listeners=())):
        set_random_seed(5)
        model = ppo(**settings)
        model.learn(256, callback=callback)
        states.append(state_of(model))
    assert callback is not None
    assert callback.report.counts.updates
    for part, before in states[0].items():
        assert same(before, states[1][part]), part


def test_nothing_stays_behind() -> None:
    model = ppo()
    policy = model.policy
    model.learn(64)
    before = [set(vars(owner)) for owner in (model, policy, policy.optimizer, model.rollout_buffer)]
    audited(model, 128)
    after = [set(vars(owner)) for owner in (model, policy, policy.optimizer, model.rollout_buffer)]
    assert [new - old for old, new in zip(before, after, strict=True)] == [set(), set(), set(), set()]
    assert not policy.optimizer._optimizer_step_post_hooks


def test_a_checkpoint_in_mid_run(tmp_path: Path) -> None:
    """What sits on the model would have to be pickled with it."""
    audit = audited(ppo(), 128, CheckpointCallback(save_freq=16, save_path=str(tmp_path)))
    assert audit.report.verdict == "PASS"
    assert PPO.load(sorted(tmp_path.iterdir())[0]).n_epochs == 2


# Faults.


class AfterRollout(BaseCallback):
    """Does something when the second rollout ends."""

    def __init__(self, does: Callable[[Any], None]) -> None:
        super().__init__()
        self._does = does
        self._rollouts = 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self._rollouts += 1
        if self._rollouts == 2:
            self._does(self.model)


def test_passes_changed_in_mid_run() -> None:
    def fewer(model: PPO) -> None:
        model.n_epochs = 1

    report = audited(ppo(), 192, AfterRollout(fewer)).report
    assert report.verdict == "FAIL"
    first = next(finding for finding in report.findings if finding.code == "RLS201")
    assert (first.where.rollout, first.observed) == (2, "a rollout")
    assert "RLS206" in codes(report)


@pytest.mark.parametrize(
    ("name", "value", "reaches"),
    [
        # Copied into the rollout buffer and lr_schedule when the model was built: an attribute does not reach them.
        ("gamma", 0.5, False),
        ("gae_lambda", 0.5, False),
        ("learning_rate", 1e-2, False),
        # Read when they are used: the attribute is the configuration.
        ("n_epochs", 3, True),
        ("batch_size", 32, True),
        ("ent_coef", 0.05, True),
        ("vf_coef", 0.1, True),
        ("max_grad_norm", 0.1, True),
        ("target_kl", 1e6, True),
        ("normalize_advantage", False, True),
        ("clip_range", ConstantSchedule(0.05), True),
    ],
)
def test_an_attribute_that_is_set_before_training(name: str, value: Any, reaches: bool) -> None:
    model = ppo()
    setattr(model, name, value)
    report = audited(model, 128).report
    if reaches:
        assert (report.verdict, codes(report)) == ("PASS", set()), [str(finding) for finding in report.findings]
        return
    assert report.verdict == "FAIL"
    first = report.findings[0]
    assert (first.code, first.severity, first.where.rollout) == ("RLS101", "error", 0)
    assert f"{name} = {value}, as configured" in first.expected


def test_a_model_that_was_loaded_computes_with_its_attributes(tmp_path: Path) -> None:
    ppo(learning_rate=LinearSchedule(1e-3, 1e-5, 1.0), clip_range=rising).save(tmp_path / "model.zip")
    model = PPO.load(tmp_path / "model.zip", env=make_vec_env("CartPole-v1", 2, seed=1), gamma=0.9, device="cpu")
    report = audited(model, 128).report
    assert (report.verdict, codes(report)) == ("PASS", set()), [str(finding) for finding in report.findings]


def test_old_log_probs_that_belong_to_other_samples() -> None:
    def shuffle(model: PPO) -> None:
        model.rollout_buffer.log_probs = model.rollout_buffer.log_probs[::-1].copy()

    report = audited(ppo(n_epochs=1), 192, AfterRollout(shuffle)).report
    assert {"RLS301", "RLS305"} <= codes(report)
    assert next(f for f in report.findings if f.code == "RLS305").where.rollout == 1


def test_a_step_outside_of_train() -> None:
    report = audited(ppo(), 192, AfterRollout(lambda model: model.policy.optimizer.step())).report
    first = next(finding for finding in report.findings if finding.code == "RLS203")
    assert (first.where.rollout, first.where.update) == (1, 8)
    assert report.counts.updates == 3 * 8 + 1


def test_steps_that_are_swallowed() -> None:
    def swallow(model: PPO) -> None:
        model.policy.optimizer.step = lambda closure=None: None

    report = audited(ppo(), 192, AfterRollout(swallow)).report
    assert "RLS204" in codes(report)
    assert report.counts.updates == 8


def test_a_learning_rate_of_zero() -> None:
    report = audited(ppo(learning_rate=lambda left: 0.0 if left < 0.6 else 1e-3), 192).report
    found = next(finding for finding in report.findings if finding.code == "RLS603")
    assert found.observed.startswith("exactly 0 in the last 16 of 24 updates")


def test_a_linear_schedule_is_at_zero_for_the_last_rollout() -> None:
    report = audited(ppo(learning_rate=lambda left: 1e-3 * left), 192).report
    assert report.verdict == "PASS"
    assert codes(report) == set(), "what Stable-Baselines3's linear schedules do is no fault of the run"
    found = next(finding for finding in report.findings if finding.code == "RLS603")
    assert found.observed == "exactly 0 in the 8 updates on the last rollout"


# Errors and refusals.


class Failing(BaseCallback):
    def _on_step(self) -> bool:
        if self.num_timesteps > 100:
            raise FloatingPointError("by the test")
        return True


def test_an_exception_ends_the_record() -> None:
    model = ppo()
    with pytest.raises(FloatingPointError), StepAuditSB3Callback(log_dir=None, listeners=()) as audit:
        model.learn(256, callback=[audit, Failing()])
    ended = next(event for event in events_of(audit) if isinstance(event, RunEnded))
    assert (ended.status, ended.error) == ("raised", "FloatingPointError: by the test")
    assert not audit.report.complete
    assert "zero_grad" not in vars(model.policy.optimizer)


class Stopping(BaseCallback):
    def _on_step(self) -> bool:
        return self.num_timesteps < 100


def test_an_early_end_that_was_wished() -> None:
    report = audited(ppo(), 640, Stopping()).report
    assert (report.verdict, report.counts.rollouts) == ("PASS", 1)


def test_on_fail_stop_ends_at_the_next_rollout() -> None:
    model = ppo()
    audit = audited(model, 6400, AfterRollout(lambda model: model.policy.optimizer.step()), on_fail="stop")
    assert audit.report.verdict == "FAIL"
    assert audit.report.counts.rollouts == 2
    assert "RLS206" not in codes(audit.report)


def test_on_fail_raise() -> None:
    with pytest.raises(StepAuditError, match="RLS203"):
        audited(ppo(), 6400, AfterRollout(lambda model: model.policy.optimizer.step()), on_fail="raise")


def test_on_fail_is_one_of_three() -> None:
    with pytest.raises(ValueError, match="on_fail"):
        StepAuditSB3Callback(on_fail="explode")  # type: ignore[arg-type]


def test_another_algorithm_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    model = DQN("MlpPolicy", make_vec_env("CartPole-v1", 1), buffer_size=100, device="cpu")
    audit = audited(model, 20)
    assert audit.report.verdict == "NOT_EVALUATED"
    assert "DQN is not supported" in audit.report.not_evaluated["order"]
    assert "DQN is not supported" in capsys.readouterr().err


def test_the_record_is_written(tmp_path: Path) -> None:
    audit = audited(ppo(), 128, log_dir=tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".jsonl"]
    assert audit.report.counts.updates == 16


SCRIPT = """
from stable_baselines3 import PPO
seen = []
model = PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=16, n_epochs=2, device="cpu")
model.learn(64, callback=lambda given, globals_: seen.append(1) is None)
assert len(seen) == 64
raise SystemExit(3)
"""


@pytest.mark.parametrize("logs", [None, "logs"])
def test_the_record_is_kept_by_default(
    logs: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = ppo()
    model.tensorboard_log = logs  # the package tensorboard is not needed for the folder
    audit = StepAuditSB3Callback()
    audit._on_training_end()  # nothing has begun, and nothing is written
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(type(model), "_setup_learn", without_tensorboard(type(model)._setup_learn))
    for number in range(2):
        model.learn(64, callback=audit)
        folder = Path(logs or ".") / "rlstep"
        assert len(list(folder.glob("*.rank0.jsonl"))) == number + 1
        said = capsys.readouterr().err.splitlines()[-2:]
        run = f" --run {audit.report.run}" if number else ""
        assert said == [f"recorded in {folder}", f"as a page: rlstep report {folder}{run} --html report.html"]
        # As the line says, and from the folder above.
        assert status(*said[1].split()[4:]) == 0
        assert "rlstep: wrote the page report.html" in capsys.readouterr().err
        assert status("report", logs or ".") == 0
        assert "PASS" in capsys.readouterr().out
    assert (tmp_path / "report.html").exists()


def without_tensorboard(setup: Any) -> Any:
    def changed(model: Any, *args: Any, **kwargs: Any) -> Any:
        logs, model.tensorboard_log = model.tensorboard_log, None
        found = setup(model, *args, **kwargs)
        model.tensorboard_log = logs
        return found

    return changed


def test_nothing_is_written_where_nothing_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ppo().learn(64, callback=StepAuditSB3Callback(log_dir=None))
    assert not list(tmp_path.iterdir())


def test_a_script_is_audited_without_an_edit(tmp_path: Path) -> None:
    done = run_script(tmp_path, SCRIPT)
    assert done.returncode == 3, done.stderr
    report = report_of(tmp_path / "log")
    assert (report.verdict, report.counts.rollouts, report.counts.updates, report.complete) == ("PASS", 2, 8, True)


def test_the_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[3] / "examples" / "sb3_cartpole.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--n-steps", "100", "--timesteps", "800"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    assert "PASS" in capsys.readouterr().err


def test_an_error_of_the_audit_costs_an_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ppo()
    monkeypatch.setattr(model.rollout_buffer, "swap_and_flatten", failing_once(model.rollout_buffer.swap_and_flatten))
    report = audited(model, 128).report
    assert report.verdict == "NOT_EVALUATED"
    assert "hook failed: ArithmeticError" in report.not_evaluated["order"]
    assert report.counts.updates == 2 * 8


PARTS: list[tuple[type, str, set[str]]] = [
    (StepAuditSB3Callback, "_timesteps_begin", {"rewards", "timesteps"}),
    (StepAuditSB3Callback, "_see_timestep", {"rewards", "timesteps"}),
    (StepAuditSB3Callback, "_old_log_probs", {"order", "refresh", "log_ratio"}),
    (StepAuditSB3Callback, "_see_model", {"order", "refresh", "log_ratio"}),
    (StepAuditSB3Callback, "_targets_and_values", {"advantages"}),
    (StepAuditSB3Callback, "_compare_advantages", {"advantages"}),
    (TrainingWatch, "_see_limit", {"log_ratio"}),
    (TrainingWatch, "_compare_targets", {"advantages"}),
    (TrainingWatch, "_hold_loss", {"formula"}),
    (TrainingWatch, "_add_surprisal", {"drawn"}),
    (TrainingWatch, "_add_divergence", {"formula"}),
]
"""What sees one thing -> the topics that are lost where it fails."""


@pytest.mark.parametrize(("owner", "name", "topics"), PARTS)
def test_a_part_that_fails_costs_its_topics_alone(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, topics: set[str]
) -> None:
    settings = {"target_kl": 0.002, "n_epochs": 6, "learning_rate": 3e-3}
    set_random_seed(5)
    unaudited = ppo(**settings)
    unaudited.learn(256)
    break_method(monkeypatch, owner, name)
    set_random_seed(5)
    model = ppo(**settings)
    audit = audited(model, 256)
    lost = [event for event in events_of(audit) if isinstance(event, Unobserved)]
    assert {event.what for event in lost if MESSAGE in event.why} == topics
    assert all(MESSAGE in audit.report.not_evaluated[topic] for topic in topics)
    assert not codes(audit.report)
    assert same(state_of(unaudited), state_of(model))


def failing_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Fails for its first caller, which is the audit: the framework flattens its buffer after the rollout."""
    calls: list[int] = []

    def called(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise ArithmeticError("of the audit")
        return function(*args, **kwargs)

    return called


def test_the_class_that_rlstep_run_hooks_has_its_own_function_again() -> None:
    from stable_baselines3.common import on_policy_algorithm

    from rlstep_hooks.systems.sb3.observe import injection

    own = vars(on_policy_algorithm.OnPolicyAlgorithm)["learn"]
    injection.audit_sb3(on_policy_algorithm)
    assert vars(on_policy_algorithm.OnPolicyAlgorithm)["learn"] is not own
    assert injection.detach() == []
    assert vars(on_policy_algorithm.OnPolicyAlgorithm)["learn"] is own


class SameReward(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Rewards and values that give every step the advantage 1, whose normalised value is 0."""

    def step(self, action: Any) -> Any:
        observation, _, ended, truncated, more = self.env.step(action)
        return observation, 1.0, ended, truncated, more


class ZeroValues(ActorCriticPolicy):
    """Its rollouts have the value 0; the critic learns all the same."""

    def forward(self, obs: torch.Tensor, deterministic: bool = False) -> Any:
        actions, values, log_probs = super().forward(obs, deterministic)
        return actions, torch.zeros_like(values), log_probs

    def predict_values(self, obs: Any) -> torch.Tensor:
        return torch.zeros_like(super().predict_values(obs))


def test_a_ratio_of_1_is_right_where_the_policy_gets_no_gradient() -> None:
    """Seen in Stable-Baselines3's own tests: the critic's update was taken for one that must move the ratio."""
    environment = make_vec_env(lambda: SameReward(gymnasium.make("CartPole-v1")), 2, seed=1)
    model = PPO(ZeroValues, environment, n_steps=32, batch_size=16, n_epochs=2, seed=1, gamma=0.0, device="cpu")
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    report = audited(model, 128).report
    changed = {name for name, value in model.policy.state_dict().items() if not torch.equal(value, before[name])}
    assert changed, "the critic learns"
    assert not any("action_net" in name for name in changed), "the policy does not"
    assert (report.verdict, codes(report)) == ("PASS", set())


def test_a_policy_that_is_certain_of_every_action() -> None:
    """Its log-probs are 0 whatever its weights do, so the ratio is exactly 1."""
    model = ppo()
    with torch.no_grad():
        model.policy.action_net.bias[0] = 200.0
    report = audited(model, 256).report
    assert (report.verdict, codes(report)) == ("PASS", set())


def certain(model: PPO) -> None:
    """The policy collapses."""
    with torch.no_grad():
        model.policy.action_net.bias[0] = 200.0


def test_a_policy_that_becomes_certain_has_no_gradient_left() -> None:
    report = audited(ppo(vf_coef=0.0, n_epochs=1), 256, FromSecond(certain, nothing)).report
    assert "RLS809" not in codes(report), [str(finding) for finding in report.findings]


def test_training_that_a_callback_ends_before_its_first_update_is_no_failure() -> None:
    class Never(BaseCallback):
        def _on_step(self) -> bool:
            return False

    report = audited(ppo(), 128, Never()).report
    assert (report.verdict == "FAIL", report.ending, codes(report)) == (False, "stopped", set())


@pytest.mark.parametrize(("asked", "recomputed"), [("all", 60), ("0.0001 %", 9)])
def test_how_much_is_recomputed(asked: str, recomputed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSTEP_COMPARE", asked)
    model = A2C("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=1), n_steps=4, seed=1, device="cpu")
    report = audited(model, 60 * 8).report
    assert report.verdict == "PASS"
    loss = next(rule for rule in report.rules if rule.code == "RLS801")
    assert (loss.verdict, loss.checks) == ("PASS", recomputed)
    assert loss.share == ("" if asked == "all" else f"{recomputed} of 60 rollouts")
