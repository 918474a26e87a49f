"""Forks of verl that have a critic for estimators of their own, or none for those of the releases: their own condition decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from tests.systems.plans.checkouts import in_checkout, schedule_of
from tests.systems.plans.test_verl_checkouts import COMPARED_THEN_COUNTED, LAUNCH, MAIN, PASSES, SCALING, trainer

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.launched import Plan

ESTIMATORS = """
class AdvantageEstimator(str, Enum):
    GAE = "gae"
    GRPO = "grpo"
    LAM = "lam_return"
"""
AS_RELEASED = """
        if config.critic.enable is not None:
            self.use_critic = bool(config.critic.enable)
        elif self.config.algorithm.adv_estimator == AdvantageEstimator.GAE:
            self.use_critic = True
        {more}
        else:
            {otherwise}
"""
FOR_LAM = """elif self.config.algorithm.adv_estimator == AdvantageEstimator.LAM:
            self.use_critic = True"""
LISTED = """elif self.config.algorithm.adv_estimator in [AdvantageEstimator.GRPO]:
            self.use_critic = False"""
NEEDS = """
def need_critic(config):
    \"\"\"Given a config, do we need critic.\"\"\"
    if config.critic.enable is not None:
        return bool(config.critic.enable)
    if config.algorithm.adv_estimator in (AdvantageEstimator.GAE, AdvantageEstimator.LAM):
        return True
    return False
"""
SIZES = " critic.ppo_mini_batch_size=50 critic.ppo_micro_batch_size_per_gpu=5"


def planned(
    folder: Path, init: str, estimator: str, *, helper: str = "", more: str = "", estimators: str = ESTIMATORS
) -> Plan:
    source = trainer(COMPARED_THEN_COUNTED)
    if init:
        source = source.replace(
            "class RayPPOTrainer:\n", f"class RayPPOTrainer:\n    def __init__(self, config):{init}\n"
        )
    files = {
        "verl/trainer/main_ppo.py": MAIN,
        "verl/trainer/ppo/ray_trainer.py": source,
        "verl/trainer/ppo/core_algos.py": estimators,
        "verl/trainer/ppo/utils.py": helper,
        "verl/workers/fsdp_workers.py": SCALING,
        "verl/workers/actor/dp_actor.py": PASSES,
    }
    return in_checkout(folder, files, LAUNCH.replace("=grpo", f"={estimator}") + SIZES + more)


@pytest.mark.parametrize(
    ("estimator", "more", "updates"),
    [("lam_return", "", 8), ("gae", "", 8), ("grpo", "", None), ("lam_return", " critic.enable=False", None)],
)
def test_an_estimator_of_a_fork_has_the_critic_that_its_trainer_says(
    tmp_path: Path, estimator: str, more: str, updates: int | None
) -> None:
    init = AS_RELEASED.format(more=FOR_LAM, otherwise="self.use_critic = False")
    schedule = schedule_of(planned(tmp_path, init, estimator, more=more))
    # The critic's mini-batch is 50 samples here, which its workers do not multiply: 400 samples, 50 at a time.
    assert (schedule.critic.updates_per_rollout if schedule.critic is not None else None) == updates


def test_an_estimator_of_a_fork_without_a_condition_of_its_own_has_none(tmp_path: Path) -> None:
    init = AS_RELEASED.format(more=LISTED, otherwise="self.use_critic = False")
    assert schedule_of(planned(tmp_path, init, "lam_return")).critic is None


@pytest.mark.parametrize(("estimator", "has"), [("lam_return", True), ("grpo", False), ("gae", True)])
def test_the_function_that_decides_is_read_where_the_trainer_asks_it(tmp_path: Path, estimator: str, has: bool) -> None:
    init = "\n        self.use_critic = need_critic(self.config)"
    schedule = schedule_of(planned(tmp_path, init, estimator, helper=NEEDS))
    assert (schedule.critic is not None) == has


def test_an_estimator_that_the_trainer_ends_with_an_error_for_is_asked_about(tmp_path: Path) -> None:
    init = AS_RELEASED.format(more=LISTED, otherwise="raise NotImplementedError")
    with pytest.raises(LaunchError, match=r"adv_estimator=lam_return ends the run.*ray_trainer\.py:\d+"):
        planned(tmp_path, init, "lam_return")
    assert schedule_of(planned(tmp_path, init, "grpo")).critic is None


def test_names_of_estimators_whose_class_is_not_here_stand_for_what_the_releases_say(tmp_path: Path) -> None:
    init = AS_RELEASED.format(more=LISTED, otherwise="raise NotImplementedError")
    assert schedule_of(planned(tmp_path, init, "grpo", estimators="")).critic is None
    assert schedule_of(planned(tmp_path, init, "gae", estimators="")).critic is not None


@pytest.mark.parametrize(("values", "updates"), [("False", None), ("True", 8), ("", 0)])
def test_a_condition_on_a_setting_of_the_forks_own_is_followed_or_asked_about(
    tmp_path: Path, values: str, updates: int | None
) -> None:
    init = "\n        self.use_critic = False\n        if self.config.critic.own_values:\n            self.use_critic = True"
    more = f" +critic.own_values={values}" if values else ""
    if not values:
        with pytest.raises(
            LaunchError, match=r"whether there is a critic for algorithm\.adv_estimator=grpo is not known"
        ):
            planned(tmp_path, init, "grpo", more=more)
        return
    schedule = schedule_of(planned(tmp_path, init, "grpo", more=more))
    assert (schedule.critic.updates_per_rollout if schedule.critic is not None else None) == updates
