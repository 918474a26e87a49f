"""A launch of OpenRLHF is proved with its resume, by real Ray, DeepSpeed and vLLM: `nox -s rehearse-openrlhf`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.rehearsals.openrlhf import HEALTHY
from tests.systems.openrlhf.test_rehearse import rehearse

if TYPE_CHECKING:
    from pathlib import Path


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
        "the reward function": "proved",
        "learning rate of the whole run": "proved",
        "resume from a checkpoint": "proved",
    }
    assert (outcome["schedule"]["rollouts"], outcome["schedule"]["lags"]) == (32, [0, 1, 2])
