"""Published runs as launches: the real runs, as commands of their frameworks or as numbers of their papers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from collections.abc import Iterable


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """One published run."""

    name: str
    title: str
    launch: str
    """The launch command, or the paper's numbers for the system `paper`."""
    source: str
    """The public place where the numbers stand."""
    remark: str = ""
    """What is easily misread, or not certain."""
    framework: str | None = None
    version: str | None = None
    rows: int | None = None
    world_size: int | None = None


def _paper(title: str, algorithm: str, numbers: str) -> str:
    return f"paper --title '{title}' --algorithm {algorithm} {numbers}"


RECIPES: tuple[Recipe, ...] = (
    Recipe(
        name="r1-zero",
        title="DeepSeek-R1-Zero",
        launch=_paper(
            "DeepSeek-R1-Zero",
            "GRPO",
            "--prompts-per-rollout 512 --samples-per-prompt 16 --samples-per-update 512 --updates 10400 --step-unit update",
        ),
        source="arXiv 2501.12948v2, supplement: 32 questions x 16 outputs a step, 8 192 outputs a rollout in 16 mini-batches",
        remark="a step is one update on 512 samples; 16 of them belong to one rollout. The 208 000 questions follow from 1.6 epochs",
        framework="paper",
        rows=208_000,
    ),
    Recipe(
        name="deepseekmath",
        title="DeepSeekMath GRPO",
        launch=_paper(
            "DeepSeekMath",
            "GRPO",
            "--prompts-per-rollout 16 --samples-per-prompt 64 --samples-per-update 1024 --epochs 1",
        ),
        source="arXiv 2402.03300 section 4.2: 144K questions, 64 outputs each, training batch 1 024, one update a rollout",
        remark="the paper does not say whether 1 024 counts outputs or questions; here outputs",
        framework="paper",
        rows=144_000,
    ),
    Recipe(
        name="instructgpt",
        title="InstructGPT PPO",
        launch=_paper(
            "InstructGPT", "PPO", "--prompts-per-rollout 512 --samples-per-update 64 --rollouts 500 --step-unit sample"
        ),
        source="arXiv 2203.02155 appendix C.4: 256 000 episodes, 31 144 unique prompts, batch 512, mini-batch 64, 1 epoch",
        framework="paper",
        rows=31_144,
    ),
    Recipe(
        name="ppo-atari",
        title="PPO on Atari",
        launch=_paper(
            "PPO Atari",
            "PPO",
            "--prompts-per-rollout 8 --samples-per-prompt 128 --samples-per-update 256 --reuse-epochs 3 --rollouts 9765 "
            "--step-unit timestep",
        ),
        source="arXiv 1707.06347 table 5: 8 actors x 128 timesteps, 3 epochs, mini-batch 32 x 8, 10 million timesteps",
        remark="baselines' defaults.atari() has 4 epochs, which makes 16 updates of a rollout instead of 12",
        framework="paper",
    ),
    Recipe(
        name="dapo",
        title="DAPO, Qwen2.5-32B",
        launch=_paper(
            "DAPO",
            "DAPO",
            "--prompts-per-rollout 512 --samples-per-prompt 16 --samples-per-update 512 --step-unit update",
        ),
        source="arXiv 2503.14476 section 4.1: 512 prompts x 16 responses, mini-batch 512 samples, 16 updates a rollout; "
        "verl recipe/dapo/run_dapo_qwen2.5_32b.sh (ppo_mini_batch_size 32 prompts)",
        remark="steps of the paper's plots are updates (verl#1643). 1 536 prompts are generated for 512 that are kept, so a pass over "
        "the data is shorter; the file has 1 791 700 rows of about 17 400 prompts",
        framework="paper",
        rows=1_791_700,
    ),
    Recipe(
        name="dr-grpo",
        title="Dr.GRPO, Qwen2.5-Math",
        launch=_paper(
            "Dr.GRPO",
            "Dr.GRPO",
            "--prompts-per-rollout 128 --samples-per-prompt 8 --samples-per-update 128 --epochs 20",
        ),
        source="arXiv 2503.20783 and sail-sg/understand-r1-zero train_zero_math.py: rollout_batch_size 128, num_samples 8, "
        "train_batch_size 128, num_prompt_epoch 20",
        remark="the number of questions is nominal (12 000)",
        framework="paper",
        rows=12_000,
    ),
    Recipe(
        name="tinyzero",
        title="TinyZero, countdown",
        launch=_paper(
            "TinyZero", "PPO", "--prompts-per-rollout 256 --samples-per-prompt 1 --samples-per-update 64 --epochs 15"
        ),
        source="Jiayi-Pan/TinyZero scripts/train_tiny_zero.sh at 96b4d57: train_batch_size 256, ppo_mini_batch_size 64, 15 epochs; "
        "countdown.py --train_size 327680",
        remark="before 96b4d57 the mini-batch was 128: 2 updates a rollout. Its code ends one rollout early and ignores ppo_epochs",
        framework="paper",
        rows=327_680,
    ),
    Recipe(
        name="simplerl-zoo",
        title="SimpleRL-Zoo",
        launch=_paper(
            "SimpleRL-Zoo",
            "GRPO",
            "--prompts-per-rollout 1024 --samples-per-prompt 8 --samples-per-update 2048 --rollouts 100",
        ),
        source="arXiv 2503.18892 and hkust-nlp/simpleRL-reason README: --train_batch_size 1024 --rollout_n 8, ppo_mini_batch_size 256, "
        "about 100 steps on 8 532 questions (issue 75)",
        remark="a step is a rollout of 4 updates, so 100 steps are 12.0 data epochs, not 3.0",
        framework="paper",
        rows=8_532,
    ),
    Recipe(
        name="open-reasoner-zero",
        title="Open-Reasoner-Zero, 7B",
        launch="python -m playground.orz_7b_ppo",
        source="Open-Reasoner-Zero/Open-Reasoner-Zero playground/orz_7b_ppo.py and arXiv 2503.24290: 128 prompts x 64 responses, "
        "1 policy update and 12 critic updates a rollout",
        remark="the number of questions is nominal (57 000)",
        framework="open_reasoner_zero",
        rows=57_000,
    ),
)


def available() -> Iterable[Recipe]:
    """Recipes whose framework can be read."""
    return (recipe for recipe in RECIPES if recipe.framework is None or index.exists(recipe.framework))


def find(name: str) -> Recipe:
    """A recipe by its name.

    Raises:
        LaunchError: There is none.
    """
    for recipe in available():
        if recipe.name == name:
            return recipe
    raise LaunchError(f"there is no recipe {name!r}; there are {', '.join(recipe.name for recipe in available())}")


def plan_recipe(name: str) -> Plan:
    """The plan of a recipe.

    Raises:
        LaunchError: There is none of that name.
    """
    recipe = find(name)
    options = Options(
        framework=recipe.framework, version=recipe.version, rows=recipe.rows, world_size=recipe.world_size
    )
    plan = plan_launch([recipe.launch], options)
    return msgspec.structs.replace(plan, source=f"recipe:{recipe.name}")
