"""A configuration that a function of another file makes, and that the trainer of the program is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

MADE = """
import os
from trl import GRPOConfig
def make(steps=3, size=4):
    more = int(os.environ.get("MORE", "2"))
    {back}
"""
CALL = (
    "GRPOConfig(max_steps=steps, per_device_train_batch_size=size, num_generations=4, gradient_accumulation_steps=more)"
)
PROGRAM = """
def main():
    from trl import GRPOTrainer
    from sizes import make
    config = make({given})
    {more}
    trainer = GRPOTrainer(model="m", args=config, train_dataset=rows())
    trainer.train()
main()
"""


def sizes(folder: Path, *, back: str = f"return {CALL}", given: str = "", more: str = "pass") -> tuple[object, object]:
    """Samples of an update and updates of `python train.py`."""
    (folder / "sizes.py").write_text(MADE.format(back=back))
    (folder / "train.py").write_text(PROGRAM.format(given=given, more=more))
    (folder / "train.sh").write_text("python train.py\n")
    schedule = plan_launch([str(folder / "train.sh")], Options(rows=1000, world_size=1)).schedule
    assert schedule is not None
    return schedule.samples_per_update, schedule.updates


@pytest.mark.parametrize("back", [f"return {CALL}", f"made = {CALL}\n    print(made)\n    return made"])
def test_the_settings_are_those_of_the_function(tmp_path: Path, back: str) -> None:
    assert sizes(tmp_path, back=back) == (8, 3)


def test_what_the_program_hands_the_function_counts(tmp_path: Path) -> None:
    assert sizes(tmp_path, given="7, size=8") == (16, 7)


@pytest.mark.parametrize(
    ("back", "more"),
    [
        (f"made = {CALL}\n    made.max_steps = 9\n    return made", "pass"),
        (f"made = {CALL}\n    change(made)\n    return made", "pass"),
        (f"if steps:\n        return GRPOConfig()\n    return {CALL}", "pass"),
        (f"return {CALL}", "config.max_steps = 9"),
        (f"return {CALL}", "change(config)"),
        (f"return {CALL}", "config = other(config)"),
    ],
)
def test_a_configuration_that_may_be_changed_is_asked_about(tmp_path: Path, back: str, more: str) -> None:
    with pytest.raises(LaunchError, match="no configuration of it is made in this file"):
        sizes(tmp_path, back=back, more=more)
