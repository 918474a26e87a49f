"""`rlstep rehearse` with real training of verl: a healthy launch is proved with its resume, and nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.rehearse.messages import VARIABLE
from tests.rehearsals.verl import BROKEN, HEALTHY, Broken
from tests.systems.processes import inheriting

if TYPE_CHECKING:
    from pathlib import Path


def rehearse(folder: Path, launch: Broken) -> subprocess.CompletedProcess[str]:
    temporary, here = folder / "tmp", folder / "here"
    temporary.mkdir()
    here.mkdir()
    words = [sys.executable, *launch.write(here)[1:]]
    before = sorted(here.iterdir())
    command = [sys.executable, "-m", "rlstep_hooks", "rehearse", "--json", *launch.options, "--", *words]
    variables = os.environ | {"TMPDIR": str(temporary)}
    done = subprocess.run(command, cwd=here, env=variables, capture_output=True, text=True, timeout=600)
    assert sorted(here.iterdir()) == before
    assert not list(temporary.iterdir())
    assert not inheriting(VARIABLE, str(temporary))
    return done


def test_a_healthy_launch_is_proved(tmp_path: Path) -> None:
    done = rehearse(tmp_path, HEALTHY)
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(done.stdout)
    states = {line["what"]: line["state"] for line in outcome["lines"]}
    assert states == {
        "the script runs to its end": "proved",
        "updates per rollout": "proved",
        "lags of the old log-probs": "proved",
        "order and arithmetic of the updates": "proved",
        "reward signal": "proved",
        "learning rate of the whole run": "proved",
        "resume from a checkpoint": "proved",
    }
    assert outcome["schedule"]["updates"] == 36
    assert outcome["schedule"]["lags"] == [0, 1]


@pytest.mark.parametrize("name", ["a reward that raises"])
def test_a_broken_launch_is_caught(tmp_path: Path, name: str) -> None:
    done = rehearse(tmp_path, BROKEN[name])
    assert done.returncode == BROKEN[name].status, done.stdout + done.stderr
    assert BROKEN[name].said in done.stdout
