"""The words of a Python file's options: short flags, beginnings of flags, and words that do not come from the command."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

USES = """
from trl import GRPOConfig, GRPOTrainer
config = GRPOConfig(per_device_train_batch_size=16, num_generations=8, max_steps=args.size)
trainer = GRPOTrainer(model="a", args=config, reward_funcs=[len], train_dataset=rows)
trainer.train()
"""
PARSER = "import argparse\nimport sys\np = argparse.ArgumentParser()\np.add_argument({flags}type=int, default=4)\n"
LONG = PARSER.format(flags="'--size', ")
SHORT = PARSER.format(flags="'-s', '--size', ")
TWO = f"{LONG}p.add_argument('--size-of-all', type=int, default=2)\n"
PARSED = "args = p.parse_args()\n"


def planned(folder: Path, text: str, *words: str) -> object:
    """The updates of a program that takes its `max_steps` from an option."""
    file = folder / "train.py"
    file.write_text(text + USES)
    plan = plan_launch(["python", str(file), *words], Options(world_size=1, rows=1000, version="1.16.0"))
    assert plan.schedule is not None
    return plan.schedule.updates


def as_python_has_it(text: str, *words: str) -> int:
    run = subprocess.run(
        [sys.executable, "-c", f"{text}print(args.size)", *words], capture_output=True, check=True, text=True
    )
    return int(run.stdout)


@pytest.mark.parametrize(
    ("parser", "words"),
    [
        (LONG, ("--size", "9")),
        (LONG, ("--si", "9")),
        (SHORT, ("-s", "9")),
        (SHORT, ()),
        (TWO, ("--size", "9")),
        (TWO, ("--size-of", "9")),
    ],
)
def test_an_option_is_what_argparse_makes_of_the_words(tmp_path: Path, parser: str, words: tuple[str, ...]) -> None:
    assert planned(tmp_path, parser + PARSED, *words) == as_python_has_it(parser + PARSED, *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SHORT + PARSED, ("-s9",)),
        (f"{LONG}args = p.parse_args(['--size', '8'])\n", ()),
        (f"{LONG}args = p.parse_args([*sys.argv[1:], '--size=8'])\n", ()),
        (f"{LONG}args = p.parse_args(namespace=argparse.Namespace(size=5))\n", ()),
        (f"{LONG}sys.argv += ['--size', '8']\n{PARSED}", ()),
        (f"{LONG}sys.argv.extend(['--size', '8'])\n{PARSED}", ()),
        (f"{LONG}{PARSED}vars(args)['size'] = 12\n", ()),
        (f"{LONG}{PARSED}args.__dict__.update(size=12)\n", ()),
        (f"{LONG}{PARSED}for name in ['size']:\n    setattr(args, name, 12)\n", ()),
    ],
)
def test_words_from_elsewhere_are_asked_for(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    assert as_python_has_it(text, *words) != 4
    with pytest.raises(LaunchError, match="max_steps cannot be known"):
        planned(tmp_path, text, *words)


@pytest.mark.parametrize(
    "text",
    [
        f"{LONG}args = p.parse_args(sys.argv[1:])\n",
        f"{LONG}sys.argv = [word for word in sys.argv if not word.startswith('--local')]\n{PARSED}",
        f"{LONG}{PARSED}vars(args)['other'] = 12\n",
    ],
)
def test_what_sets_no_option_of_the_file_changes_nothing(tmp_path: Path, text: str) -> None:
    assert planned(tmp_path, text, "--size", "9") == as_python_has_it(text, "--size", "9") == 9
