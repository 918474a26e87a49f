"""Training is the same with the audit, without it, and with one whose hooks raise: bit for bit, in all that verl logs.

PPO with validation in between, by RayPPOTrainer: its rollouts can be repeated, while the newer trainers order samples by random
names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.systems import broken
from tests.systems.verl import broken_hooks
from tests.systems.verl.audited import Expected, audited, logged, metrics, problems, shown
from tests.systems.verl.launch import Assets, critic, grpo, launch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def overrides(assets: Assets) -> dict[str, Any]:
    return (
        grpo(assets)
        | critic(assets)
        | {
            "trainer.use_v1": False,
            "actor_rollout_ref.actor.ppo_epochs": 2,
            "actor_rollout_ref.rollout.full_determinism": True,
            "critic.fsdp.full_determinism": True,
            "trainer.total_training_steps": 3,
            "trainer.val_before_train": True,
            "trainer.test_freq": 1,
        }
    )


@pytest.fixture(scope="module")
def bare(overrides: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What verl logs without an audit."""
    outcome = launch(logged(overrides), tmp_path_factory.mktemp("bare"))
    assert outcome.status == 0, outcome.tail
    logged_metrics = metrics(outcome)
    assert len({values["actor/grad_norm"] for values in logged_metrics if "actor/grad_norm" in values}) == 3
    return logged_metrics


def test_training_is_the_same(overrides: dict[str, Any], bare: list[dict[str, Any]], tmp_path: Path) -> None:
    run = audited(overrides, tmp_path)
    Expected(rollouts=3, updates=12, critic_updates=12, lags=(0, 1, 2, 3), not_drawn="full_determinism").check(run)
    assert run.report.counts.evaluation_rollouts == 4
    assert metrics(run.outcome) == bare

    # One point before the first rollout (validation), one after each of three.
    tracked = shown(run.outcome)
    lags = {values.lag: values for values in run.report.lags}
    assert [value for _, value in tracked["rollouts"]] == [0, 1, 2, 3]
    assert [value for _, value in tracked["updates"]] == [0, 4, 8, 12]
    assert {value for _, value in tracked["verdict"]} == {1}, "the first weight sync is as planned already"
    assert {value for _, value in tracked["findings"]} == {0}
    assert {value for _, value in tracked["weight_version_age"]} == {0}
    assert tracked["lag_max"][-1] == (3, 3)
    assert tracked["log_ratio_max_lag_0"][-1] == (3, pytest.approx(lags[0].max_abs_log_ratio))


def test_training_is_the_same_when_hooks_raise(
    overrides: dict[str, Any], bare: list[dict[str, Any]], tmp_path: Path
) -> None:
    names = tmp_path / "broken.txt"
    # At its second call, when the run is under way.
    environment = broken.asking(names, call=2)
    run = audited(overrides, tmp_path / "run", modules=[broken_hooks.MODULE], environment=environment)
    assert run.outcome.status == 0, run.outcome.tail
    assert metrics(run.outcome) == bare
    assert broken.names_in(names) == {name for _, name in broken_hooks.FUNCTIONS}
    assert run.report.verdict == "NOT_EVALUATED"
    assert problems(run.report) == [], "what was not observed is no finding"
    reasons = {what: why for what, why in run.report.not_evaluated.items() if broken.MESSAGE in why}
    assert {"order", "samples", "log_ratio", "weights"} <= set(reasons)
