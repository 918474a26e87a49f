"""A checkout with the trainer of the installed release is planned as that release, or as one that samples as it does."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import trl

from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launches import plan_launch
from rlstep_hooks.systems.trl.checkout.deciding import FILES

LAUNCH = """
from trl import GRPOConfig, GRPOTrainer
GRPOTrainer(model="m", args=GRPOConfig(output_dir="x", num_generations=8, max_steps=5), reward_funcs=[reward]).train()
"""


def test_the_installed_trainer_is_known_by_its_own_code(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "trl/trainer").mkdir(parents=True)
    for name in FILES:
        (tmp_path / name).write_text((Path(trl.__file__).parents[1] / name).read_text())
    (tmp_path / "train.py").write_text(LAUNCH)
    plan = plan_launch([str(tmp_path / "train.py")], Options(rows=100, world_size=1))
    assert plan.schedule is not None
    said = next(note.text for note in plan.notes if "samples as TRL" in note.text)
    assert version("trl") in said
