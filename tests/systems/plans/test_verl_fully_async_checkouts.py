"""Launches of verl's fully_async_policy in a checkout of the recipe that came before it: its own settings decide on old log-probs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from tests.systems.plans.checkouts import in_checkout, schedule_of

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.launched import Plan

HOME = "recipe/fully_async_policy"
CHOICE = "self.local_trigger_step if self.compute_prox_log_prob else None"
PASSES = "range(self.config.rollout.total_epochs)"
LAUNCH = (
    "python -m recipe.fully_async_policy.fully_async_main data.train_batch_size=0 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.rollout.n=4 "
    "actor_rollout_ref.rollout.calculate_log_probs=True rollout.total_rollout_steps=6400 "
    "async_training.staleness_threshold=0.5 algorithm.rollout_correction.bypass_mode=False "
)


def planned(
    folder: Path,
    more: str = "",
    *,
    choice: str = CHOICE,
    engines: str = "True",
    prox: str = "False",
    passes: str = PASSES,
    asks: str = "async_training.use_rollout_log_probs",
    rows: int | None = None,
) -> Plan:
    """The plan of a launch of the recipe, whose file of settings has these two."""
    files = {
        f"{HOME}/fully_async_main.py": "@hydra.main(config_path='config', config_name='trainer')\ndef main(config):\n    pass\n",
        f"{HOME}/config/trainer.yaml": "async_training:\n  staleness_threshold: 0.1\n  trigger_parameter_sync_step: 4\n"
        f"  use_rollout_log_probs: {engines}\n  compute_prox_log_prob: {prox}\n"
        "data: {train_batch_size: 0}\nactor_rollout_ref:\n  actor: {ppo_mini_batch_size: 256}\n"
        "  rollout: {n: 1, calculate_log_probs: true}\nrollout: {total_rollout_steps: 100, total_epochs: 10}\n"
        "algorithm: {rollout_correction: {bypass_mode: false}}\n",
        f"{HOME}/ray_trainer.py": f"if async_training and {asks}:\n    pass\n"
        "batch, found = self.compute_rollout_importance_weights_and_add_to_batch(batch)\n",
        f"{HOME}/fully_async_rollouter.py": f"def feed(self):\n    for epoch in {passes}:\n        pass\n",
        f"{HOME}/fully_async_trainer.py": f"self._process_batch_common(batch, metrics, timing_raw, {choice})\n",
    }
    return in_checkout(folder, files, LAUNCH + more, rows=rows)


def test_the_rows_end_a_run_of_the_recipe_before_its_total_does(tmp_path: Path) -> None:
    assert (
        schedule_of(planned(tmp_path, rows=100)).rollouts == 15
    )  # 100 rows in 10 epochs are less than 6400, 64 a rollout
    assert schedule_of(planned(tmp_path, "rollout.total_epochs=20", rows=100)).rollouts == 31
    assert schedule_of(planned(tmp_path, "trainer.total_epochs=1", rows=100)).rollouts == 1
    assert schedule_of(planned(tmp_path, rows=1000)).rollouts == 100


@pytest.mark.parametrize(("passes", "rollouts"), [(PASSES, 15), ("range(self.config.trainer.total_epochs)", 46)])
def test_the_passes_over_the_rows_are_read_whichever_setting_the_old_log_probs_have(
    tmp_path: Path, passes: str, rollouts: int
) -> None:
    plan = planned(tmp_path, passes=passes, asks="rollout_corr_config.bypass_mode", rows=100)
    assert schedule_of(plan).rollouts == rollouts
    assert schedule_of(plan).old_logprob_source == "recompute"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("+trainer.n_gpus_per_node=6", "64 % 6 != 0"),
        ("+trainer.n_gpus_per_node=6 +trainer.balance_batch=False", "Got mini_batch_size=64 and "),
        ("+trainer.n_gpus_per_node=6 +actor_rollout_ref.actor.ulysses_sequence_parallel_size=3", None),
        (
            "+trainer.n_gpus_per_node=6 +actor_rollout_ref.actor.strategy=megatron "
            "+actor_rollout_ref.actor.megatron.tensor_model_parallel_size=3",
            None,
        ),
    ],
)
def test_samples_that_do_not_divide_by_the_processes_are_refused(tmp_path: Path, more: str, says: str | None) -> None:
    refused = [finding.observed for finding in planned(tmp_path, more).findings if finding.code == "RLS110"]
    assert [says is not None and says in observed for observed in refused] == ([] if says is None else [True])


@pytest.mark.parametrize(
    ("more", "correction"),
    [
        ("", "none"),
        ("algorithm.rollout_is=True", "none"),
        ("algorithm.rollout_is=False algorithm.rollout_is_threshold=1.001", "none"),
        ("algorithm.rollout_is=True algorithm.rollout_is_threshold=1.001", "importance weights, at most 1.001"),
    ],
)
def test_the_importance_weights_of_the_recipe_have_settings_of_their_own(
    tmp_path: Path, more: str, correction: str
) -> None:
    assert schedule_of(planned(tmp_path, more, prox="True")).correction == correction


@pytest.mark.parametrize(
    ("more", "prox", "source", "uncorrected"),
    [
        ("", "False", "engine", False),
        ("async_training.use_rollout_log_probs=True", "False", "engine", False),
        ("", "True", "recompute", True),
        ("async_training.compute_prox_log_prob=True", "False", "recompute", True),
    ],
)
def test_the_settings_of_the_recipe_say_whose_log_probs_are_the_old_ones(
    tmp_path: Path, more: str, prox: str, source: str, uncorrected: bool
) -> None:
    plan = planned(tmp_path, more, prox=prox)
    assert plan.framework == "verl_fully_async"
    assert schedule_of(plan).old_logprob_source == source
    findings = {finding.code: finding for finding in plan.findings}
    assert ("RLS117" in findings) is uncorrected
    if uncorrected:
        assert "async_training.compute_prox_log_prob=False" in findings["RLS117"].fix


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engines": "False"}, "each fetch has old log-probs of its own"),
        ({"engines": "null"}, "the value of async_training.use_rollout_log_probs was not found"),
        ({"passes": "range(2)"}, "no `for epoch in range.self.config.rollout.total_epochs.:` was found"),
        ({"choice": "self.local_trigger_step"}, "no `self.local_trigger_step if self.compute_prox_log_prob else None`"),
    ],
)
def test_old_log_probs_that_are_not_those_of_the_recipe_are_asked_about(
    tmp_path: Path, given: dict[str, str], said: str
) -> None:
    with pytest.raises(LaunchError, match=said):
        planned(tmp_path, **given)  # type: ignore[arg-type]
