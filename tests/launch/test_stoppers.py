"""Callbacks that may end a run early, wherever the launch has their class: no exact length is printed beside one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

TRAIN = """
from trl import GRPOConfig, GRPOTrainer
from transformers import TrainerCallback
{imports}
{defines}
config = GRPOConfig(per_device_train_batch_size=8, num_generations=8, max_steps=50)
trainer = GRPOTrainer(model="m", args=config, callbacks=[{callback}])
trainer.train()
"""
WITHIN = """
def make_callback(patience):
    class Best(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            {does}
            return control
    return Best()
"""
STOPS, KEEPS = "control.should_training_stop = state.global_step > patience", "control.should_log = True"


def planned(folder: Path, imports: str, defines: str, callback: str) -> Plan:
    (folder / "train.py").write_text(TRAIN.format(imports=imports, defines=defines, callback=callback))
    return plan_launch([str(folder / "train.py")], Options(rows=1000, world_size=1))


def length(plan: Plan) -> tuple[int | None, list[str]]:
    assert plan.schedule is not None
    return plan.schedule.updates, [note.text for note in plan.notes if "should_training_stop" in note.text]


@pytest.mark.parametrize(("does", "updates"), [(STOPS, None), (KEEPS, 50)])
@pytest.mark.parametrize("where", ["here", "imported", "handed on"])
def test_a_class_that_a_function_makes_may_end_the_run(
    tmp_path: Path, where: str, does: str, updates: int | None
) -> None:
    text = WITHIN.format(does=does)
    imports = "" if where == "here" else "from own.callbacks import make_callback as made"
    if where != "here":
        (tmp_path / "own/callbacks").mkdir(parents=True)
        (tmp_path / "own/callbacks/best.py").write_text(f"from transformers import TrainerCallback\n{text}")
        handed = (
            "from .best import make_callback\n"
            if where == "handed on"
            else (tmp_path / "own/callbacks/best.py").read_text()
        )
        (tmp_path / "own/callbacks/__init__.py").write_text(handed)
    callback = "make_callback(3)" if where == "here" else "made(3)"
    found, said = length(planned(tmp_path, imports, text if where == "here" else "", callback))
    assert found == updates
    assert bool(said) == (updates is None)


def test_a_class_within_a_function_that_derives_from_transformers_own_may_end_the_run(tmp_path: Path) -> None:
    own = "def made():\n    class Early(EarlyStoppingCallback):\n        pass\n    return Early()"
    imports = "from transformers import EarlyStoppingCallback"
    assert length(planned(tmp_path, imports, own, "made()"))[0] is None
