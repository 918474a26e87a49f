"""`rlstep why` on real runs with timesteps: a conclusion from their numbers, and nothing that only text has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from rlstep_hooks import StepAuditSB3Callback
from rlstep_hooks.judge.measures import measures_of
from rlstep_hooks.judge.settings import RunSettings
from rlstep_hooks.judge.symptoms import why
from rlstep_hooks.systems.engine import index

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report


def judged(learning_rate: float) -> Report:
    audit = StepAuditSB3Callback(log_dir=None, listeners=())
    environment = make_vec_env("CartPole-v1", 2, seed=1)
    model = PPO("MlpPolicy", environment, learning_rate, n_steps=64, batch_size=32, n_epochs=4, seed=1, device="cpu")
    model.learn(1024, callback=audit)
    report: Report = audit.report
    return report


def test_a_large_rate_is_named_beside_a_pass() -> None:
    report = judged(0.3)
    assert report.verdict == "PASS"
    assert "KL from the old policy" in {line.quantity for line in report.health}
    knobs = index.knobs_of(report.schedule)
    (found,) = (each for each in why(report, knobs=knobs) if each.name == "kl-explodes")
    assert found.sign
    assert found.left[0].change == "lower learning_rate: try 0.03, a tenth"
    assert any("n_epochs" in left.change and "target_kl" in left.change for left in found.left)
    said = " ".join(left.words for left in found.left)
    assert "reference" not in said
    assert "KL term" not in said
    measures = measures_of(report, RunSettings(report.schedule, knobs))
    held = {each.name: each.words for each in measures.held}
    assert held["learning rate"] == "0.3 throughout"
    assert "before the clip; limit 0.5" in held["gradient norm"]
    assert {"|log ratio|", "learning rate", "gradient norm"} == held.keys()
    assert measures.missing == ("clipped", "entropy", "reward")


def test_a_usual_rate_is_near_to_published_runs() -> None:
    report = judged(3e-4)
    assert report.verdict == "PASS"
    assert not report.health
    assert not [answer.name for answer in why(report) if answer.shown]
