"""Programs that train by calling a function of a file beside them, and files that train more than once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.systems.plans.checkouts import write

if TYPE_CHECKING:
    from pathlib import Path

DERIVED = """
from rl import Base

class Mine(Base):
    def rows(self):
        return load()
{more}
Mine().start()
"""
OF_BASE = """
from abc import ABC, abstractmethod
from trl import GRPOConfig, GRPOTrainer

class Base(ABC):
    size = 8

    @abstractmethod
    def rows(self):
        \"\"\"The rows.\"\"\"

    def start(self):
        args = GRPOConfig(num_generations=4, per_device_train_batch_size=8)
        GRPOTrainer(args=args, train_dataset=self.rows()).train()
"""
MADE = "GRPOTrainer(args=GRPOConfig(num_generations=4, per_device_train_batch_size=8))"
TRAINS = f"from trl import GRPOConfig, GRPOTrainer\ndef train(model):\n    {MADE}.train()\ndef evaluate(model): ...\n"
OF_CLASS = f"from trl import GRPOConfig, GRPOTrainer\nclass Run:\n    def start(self):\n        return {MADE}\n"


def planned(folder: Path, files: dict[str, str], launch: str = "main.py", more: str = "") -> Plan:
    (folder / ".git").mkdir()
    write(folder, files)
    return plan_launch(["python", str(folder / launch), *more.split()], Options(rows=1000))


def assumed(plan: Plan) -> str:
    return " ".join(note.text for note in plan.notes if note.kind == "assumes")


@pytest.mark.parametrize(
    "files",
    [
        {"main.py": "from rl import train\ntrain(None)\n", "rl.py": TRAINS},
        {"main.py": "import rl\nrl.train(None)\n", "rl.py": TRAINS},
        {"main.py": "from rl import Run\nRun().start()\n", "rl.py": OF_CLASS},
        {"main.py": "def main():\n    from steps import all_of_it\n    all_of_it()\nmain()\n",
         "steps.py": "from rl import train\ndef all_of_it():\n    train(None)\n", "rl.py": TRAINS},
        {"main.py": "from pack import train\ntrain(None)\n", "pack/__init__.py": "from .rl import train\n", "pack/rl.py": TRAINS},
        {"main.py": "from pack import rl\nrl.train(None)\n", "pack/__init__.py": "", "pack/rl.py": TRAINS},
        {"main.py": DERIVED.format(more=""), "rl.py": OF_BASE},
    ],
)  # fmt: skip
def test_a_program_is_planned_by_the_file_that_trains_for_it(tmp_path: Path, files: dict[str, str]) -> None:
    plan = planned(tmp_path, files)
    assert plan.schedule is not None
    assert (plan.schedule.samples_per_rollout, plan.schedule.samples_per_prompt) == (8, 4)
    assert "main.py trains by what it calls of " in assumed(plan)


@pytest.mark.parametrize(
    ("main", "launch", "more"),
    [
        ("from rl import evaluate\nevaluate(None)\n", "main.py", ""),  # the file also trains; its function does not
        ("from rl import train\n", "main.py", ""),
        ("from rl import train\ntrain(None)\n", "evaluate.py", ""),
        (
            "import argparse\nfrom rl import train\ntrain(argparse.ArgumentParser().parse_args())\n",
            "main.py",
            "--max_steps 3",
        ),
    ],
)
def test_a_program_that_only_imports_what_trains_is_none(tmp_path: Path, main: str, launch: str, more: str) -> None:
    with pytest.raises(LaunchError, match="none of these starts a known trainer"):
        planned(tmp_path, {launch: main, "rl.py": TRAINS}, launch, more)


@pytest.mark.parametrize(
    "more",
    [
        "    size = 16\n",
        "    def start(self):\n        return run(self)\n",
        "    def other(self):\n        self.args = change()\n",
    ],
)
def test_a_class_that_may_change_what_trains_is_not_followed(tmp_path: Path, more: str) -> None:
    with pytest.raises(LaunchError):
        planned(tmp_path, {"main.py": DERIVED.format(more=more), "rl.py": OF_BASE})


def test_of_two_files_that_train_none_is_taken(tmp_path: Path) -> None:
    main = "import one\nimport two\none.train(None)\ntwo.train(None)\n"
    with pytest.raises(LaunchError, match="none of these starts a known trainer"):
        planned(tmp_path, {"main.py": main, "one.py": TRAINS, "two.py": TRAINS})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"for seed in range(3):\n    {MADE}.train()\n", "makes its trainer in a loop (line 2)"),
        (f"def run(seed):\n    {MADE}.train()\nfor seed in (1, 2):\n    run(seed)\n", "in a loop (line 4)"),
        (f"{MADE}.train()\n{MADE}.train()\n", "makes 2 trainers (lines 2, 3)"),
        (f"if given():\n    {MADE}.train()\nelse:\n    {MADE}.train()\n", ""),
        (f"def one():\n    {MADE}.train()\ndef two():\n    {MADE}.train()\ngiven()\n", ""),
        (f"for row in rows:\n    print(row)\n{MADE}.train()\n", ""),
    ],
)
def test_a_file_that_trains_more_than_once_is_said_to(tmp_path: Path, text: str, says: str) -> None:
    plan = planned(tmp_path, {"main.py": "from trl import GRPOConfig, GRPOTrainer\n" + text})
    said = assumed(plan)
    assert ("this is the plan of one run" in said) is bool(says)
    assert says in said


NAMED = f"from trl import GRPOConfig, GRPOTrainer\ntrainer = {MADE}\n"


def test_a_trainer_that_trains_several_times_is_said_to(tmp_path: Path) -> None:
    plan = planned(tmp_path, {"main.py": NAMED + "for epoch in range(3):\n    trainer.train()\n"})
    assert "calls train() of one trainer in a loop (line 3): this is the plan of one call" in assumed(plan)


def test_a_keyword_that_train_does_not_take_ends_the_run(tmp_path: Path) -> None:
    """transformers' Trainer.train has no **kwargs for settings: `max_steps` belongs into the configuration."""
    plan = planned(tmp_path, {"main.py": NAMED + "trainer.train(max_steps=5)\n"})
    assert plan.schedule is None
    assert "train() got an unexpected keyword argument 'max_steps'" in plan.findings[0].observed


