"""Launches in a checkout of RAGEN or of a fork: its own trainer says which groups it leaves out."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from tests.systems.plans.checkouts import in_checkout, schedule_of

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.launched import Plan

RAGEN_TRAINER = """
class RayAgentTrainer:
    def fit(self):
        def _filter_rollout(batch):
            return batch, {{"ratio": self.config.actor_rollout_ref.rollout.rollout_filter_ratio}}

        if self.config.trainer.get("val_only", False):
            return

        for step in range(self.total_training_steps):
            is_last_step = self.global_steps >= self.total_training_steps
            with _timer("gen"):
                batch = self.agent_proxy.rollout(batch, val=False)
{filters}
{ends}
            if is_last_step:
                return
"""
VERL_TRAINER = """
class AdvantageEstimator(str, Enum):
    GAE = "gae"
    GRPO = "grpo"
    GRPO_OWN = "grpo_own"
    WITH_CRITIC = "with_critic"
    REMAX = "remax"

class RayPPOTrainer:
    def __init__(self, config):
        if self.config.algorithm.adv_estimator in [AdvantageEstimator.GAE, AdvantageEstimator.WITH_CRITIC]:
            self.use_critic = True
        elif self.config.algorithm.adv_estimator in [
            AdvantageEstimator.GRPO, AdvantageEstimator.GRPO_OWN, AdvantageEstimator.REMAX
        ]:
            self.use_critic = False
"""
FILTER = "batch, metrics = _filter_rollout(batch)"
FILTER_IF = f'if self.config.algorithm.get("sample_filtering", False):\n    {FILTER}'


STOPS = """
should_stop = False
if self.config.trainer.get("save_best_checkpoint", False):
    should_stop = self._save_best_checkpoint(val_metrics)
if should_stop:
    return
"""


def in_ragen(
    folder: Path, *, filters: str = FILTER, ends: str = "", more: str = "", program: str = "", **options: object
) -> Plan:
    """The plan of a launch in a checkout of RAGEN: 8 groups of 16 in mini-batches of 32."""
    files = {
        "ragen/trainer/agent_trainer.py": RAGEN_TRAINER.format(
            filters=textwrap.indent(filters, " " * 16), ends=textwrap.indent(ends, " " * 12)
        ),
        "verl/verl/trainer/ppo/ray_trainer.py": VERL_TRAINER,
        "train.py": program,
    }
    return in_checkout(folder, files, f"python train.py --config-name _2_sokoban {more}\n", **options)


@pytest.mark.parametrize(
    ("filters", "more", "updates", "dropped"),
    [
        (FILTER, "", 1, 96),
        (FILTER_IF, "", 4, 0),
        (FILTER_IF, "+algorithm.sample_filtering=False", 4, 0),
        (FILTER_IF, "+algorithm.sample_filtering=True", 1, 96),
    ],
)
def test_groups_are_left_out_where_the_trainer_of_ragen_does_so(
    tmp_path: Path, filters: str, more: str, updates: int, dropped: int
) -> None:
    plan = in_ragen(tmp_path, filters=filters, more=more)
    schedule = schedule_of(plan)
    assert schedule.updates_per_rollout == updates
    assert schedule.samples_dropped_per_rollout == dropped
    assert any("agent_trainer.py:" in note.text for note in plan.notes)


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        (
            f"if step > 10:\n    {FILTER}",
            r"groups are left out only if step > 10 \(ragen/trainer/agent_trainer.py:15\)",
        ),
        (f"{FILTER}\n{FILTER}", "filtered in 2 places"),
        ("batch = self.rollout_filter.filter(batch)", "it filters rollouts in another way"),
    ],
)
def test_a_filter_of_ragen_that_is_not_known_is_asked_about(tmp_path: Path, filters: str, says: str) -> None:
    with pytest.raises(LaunchError, match=f"{says}.*--version 5eb79b8"):
        in_ragen(tmp_path, filters=filters)


@pytest.mark.parametrize(
    ("ends", "more", "says"),
    [
        (STOPS, "+trainer.save_best_checkpoint=True", "return may end the run or a step early, if should_stop"),
        ("if reward > 1:\n    break", "", "break may end the run or a step early, if reward > 1"),
        ("if not len(batch):\n    continue", "", "continue may end the run or a step early"),
        ("for reward in rewards:\n    if reward > 1:\n        return", "", "return may end the run or a step early"),
        ("is_last_step = is_last_step or solved", "", "return may end the run or a step early, if is_last_step"),
        ("", "+trainer.val_only=True", "return may end the run or a step early"),
    ],
)
def test_an_early_end_of_ragens_loop_is_asked_about(tmp_path: Path, ends: str, more: str, says: str) -> None:
    with pytest.raises(LaunchError, match=rf"{says}.*agent_trainer.py:\d+\).*--version"):
        in_ragen(tmp_path, ends=ends, more=more)


def test_an_early_end_that_the_launch_does_not_come_to_is_not_asked_about(tmp_path: Path) -> None:
    assert schedule_of(in_ragen(tmp_path, ends=STOPS)).rollouts == 200


def test_another_loop_of_ragen_is_asked_about(tmp_path: Path) -> None:
    trainer = RAGEN_TRAINER.format(filters="", ends="").replace("self.total_training_steps)", "self.own_steps)")
    with pytest.raises(LaunchError, match="the run does not go over total_training_steps once"):
        in_checkout(
            tmp_path,
            {"ragen/trainer/agent_trainer.py": trainer, "train.py": ""},
            "python train.py --config-name _2_sokoban\n",
        )


def test_a_filter_of_ragen_that_leaves_nothing_out_is_not_asked_about(tmp_path: Path) -> None:
    more = "actor_rollout_ref.rollout.rollout_filter_ratio=1"
    assert schedule_of(in_ragen(tmp_path, filters="batch = mine(batch)", more=more)).updates_per_rollout == 4


@pytest.mark.parametrize(("name", "known"), [("grpo_own", True), ("with_critic", False), ("remax", False)])
def test_ragen_has_the_estimators_of_the_verl_that_it_brings_along(tmp_path: Path, name: str, known: bool) -> None:
    more = f"algorithm.adv_estimator={name}"
    if known:
        schedule = schedule_of(in_ragen(tmp_path, more=more))
        assert (schedule.algorithm, schedule.critic) == ("GRPO_OWN", None)
        return
    with pytest.raises(LaunchError, match=f"has no advantages for {name}"):
        in_ragen(tmp_path, more=more)


@pytest.mark.parametrize(("compares", "refused"), [(">=", False), ("==", True)])
def test_devices_of_ragen_that_are_not_used(tmp_path: Path, compares: str, refused: bool) -> None:
    lines = (
        "import hydra\nfrom ragen.trainer.agent_trainer import RayAgentTrainer\n"
        f"assert len(str(config.system.CUDA_VISIBLE_DEVICES).split(',')) {compares} config.trainer.n_gpus_per_node\n"
    )
    plan = in_ragen(tmp_path, program=lines, more="system.CUDA_VISIBLE_DEVICES=[0,1]")
    assert any("CUDA_VISIBLE_DEVICES" in finding.observed for finding in plan.findings) is refused
