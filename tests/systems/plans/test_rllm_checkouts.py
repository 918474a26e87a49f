"""Launches in a checkout of rLLM: one of an older trainer is named as such."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.systems.plans.checkouts import in_checkout, schedule_of

if TYPE_CHECKING:
    from pathlib import Path

RLLM = (
    "python -m examples.game.train_game data.train_batch_size=16 actor_rollout_ref.actor.ppo_mini_batch_size=8 "
    "actor_rollout_ref.rollout.n=8 rllm.agent.name=game rllm.stepwise_advantage.enable=True trainer.n_gpus_per_node=8\n"
)
OLD_TRAINER = "class AgentPPOTrainer(RayPPOTrainer):\n    def fit_agent(self):\n        return\n"


def test_an_older_trainer_of_rllm_is_named(tmp_path: Path) -> None:
    files = {
        "rllm/trainer/agent_trainer.py": "class AgentTrainer:\n    x = 1\n",
        "rllm/trainer/verl/agent_ppo_trainer.py": OLD_TRAINER,
        "examples/game/train_game.py": "from rllm.trainer.agent_trainer import AgentTrainer\nAgentTrainer().train()\n",
    }
    with pytest.raises(
        LaunchError, match=r"rLLM .* no trainer/unified_trainer.py.*agent_ppo_trainer.py:2.*--version 9beb6e0"
    ):
        in_checkout(tmp_path, files, RLLM)


def test_settings_of_an_older_rllm_are_named_without_its_source() -> None:
    with pytest.raises(LaunchError, match=r"rllm\.agent\.name, rllm\.stepwise_advantage\.enable are settings of"):
        plan_launch(RLLM.split(), Options(rows=1000))


def test_the_newer_trainer_of_rllm_is_planned(tmp_path: Path) -> None:
    files = {"rllm/trainer/agent_trainer.py": "", "rllm/trainer/unified_trainer.py": ""}
    plan = in_checkout(tmp_path, files, RLLM.replace("rllm.agent.name=game", "rllm.algorithm.use_rllm=true"))
    assert schedule_of(plan).updates_per_rollout == 2
