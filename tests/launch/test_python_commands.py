"""Python files that start a launch with a command that they put together themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError, NoLaunchError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

# 4 samples in each micro-batch of one process, 8 samples for each prompt: without more, an update takes two micro-batches.
START = """
import argparse, os, shlex, subprocess, sys
parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int, default=4)
parser.add_argument("--more", action="store_true")
args = parser.parse_args()
command = ["accelerate", "launch", "--num_processes", "2", "-m", "trl.scripts.grpo", "--num_generations", "8", "--max_steps", "12"]
command += ["--per_device_train_batch_size", str(args.size)]
"""
RUN = "subprocess.run(command, check=True)\n"


def planned(folder: Path, text: str, *words: str, **options: object) -> Plan:
    """The plan of `python start.py` with further words."""
    (folder / "start.py").write_text(text)
    return plan_launch(["python", str(folder / "start.py"), *words], Options(**options))  # type: ignore[arg-type]


def sizes(plan: Plan) -> tuple[object, ...]:
    assert plan.schedule is not None
    return plan.schedule.samples_per_update, plan.schedule.rollouts


@pytest.mark.parametrize(
    ("more", "words", "expected"),
    [
        ("", (), (8, 12)),
        ("", ("--size", "8"), (16, 12)),
        (
            'more = {"num_iterations": 3}\nfor key, value in more.items():\n    command.append(f"--{key}={value}")\n',
            (),
            (8, 4),
        ),
        (
            'more = {"num_iterations": 3, "beta": None}\nfor key, value in more.items():\n    if value is not None:\n'
            '        command += [f"--{key}", str(value)]\n',
            (),
            (8, 4),
        ),
        ('for each in ("--num_iterations", "3"):\n    command.append(each)\n', (), (8, 4)),
        (
            'more = {"num_iterations": args.size}\ncommand += [f"--{key}={value}" for key, value in more.items()]\n',
            (),
            (8, 3),
        ),
        (
            'more = {"num_iterations": 3}\ncommand += [each for key in more for each in (f"--{key}", str(more[key]))]\n',
            (),
            (8, 4),
        ),
        ('command.extend(f"--{key}=3" for key in ["num_iterations"] if key)\n', (), (8, 4)),
        ('def both():\n    return ["--num_iterations", "3"], 5\nextra, other = both()\ncommand += extra\n', (), (8, 4)),
        ('extra, other = ["--num_iterations", "3"], 5\ncommand += extra\n', (), (8, 4)),
        ('command.append("--gradient_accumulation_steps=4")\n', (), (32, 12)),
        ('command.extend(["--num_iterations", "3"])\n', (), (8, 4)),
        ('if args.more:\n    command += ["--num_iterations", "3"]\n', (), (8, 12)),
        ('if args.more:\n    command += ["--num_iterations", "3"]\n', ("--more",), (8, 4)),
        ('extra = shlex.split("--num_iterations 3")\ncommand = [*command, *extra]\n', (), (8, 4)),
        ('command = command + (["--num_iterations=2"] if args.more else [])\n', ("--more",), (8, 6)),
        ('if os.path.exists("last"):\n    command += ["--resume_from_checkpoint", "last"]\n', (), (8, 12)),
    ],
)
def test_words_that_a_program_adds_to_its_command_count(
    tmp_path: Path, more: str, words: tuple[str, ...], expected: tuple[int, int]
) -> None:
    assert sizes(planned(tmp_path, START + more + RUN, *words)) == expected


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ('if os.path.exists("last"):\n    command += ["--num_iterations", "3"]\n', "--num_iterations cannot be known"),
        ('if args.size > 2 and unknown():\n    command.append("--max_steps=3")\n', "--max_steps=3|cannot be known"),
        ("command[-1] = size_of_this_machine()\n", "none of these starts a known trainer"),
        ("add_more(command)\n", "none of these starts a known trainer"),
        ("if unknown():\n    command = other()\n", "none of these starts a known trainer"),
        ('command.insert(6, "--max_steps=3")\n', "none of these starts a known trainer"),
    ],
)
def test_a_command_whose_words_only_the_run_knows_is_asked_about(tmp_path: Path, more: str, asked: str) -> None:
    with pytest.raises(LaunchError, match=asked):
        planned(tmp_path, START + more + RUN)


IN_FUNCTIONS = """
import os, subprocess, sys

