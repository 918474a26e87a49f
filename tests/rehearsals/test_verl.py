"""A launch of verl is proved with its resume, by real training: `nox -s rehearse-verl`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.rehearsals.verl import HEALTHY
from tests.systems.verl.test_rehearse import rehearse

if TYPE_CHECKING:
    from pathlib import Path


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
        "the reward function": "proved",
        "learning rate of the whole run": "proved",
        "resume from a checkpoint": "proved",
    }
    assert outcome["schedule"]["updates"] == 36
    assert outcome["schedule"]["lags"] == [0, 1]
