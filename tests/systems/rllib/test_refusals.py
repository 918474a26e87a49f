"""What is not followed is refused by name, and what the audit raises reaches the script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from ray.rllib.algorithms.ppo import PPO
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner

from rlstep_hooks import StepAuditError
from tests.systems.rllib.faults import FAULTS
from tests.systems.rllib.tiny import config, trained

if TYPE_CHECKING:
    from collections.abc import Callable


class OwnLoss(PPOTorchLearner):
    def compute_loss_for_module(self, **given: Any) -> Any:
        return super().compute_loss_for_module(**given)


class OwnStep(PPO):
    def training_step(self) -> None:
        super().training_step()


def _old_stack(settings: Any) -> Any:
    return settings.api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a learner of somebody's": (lambda settings: settings.learners(learner_class=OwnLoss) or settings, "OwnLoss"),
    "a recurrent module": (
        lambda settings: settings.rl_module(model_config={"use_lstm": True, "max_seq_len": 4}),
        "a recurrent module",
    ),
    "the old API stack": (_old_stack, "old API stack"),
    "an algorithm of somebody's": (lambda settings: settings.copy(), "OwnStep"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_followed_is_refused_by_name(name: str) -> None:
    changed, words = REFUSED[name]
    settings = changed(config())
    if words == "OwnStep":
        settings.algo_class = OwnStep
    if name == "the old API stack":
        settings.rl_module(model_config={}).training(minibatch_size=32)
    report = trained(settings, rollouts=1)
    assert report.verdict == "NOT_EVALUATED"
    assert words in report.not_evaluated["order"]
    assert report.counts.rollouts == 0


def test_several_learners_are_refused_by_name() -> None:
    report = trained(config().learners(num_learners=1), rollouts=0)
    assert report.verdict == "NOT_EVALUATED"
    assert "num_learners=1" in report.not_evaluated["order"]


def test_an_error_is_raised_out_of_train(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "the rate is doubled")
    with pytest.raises(StepAuditError, match="RLS605"):
        trained(config(), breaks=lambda algorithm: fault.breaks(algorithm, monkeypatch), on_fail="raise")
