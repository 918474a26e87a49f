"""`rlstep rehearse` with real Ray, DeepSpeed and vLLM: a launch is proved with its resume, a broken one is caught, nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.rehearsals.openrlhf import BROKEN, HEALTHY, Launch

if TYPE_CHECKING:
    from pathlib import Path


def rehearse(folder: Path, launch: Launch) -> subprocess.CompletedProcess[str]:
    temporary, here = folder / "t", folder / "here"
    temporary.mkdir()
    here.mkdir()
    words = launch.write(here)
    before = sorted(here.iterdir())
    command = [sys.executable, "-m", "rlstep_hooks", "rehearse", "--json", *launch.options, "--", *words]
    variables = os.environ | {"TMPDIR": str(temporary)}
    done = subprocess.run(command, cwd=here, env=variables, capture_output=True, text=True, timeout=900)
    assert sorted(here.iterdir()) == before
    assert not list(temporary.iterdir())
    return done


def test_a_healthy_launch_is_proved_with_its_resume(tmp_path: Path) -> None:
    done = rehearse(tmp_path, HEALTHY["GRPO"])
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(done.stdout)
    assert {line["what"]: line["state"] for line in outcome["lines"]} == {
        "the script runs to its end": "proved",
        "updates per rollout": "proved",
        "lags of the old log-probs": "proved",
        "order and arithmetic of the updates": "proved",
        "reward signal": "proved",
        "learning rate of the whole run": "proved",
        "resume from a checkpoint": "proved",
    }
    assert (outcome["schedule"]["rollouts"], outcome["schedule"]["lags"]) == (32, [0, 1, 2])


def test_a_reward_file_that_is_not_here_ends_it_before_ray_starts(tmp_path: Path) -> None:
    launch = BROKEN["no such reward file"]
    done = rehearse(tmp_path, launch)
    assert (done.returncode, launch.said in done.stdout) == (launch.status, True), done.stdout + done.stderr