def test_a_keyword_that_train_takes_is_none_of_its_settings(tmp_path: Path) -> None:
    plan = planned(tmp_path, {"main.py": NAMED + "trainer.train(resume_from_checkpoint=True)\n"})
    assert plan.schedule is not None


@pytest.mark.parametrize(
    ("more", "copy", "is_refused"),
    [
        ("model_init_kwargs={}", {}, True),
        ("callbacks=[]", {}, False),
        ("model_init_kwargs={}", {"trl/__init__.py": "", "trl/trainer/grpo_trainer.py": ""}, False),
        ("**more", {}, False),
    ],
)
def test_a_keyword_that_no_release_of_the_trainer_takes_ends_the_run(
    tmp_path: Path, more: str, copy: dict[str, str], is_refused: bool
) -> None:
    """TRL's GRPOTrainer has no **kwargs; a copy of TRL beside the launch may have a trainer of its own."""
    text = NAMED.replace("GRPOTrainer(", f"GRPOTrainer({more}, ")
    plan = planned(tmp_path, {"main.py": text, **copy})
    said = " ".join(str(finding.observed) for finding in plan.findings)
    assert ("GRPOTrainer.__init__() got an unexpected keyword argument" in said) is is_refused


TWO = (
    "from trl import GRPOConfig, GRPOTrainer\n"
    "args = GRPOConfig(num_generations=4, per_device_train_batch_size=8, max_steps=5)\n"
    "first = GRPOTrainer(args=args)\n"
    "args = GRPOConfig(num_generations={size}, per_device_train_batch_size=8, max_steps=5)\n"
    "second = GRPOTrainer(args=args)\n"
)
APART = (
    "from trl import GRPOConfig, GRPOTrainer\n"
    "def one():\n"
    "    args = GRPOConfig(num_generations=4, per_device_train_batch_size=8)\n"
    "    args.max_steps = 5\n"
    "    return GRPOTrainer(model=None, args=args)\n"
    "def two():\n"
    "    return GRPOTrainer(model=None, args=GRPOConfig(num_generations=2, per_device_train_batch_size=8))\n"
)


