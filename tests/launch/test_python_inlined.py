"""Functions of another file that hand their keywords on to the configuration of a trainer, and drop those that it does not take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.python_inlined import with_keyword_functions
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.launched import Plan

SIZES = """import inspect
from typing import Any
from trl import GRPOConfig
LIMIT = 3

def other():
    pass

def build(**given: Any) -> GRPOConfig:
    '''What this release takes.'''
    known = inspect.signature(GRPOConfig).parameters
    kept = {key: value for key, value in given.items() if key in known}
    left = sorted(set(given) - set(kept))
    if left:
        print(f"left out: {', '.join(left)}")
    return GRPOConfig(**kept)
"""
TRAIN = """from sizes import build
from trl import GRPOTrainer
given = {"per_device_train_batch_size": 8, "num_generations": 8, "max_steps": 12, "another": 1}
config = build(**given)
trainer = GRPOTrainer(model="a", args=config, reward_funcs=[len], train_dataset=rows)
trainer.train()
"""


def planned(folder: Path, *, sizes: str = SIZES, train: str = TRAIN) -> Plan:
    """The plan of a program whose configuration a function of the file beside it makes."""
    (folder / ".git").mkdir()
    (folder / "sizes.py").write_text(sizes)
    (folder / "train.py").write_text(train)
    return plan_launch(["python", str(folder / "train.py")], Options(world_size=1, rows=100, version="1.16.0"))


@pytest.mark.parametrize(
    "imports",
    [
        "from sizes import build",
        "from sizes import build, other",
        "from sizes import other, build",
        "from sizes import (\n    other,  # this\n    build,\n)",
        "from sizes import (\n    build,\n)",
    ],
)
def test_what_a_function_of_another_file_hands_on_is_read(tmp_path: Path, imports: str) -> None:
    train = TRAIN.replace("from sizes import build", imports.replace("\\\n", "\n"))
    schedule = planned(tmp_path, train=train).schedule
    assert schedule is not None
    assert (schedule.updates, schedule.samples_per_update) == (12, 8)
    text = with_keyword_functions(tmp_path / "train.py")
    assert text is not None
    assert text.split("\n").index("config = build(**given)") == train.split("\n").index("config = build(**given)")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    return GRPOConfig(**kept)", "    kept['max_steps'] = LIMIT\n    return GRPOConfig(**kept)"),
        ("(**given: Any)", "(first=1, **given: Any)"),
        ("    if left:", "    if not left:\n        return GRPOConfig(**given)\n    if left:"),
    ],
)
def test_a_function_that_does_more_is_asked_about(tmp_path: Path, old: str, new: str) -> None:
    assert old in SIZES
    with pytest.raises(LaunchError, match="no configuration of it is made in this file"):
        planned(tmp_path, sizes=SIZES.replace(old, new))
