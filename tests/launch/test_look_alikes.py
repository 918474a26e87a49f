"""Python files with classes or functions of the names of a framework's, which are others'."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import NoLaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

ARGS = "class Args:\n" + "".join(
    f"    {name}: int = {value}\n"
    for name, value in {
        "num_minibatches": 4,
        "update_epochs": 4,
        "num_envs": 4,
        "num_steps": 8,
        "total_timesteps": 800,
    }.items()
)
LOOP = """
if True:
    for iteration in range(1, args.num_iterations + 1):
        for epoch in range(args.update_epochs):
            ratio = (new - old).exp()
            loss = -(advantages * ratio).mean()
"""


@pytest.mark.parametrize(
    "text",
    [
        "class GRPOConfig(TypedDict):\n    num_generations: int = 8\n",  # NeMo-RL's nemo_rl/algorithms/grpo.py
        "class PPOConfig(BaseModel):\n    batch_size: int = 8\n    mini_batch_size: int = 4\n    ppo_epochs: int = 1\n",
        "class AlgorithmConfig:\n    gamma: float = 1.0\nAlgorithmConfig()\n",  # SkyRL's and EasyR1's
        "from skyrl.train.config import AlgorithmConfig\nAlgorithmConfig(advantage_estimator='grpo')\n",
        "class Args:\n    num_minibatches: int = 4\n    update_epochs: int = 4\nloss = F.mse_loss(target, value)\n",  # CleanRL's pqn.py
        "from trlx.data.configs import TRLConfig\nTRLConfig(method=ILQLConfig(tau=0.7), train=TrainConfig(batch_size=8))\n",
    ],
)  # fmt: skip
def test_none_is_planned(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file.py"
    file.write_text(text)
    with pytest.raises(NoLaunchError):
        plan_launch([str(file)])


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("import trl\nclass GRPOConfig(trl.GRPOConfig):\n    num_generations: int = 8\n", "trl"),  # open-r1's configs.py
        ("GRPOConfig(num_generations=8)\n", "trl"),
        ("from ray.rllib.algorithms.ppo import PPOConfig\nPPOConfig().training(train_batch_size_per_learner=64)\n", "rllib"),
        (f"{ARGS}{LOOP}", "cleanrl"),
    ],
)  # fmt: skip
def test_the_frameworks_own_are(tmp_path: Path, text: str, framework: str) -> None:
    file = tmp_path / "ppo_of_mine.py"
    file.write_text(text)
    assert plan_launch([str(file)], Options(world_size=1)).framework == framework


def test_timesteps_of_an_update_are_no_samples_of_prompts() -> None:
    from rlstep_hooks.show.plan import plan_text

    plan = plan_launch(["python", "cleanrl/ppo.py"])
    said = plan_text(plan, None, explain=False, width=200, coloured=False)
    assert "update           128 timesteps " in said
    assert "prompt" not in said.partition("step")[0]
