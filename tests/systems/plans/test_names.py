"""Anybody may call a script as a framework calls its own: what a file imports says more than its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

STEPS = """
from trl import PPOConfig, PPOTrainer
config = PPOConfig(batch_size=64, mini_batch_size=4, gradient_accumulation_steps=4, ppo_epochs=2)
trainer = PPOTrainer(config=config, model=model, ref_model=None, tokenizer=tokenizer, dataset=data)
trainer.step(queries, responses, rewards)
"""
GAMES = """
from stable_baselines3 import PPO
model = PPO("MlpPolicy", "CartPole-v1", n_steps=2048, batch_size=64, n_epochs=10)
model.learn(total_timesteps=10_000)
"""
OWN_LOOP = """
import torch
loss = torch.min(ratio * advantages, clipped * advantages).mean()
loss.backward()
"""
OPENRLHF = """
from openrlhf.datasets import PromptDataset
from openrlhf.trainer import PPOTrainer
trainer = PPOTrainer(strategy, actor, critic, reward_model)
trainer.fit(args, prompts)
"""


def planned(folder: Path, text: str, *, arguments: str = "") -> Plan:
    """The plan of a file called train_ppo.py with this text, which a script starts with these arguments."""
    (folder / "train_ppo.py").write_text(text)
    (folder / "run.sh").write_text(f"python train_ppo.py {arguments}\n")
    return plan_launch([str(folder / ("run.sh" if arguments else "train_ppo.py"))], Options(rows=7000))


@pytest.mark.parametrize("arguments", ["", "--seed 3"])
@pytest.mark.parametrize(("text", "framework", "samples"), [(STEPS, "trl_ppo_step", 64), (GAMES, "sb3", 2048)])
def test_a_file_of_a_common_name_is_planned_as_what_it_imports(
    tmp_path: Path, text: str, framework: str, samples: int, arguments: str
) -> None:
    plan = planned(tmp_path, text, arguments=arguments)
    assert plan.schedule is not None
    assert (plan.framework, plan.schedule.samples_per_rollout) == (framework, samples)


@pytest.mark.parametrize("arguments", ["", "--seed 3"])
def test_a_file_of_a_common_name_that_imports_no_framework_is_not_planned(tmp_path: Path, arguments: str) -> None:
    with pytest.raises(
        LaunchError, match="has the name of a program of OpenRLHF, but uses nothing that trains with it"
    ):
        planned(tmp_path, OWN_LOOP, arguments=arguments)


@pytest.mark.parametrize("arguments", ["", "--train_batch_size 128"])
def test_a_copy_of_the_frameworks_own_program_is_planned_as_its(tmp_path: Path, arguments: str) -> None:
    plan = planned(tmp_path, OPENRLHF, arguments=arguments)
    assert plan.framework == "openrlhf"


def test_a_copy_of_the_frameworks_own_program_has_its_own_defaults(tmp_path: Path) -> None:
    """examples/train_ppo.py of OpenRLHF 0.2.8: 512 prompts, where 0.5.9 has 1 024."""
    flags = 'parser.add_argument("--rollout_batch_size", type=int, default=512)\n'
    plan = planned(tmp_path, OPENRLHF + flags)
    assert plan.schedule is not None
    assert plan.schedule.prompts_per_rollout == 512
    given = planned(tmp_path, OPENRLHF + flags, arguments="--rollout_batch_size 256")
    assert given.schedule is not None
    assert given.schedule.prompts_per_rollout == 256
