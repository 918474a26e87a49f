"""Defaults of a Python file's options: those that `set_defaults` gives, and of flags that turn each other off."""

from __future__ import annotations

import ast
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "import argparse\nparser = argparse.ArgumentParser()\n"
USES = (
    "from trl import GRPOConfig, GRPOTrainer\n"
    "config = GRPOConfig(per_device_train_batch_size=16, num_generations=8, max_steps=args.size)\n"
    "trainer = GRPOTrainer(model='a', args=config, reward_funcs=[len], train_dataset=rows)\ntrainer.train()\n"
)


def sized(folder: Path, parser: str, *flags: str) -> object:
    """The `max_steps` of a program that takes it from its own options."""
    file = folder / "train.py"
    file.write_text(f"{HEAD}{parser}args = parser.parse_args()\n{USES}")
    plan = plan_launch(["python", str(file), *flags], Options(world_size=1, rows=100, version="1.16.0"))
    assert plan.schedule is not None
    return plan.schedule.updates


def as_python_has_it(parser: str, *flags: str) -> object:
    text = f"{HEAD}{parser}print(repr(parser.parse_args().size))"
    run = subprocess.run([sys.executable, "-c", text, *flags], capture_output=True, check=True, text=True)
    return ast.literal_eval(run.stdout)


SIZE = "parser.add_argument('--size', type=int, default=4)\n"
LATE = f"{SIZE}parser.set_defaults(size=6, other=2)\n"
PAIR = (
    "parser.add_argument('--long', dest='long', action='store_true')\n"
    "parser.add_argument('--short', dest='long', action='store_false')\n{more}"
)


@pytest.mark.parametrize(("parser", "flags"), [(LATE, ()), (LATE, ("--size", "9")), (SIZE, ())])
def test_a_default_that_is_set_later_holds(tmp_path: Path, parser: str, flags: tuple[str, ...]) -> None:
    assert sized(tmp_path, parser, *flags) == as_python_has_it(parser, *flags)


@pytest.mark.parametrize(
    "setting",
    [
        "import os\nif os.environ.get('FAST'):\n    parser.set_defaults(size=6)\n",
        "import json\nparser.set_defaults(**json.load(open('a.json')))\n",
    ],
)
def test_a_default_that_only_the_run_knows_is_asked_for_unless_the_flag_is_given(tmp_path: Path, setting: str) -> None:
    with pytest.raises(LaunchError, match="max_steps cannot be known"):
        sized(tmp_path, SIZE + setting)
    assert sized(tmp_path, SIZE + setting, "--size", "9") == 9


@pytest.mark.parametrize("more", ["", "parser.set_defaults(long=True)\n", "parser.set_defaults(long=False)\n"])
@pytest.mark.parametrize("flags", [(), ("--long",), ("--short",)])
def test_flags_that_turn_each_other_off_are_one_option(tmp_path: Path, more: str, flags: tuple[str, ...]) -> None:
    file = tmp_path / "train.py"
    parser = HEAD + PAIR.format(more=more) + "args = parser.parse_args()\n"
    file.write_text(parser + USES.replace("args.size", "20 if args.long else 3"))
    plan = plan_launch(["python", str(file), *flags], Options(world_size=1, rows=100, version="1.16.0"))
    said = subprocess.run(
        [sys.executable, "-c", f"{parser}print(args.long)", *flags], capture_output=True, check=True, text=True
    )
    assert plan.schedule is not None
    assert plan.schedule.updates == (20 if said.stdout.strip() == "True" else 3)


@pytest.mark.parametrize(
    ("option", "flags", "expected"),
    [
        ("'--long', action='store_true', default=True", (), 20),
        ("'--long', action=argparse.BooleanOptionalAction, default=True", (), 20),
        ("'--long', action=argparse.BooleanOptionalAction, default=True", ("--no-long",), 3),
        ("'--long', action=argparse.BooleanOptionalAction", ("--long",), 20),
    ],
)
def test_flags_without_a_word_have_their_defaults(
    tmp_path: Path, option: str, flags: tuple[str, ...], expected: int
) -> None:
    file = tmp_path / "train.py"
    parser = f"{HEAD}parser.add_argument({option})\nargs = parser.parse_args()\n"
    file.write_text(parser + USES.replace("args.size", "20 if args.long else 3"))
    plan = plan_launch(["python", str(file), *flags], Options(world_size=1, rows=100, version="1.16.0"))
    assert plan.schedule is not None
    assert plan.schedule.updates == expected
