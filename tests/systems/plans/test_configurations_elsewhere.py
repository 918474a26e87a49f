"""Python files whose configuration is a class of the checkout's own, or is made in another file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

OURS = """
from dataclasses import dataclass, field
import trl
from trl import GRPOConfig

@dataclass
class Base(GRPOConfig):
    per_device_train_batch_size: int = 4
    num_train_epochs: float = 5.0

@dataclass
class Ours(Base):
    num_generations: int = 2
    num_train_epochs: float = field(default=3.0, metadata={"help": "passes over the rows"})

@dataclass
class Rewritten(GRPOConfig):
    def __post_init__(self):
        self.num_generations = 16

def make(**more):
    return GRPOConfig(**more)

READY = GRPOConfig()
"""
TRAIN = "\nGRPOTrainer(model='tiny', reward_funcs=score, args=args, train_dataset=rows).train()\n"


def planned(folder: Path, text: str, *arguments: str) -> Plan:
    """The plan of a file beside `ours.py`, for 100 rows and one process."""
    (folder / ".git").mkdir()
    (folder / "ours.py").write_text(OURS)
    (folder / "train.py").write_text(text)
    launch = ["python", str(folder / "train.py"), *arguments]
    return plan_launch(launch, Options(rows=100, world_size=1, version="1.16.0"))


PARSED = "from trl import GRPOTrainer, TrlParser\nfrom ours import Ours\n(args,) = TrlParser((Ours,)).parse_args_and_config()"
CALLED = "from trl import GRPOTrainer\nfrom ours import Ours\nargs = Ours(gradient_accumulation_steps=1{more})"


@pytest.mark.parametrize(
    ("text", "arguments", "prompts", "rollouts"),
    [
        # 4 samples on a process are 2 prompts with 2 samples each: 50 rollouts in a pass, 3 passes.
        (PARSED, (), 2, 150),
        (PARSED, ("--num_generations", "4"), 1, 300),
        (PARSED, ("--num_train_epochs", "1"), 2, 50),
        (CALLED.format(more=""), (), 2, 150),
        (CALLED.format(more=", num_generations=4"), (), 1, 300),
        (CALLED.format(more=", num_train_epochs=2"), (), 2, 100),
    ],
)
def test_defaults_of_a_configuration_of_the_checkout_hold(
    tmp_path: Path, text: str, arguments: tuple[str, ...], prompts: int, rollouts: int
) -> None:
    schedule = planned(tmp_path, text + TRAIN, *arguments).schedule
    assert schedule is not None
    assert (schedule.prompts_per_rollout, schedule.rollouts) == (prompts, rollouts)


def test_a_configuration_that_the_file_defines_holds(tmp_path: Path) -> None:
    defined = (
        OURS.partition("\n@dataclass\nclass Rewritten")[0]
        + "\nfrom trl import GRPOTrainer\nargs = Ours(num_train_epochs=1)"
    )
    schedule = planned(tmp_path, defined + TRAIN).schedule
    assert schedule is not None
    assert (schedule.prompts_per_rollout, schedule.rollouts) == (2, 50)


@pytest.mark.parametrize(
    ("made", "given"),
    [
        ("import ours\nargs = ours.READY", "args"),
        ("from ours import READY as args", "args"),
        ("from trl import GRPOConfig\ndef run(args: GRPOConfig):\n    pass", "args"),
        ("from ours import Ours\ndef run(args: Ours) -> Ours:\n    pass", "args"),
        ("from trl import GRPOConfig\nargs = build(GRPOConfig, num_generations=4)", "args"),
        ("from trl import GRPOConfig\nkind = GRPOConfig\nargs = kind(num_generations=4)", "args"),
    ],
)
def test_a_configuration_that_another_file_makes_is_asked_for(tmp_path: Path, made: str, given: str) -> None:
    with pytest.raises(
        LaunchError, match=rf"train.py:\d+:\d+: GRPOTrainer is given {given}, and no configuration of it is made"
    ):
        planned(tmp_path, f"from trl import GRPOTrainer\n{made}{TRAIN}")


def test_keywords_that_a_function_of_another_file_hands_on_are_read(tmp_path: Path) -> None:
    made = "from ours import make\nargs = make(num_generations=4, per_device_train_batch_size=4)"
    schedule = planned(tmp_path, f"from trl import GRPOTrainer\n{made}{TRAIN}").schedule
    assert schedule is not None
    assert (schedule.samples_per_prompt, schedule.samples_per_update) == (4, 4)


def test_a_configuration_given_by_its_place_is_asked_for_too(tmp_path: Path) -> None:
    text = "from trl import GRPOTrainer\nfrom ours import READY\nGRPOTrainer('tiny', score, READY, rows).train()\n"
    with pytest.raises(LaunchError, match="GRPOTrainer is given READY"):
        planned(tmp_path, text)


def test_a_trainer_whose_arguments_are_known_only_in_the_run_is_asked_about(tmp_path: Path) -> None:
    text = "from trl import GRPOTrainer\ndef run(session):\n    GRPOTrainer(**session['trainer']).train()\n"
    with pytest.raises(LaunchError, match=r"GRPOTrainer is given \*\*session\['trainer'\], and no configuration of it"):
        planned(tmp_path, text)


@pytest.mark.parametrize("given", ["", ", args=None"])
def test_a_trainer_without_a_configuration_has_the_defaults_of_the_release(tmp_path: Path, given: str) -> None:
    schedule = planned(tmp_path, f"from trl import GRPOTrainer\nGRPOTrainer('tiny', score{given}).train()\n").schedule
    assert schedule is not None
    assert schedule.samples_per_prompt == 8


def test_a_configuration_that_assigns_its_own_settings_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"Rewritten .*ours.py:\d+.* assigns num_generations itself"):
        planned(tmp_path, f"from trl import GRPOTrainer\nfrom ours import Rewritten\nargs = Rewritten(){TRAIN}")