def of_line(folder: Path, text: str, line: int | None) -> Plan:
    (folder / "main.py").write_text(text)
    return plan_launch(["python", str(folder / "main.py")], Options(rows=1000, line=line))


@pytest.mark.parametrize(
    ("text", "sizes"), [(TWO.format(size=2), {3: 4, 5: 2}), (APART, {5: 4, 7: 2}), (TWO.format(size=4), {3: 4, 5: 4})]
)
def test_of_several_trainers_of_a_file_one_is_chosen_by_its_line(
    tmp_path: Path, text: str, sizes: dict[int, int]
) -> None:
    for line, size in sizes.items():
        plan = of_line(tmp_path, text, line)
        assert plan.schedule is not None
        assert plan.schedule.samples_per_prompt == size


@pytest.mark.parametrize(("text", "lines"), [(TWO.format(size=2), "line 3, line 5"), (APART, "line 5, line 7")])
def test_several_trainers_of_different_settings_are_asked_about(tmp_path: Path, text: str, lines: str) -> None:
    with pytest.raises(
        LaunchError, match=rf"makes 2 trainers, of different settings: {lines}; choose one with --line N"
    ):
        of_line(tmp_path, text, None)


def test_several_trainers_of_the_same_settings_are_planned_as_one(tmp_path: Path) -> None:
    plan = of_line(tmp_path, TWO.format(size=4), None)
    assert plan.schedule is not None
    assert "makes 2 trainers (lines 3, 5): this is the plan of one run" in assumed(plan)


SIZED = """
from trl import GRPOConfig, GRPOTrainer
DEFAULT = 4

def train(size, group=DEFAULT, *, steps=100):
    config = GRPOConfig(num_generations=group, per_device_train_batch_size=size, max_steps=steps)
    GRPOTrainer(args=config).train()

if __name__ == "__main__":
    train(16)
"""


@pytest.mark.parametrize(
    ("main", "sizes"),
    [
        ("from rl import train\ntrain(8)\n", (8, 4, 100)),
        ("from rl import train\nSIZE = 24\nDEFAULT = 8\ntrain(SIZE, steps=SIZE * 2)\n", (24, 4, 48)),
        ("from rl import train as run\nrun(size=8, group=2, steps=10)\n", (8, 2, 10)),
        ("from rl import train\ntrain(given())\n", None),
        ("from rl import train\ntrain(*given())\n", None),
        ("from rl import train\ntrain(8)\ntrain(8)\n", None),
        ("from rl import train\nfor size in (4, 8):\n    train(size)\n", None),
    ],
)
def test_what_a_program_hands_to_the_function_that_trains_is_followed_into_its_file(
    tmp_path: Path, main: str, sizes: tuple[int, int, int] | None
) -> None:
    files = {"main.py": main, "rl.py": SIZED}
    if sizes is None:
        with pytest.raises(LaunchError, match="per_device_train_batch_size cannot be known"):
            planned(tmp_path, files)
        return
    schedule = planned(tmp_path, files).schedule
    assert schedule is not None
    found = (schedule.samples_per_update, schedule.samples_per_prompt, schedule.updates)
    assert found == sizes


def test_a_file_that_is_started_itself_has_its_own_call(tmp_path: Path) -> None:
    schedule = planned(tmp_path, {"rl.py": SIZED}, "rl.py").schedule
    assert schedule is not None
    assert schedule.samples_per_update == 16
