"""examples/verl_countdown, run as its README says; and the parts of it that need no training."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.reports import report_of
from tests.systems.verl.audited import ROOT, problems

if TYPE_CHECKING:
    from types import ModuleType

EXAMPLE = ROOT / "examples" / "verl_countdown"


def loaded(name: str) -> ModuleType:
    """A file of the example as a module, as verl loads the reward."""
    spec = importlib.util.spec_from_file_location(f"countdown_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_trains_as_planned(tmp_path: Path) -> None:
    folder = tmp_path / "countdown"
    ray_folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # the paths of Ray's sockets must be short
    environment = os.environ | {"FOLDER": str(folder), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", str(EXAMPLE / "train_cpu.sh"), f"+ray_kwargs.ray_init._temp_dir={ray_folder}"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=240)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output[-3000:]
    report = report_of(folder / "rlstep")
    assert (report.verdict, problems(report)) == ("PASS", [])
    counts = report.counts
    assert (counts.rollouts, counts.updates, counts.critic_updates, counts.weight_syncs) == (4, 16, 16, 5)
    assert [values.lag for values in report.lags] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("Let me see. <answer>3 * 5 + 7</answer>", 1.0),
        ("<answer>(3+7)*5</answer> no: <answer>7 + 5*3</answer>", 1.0),
        ("<answer>22</answer>", 0.1),
        ("<answer>3*5+7 = 22</answer>", 0.1),
        ("<answer>3/0+5+7</answer>", 0.1),
        ("<answer>3**5+7</answer>", 0.1),
        ("<answer>__import__('os')</answer>", 0.1),
        ("<answer>" + "(" * 5000 + "</answer>", 0.1),
        ("3*5+7", 0.0),
    ],
)
def test_reward(answer: str, reward: float) -> None:
    score: Any = loaded("reward").compute_score
    assert score("countdown", answer, {"numbers": [3, 5, 7], "target": 22}) == reward


def test_division_is_exact() -> None:
    assert loaded("reward").evaluate("1/3*3") == ([1, 3, 3], Fraction(1))


def test_every_problem_has_an_answer() -> None:
    """By trying all orders and operations from left to right, which is how targets are made."""
    import itertools
    import random

    rows = loaded("rows")
    choose = random.Random(5)
    for _ in range(50):
        numbers, target = rows.problem(choose)
        reached = {value for order in itertools.permutations(numbers) for value in _left_to_right(order)}
        assert target in reached, json.dumps([numbers, target])


def _left_to_right(numbers: tuple[int, ...]) -> set[int]:
    values = {numbers[0]}
    for number in numbers[1:]:
        values = {result for value in values for result in (value + number, value - number, value * number)}
    return values
