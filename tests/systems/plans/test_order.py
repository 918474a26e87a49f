"""What a plan says does not depend on the order in which Python goes through a set."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
from rlstep_hooks.systems.engine import reader
from rlstep_hooks.systems.rllib.system import SYSTEM
sizes = {"train_batch_size_per_learner": 150, "minibatch_size": 40, "num_epochs": 3}
print(list(reader.read_config(SYSTEM, sizes, version="2.60.0", world_size=1).schedule.not_evaluated))
"""


def test_unknown_quantities_stand_in_one_order() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3", "4")
    }
    assert len(said) == 1
    assert "rollouts" in said.pop()
