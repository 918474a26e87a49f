"""What the plan says of settings that the installed release does not have is what that release's own parsers do."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

import pytest
import trl
from accelerate.commands.launch import launch_command_parser
from trl.scripts import grpo

from rlstep_hooks.launch.command import Command, Program
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import Place
from rlstep_hooks.systems.trl.parser import LAUNCH, said

if TYPE_CHECKING:
    from pathlib import Path

NEEDED = [
    "--model_name_or_path",
    "m",
    "--dataset_name",
    "d",
    "--output_dir",
    "o",
    "--bf16",
    "False",
    "--use_cpu",
    "True",
]
MODULE = Command(Program("module", "trl.scripts.grpo"), ())


def as_the_script_parses(words: list[str]) -> None:
    """Parse as the script's own `__main__` does."""
    (call,) = re.findall(r"parse_args_and_config\((.*?)\)", inspect.getsource(grpo).partition("__main__")[2], re.DOTALL)
    keywords = dict(re.findall(r"(\w+)=(\w+)", call))
    grpo.make_parser().parse_args_and_config(
        args=[*NEEDED, *words], **{name: value == "True" for name, value in keywords.items()}
    )


@pytest.mark.parametrize("written", ["--made_up", "made_up"])
def test_the_script_refuses_or_drops_as_the_plan_says(written: str, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("made_up: 4\n")
    flag = written.startswith("--")
    place = Place("the command", 0, 1) if flag else Place(str(config), 1, 1)
    expected = said(MODULE, Setting("made_up", 4, place, written), trl.__version__)
    assert expected is not None
    words = ["--made_up", "4"] if flag else ["--config", str(config)]
    if not expected.refuses:
        as_the_script_parses(words)
        return
    kind, _, message = expected.words.partition(": ")
    with pytest.raises(ValueError, match=re.escape(message.partition("...")[0].rstrip(", "))) as raised:
        as_the_script_parses(words)
    assert kind == type(raised.value).__name__


def test_the_dataclass_refuses_in_these_words() -> None:
    setting = Setting("GRPOConfig.made_up", 4, Place("train.py", 1, 1), "made_up")
    expected = said(MODULE, setting, trl.__version__)
    assert expected is not None
    with pytest.raises(TypeError) as raised:
        trl.GRPOConfig(output_dir="o", made_up=4)
    assert expected.words == f"TypeError: {raised.value}"


def test_the_options_of_accelerate_are_known() -> None:
    options = {option for action in launch_command_parser()._actions for option in action.option_strings}
    assert {option[2:].replace("-", "_") for option in options if option.startswith("--")} - {"help"} <= LAUNCH