SIZES = {{"samples": 8, "steps": 12}}

def build(sizes):
    words = [sys.executable, "-m", "trl.scripts.grpo", f"--num_generations={{SIZES['samples']}}"]
    words.append(f"--max_steps={{SIZES['steps']}}")
    words.extend(["--per_device_train_batch_size", "8"])
    return words

def start(command, env=None):
    print(" ".join(command))
    {start}

def main():
    command = build(SIZES)
    start(command, env=os.environ)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    "start",
    [
        "subprocess.run(command, env=env)",
        'subprocess.run(" ".join(command), shell=True)',
        "os.execvp(command[0], command)",
        "os.execvpe(command[0], command, env)",
    ],
)
def test_a_command_is_followed_through_functions_of_the_file(tmp_path: Path, start: str) -> None:
    plan = planned(tmp_path, IN_FUNCTIONS.format(start=start), world_size=1)
    assert sizes(plan) == (8, 12)


def test_a_text_that_a_program_extends_is_followed(tmp_path: Path) -> None:
    text = (
        "import os\nsteps = 12\n"
        'command = f"accelerate launch --num_processes 2 -m trl.scripts.grpo --max_steps {steps}"\n'
        'command += " --num_generations 8 --per_device_train_batch_size 4"\nos.system(command)\n'
    )
    assert sizes(planned(tmp_path, text)) == (8, 12)


def test_a_script_that_runs_such_a_program_is_planned(tmp_path: Path) -> None:
    (tmp_path / "start.py").write_text(START + RUN)
    (tmp_path / "train.sh").write_text("mkdir -p out\npython start.py --size 8\n")
    assert sizes(plan_launch([str(tmp_path / "train.sh")], Options())) == (16, 12)


@pytest.mark.parametrize(("words", "rollouts"), [((), 12), (("--more",), 3)])
def test_a_command_in_a_branch_that_the_launch_does_not_come_to_is_none_of_its(
    tmp_path: Path, words: tuple[str, ...], rollouts: int
) -> None:
    other = 'if args.more:\n    subprocess.run([*command[:0], "true"])\n    subprocess.run(command + ["--max_steps=3"])\nelse:\n    '
    assert sizes(planned(tmp_path, START + other + RUN, *words)) == (8, rollouts)


def test_several_trainings_that_a_program_starts_are_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"there are 2 training commands: .*--line"):
        planned(tmp_path, START + RUN + 'subprocess.run(command + ["--num_iterations=3"])\n')


def test_a_program_that_starts_nothing_known_is_none(tmp_path: Path) -> None:
    with pytest.raises(NoLaunchError):
        planned(tmp_path, 'import subprocess\nsubprocess.run(["git", "status"])\n')


@pytest.mark.parametrize(
    "more",
    [
        "command += [f'--{each}' for each in given()]\n",
        "command.extend(given())\n",
        "for each in given():\n    command += ['--num_iterations', str(each)]\n",
        "command = [*command, *given()]\n",
    ],
)
def test_words_that_only_the_run_knows_are_asked_for(tmp_path: Path, more: str) -> None:
    with pytest.raises(LaunchError, match="cannot be known"):
        planned(tmp_path, START + more + RUN)


def test_what_a_parser_leaves_over_is_nothing_where_it_takes_all_flags(tmp_path: Path) -> None:
    text = (
        START.replace("args = parser.parse_args()", "args, rest = parser.parse_known_args()")
        + "command += rest\n"
        + RUN
    )
    assert sizes(planned(tmp_path, text, "--size", "8")) == (16, 12)
    with pytest.raises(LaunchError, match="cannot be known"):
        planned(tmp_path, text, "--other", "8")


def test_overrides_that_only_the_run_knows_are_asked_for(tmp_path: Path) -> None:
    text = (
        "import subprocess\n"
        "command = ['python', '-m', 'verl.trainer.main_ppo', 'data.train_batch_size=16', 'trainer.total_training_steps=2']\n"
        "command += ['actor_rollout_ref.actor.ppo_mini_batch_size=8', 'actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1']\n"
        "{}subprocess.run(command)\n"
    )
    assert planned(tmp_path, text.format("")).framework == "verl"
    with pytest.raises(LaunchError, match="what the launch is given cannot be known"):
        planned(tmp_path, text.format("command += [f'{key}={value}' for key, value in given().items()]\n"))
