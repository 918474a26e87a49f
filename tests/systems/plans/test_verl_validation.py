"""Trainers of recipes that are not given what the validation of the trainer which they extend uses: such a run ends there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from tests.systems.plans.test_verl_checkouts import COMPARED_THEN_COUNTED, RECIPE, planned, rollouts, trainer

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.launched import Plan

USED = "self.stage.play(batch)"
GUARDED = "self.stage.play(batch) if self.stage is not None else batch"
BUILDS = "trainer = RayDAPOTrainer(config=config, tokenizer=tokenizer{more})\ntrainer.fit()\n"
OWN = "\n    def _validate(self):\n        return {}\n"


def of_recipe(folder: Path, *, used: str = USED, given: str = "", own: str = "", more: str = "") -> Plan:
    """The plan of DAPO's recipe over a fork of verl whose trainer validates on a stage, for 1 050 rows."""
    start = f"""
    def __init__(self, config, tokenizer, stage=None):
        self.config, self.tokenizer = config, tokenizer
        self.stage = stage

    def _validate(self):
        for batch in self.val_dataloader:
            output = {used}
"""
    common = trainer(COMPARED_THEN_COUNTED).replace("class RayPPOTrainer:", f"class RayPPOTrainer:{start}")
    recipe = trainer(COMPARED_THEN_COUNTED) + own
    (folder / "recipe/dapo").mkdir(parents=True)
    (folder / "recipe/dapo/dapo_ray_trainer.py").write_text(recipe.replace("RayPPOTrainer", "RayDAPOTrainer"))
    (folder / "recipe/dapo/main_dapo.py").write_text(BUILDS.format(more=given))
    return planned(folder, common, f"{RECIPE} {more}")


@pytest.mark.parametrize("more", ["", "trainer.val_before_train=False trainer.test_freq=5"])
def test_a_recipe_whose_trainer_lacks_what_the_validation_calls_is_no_plan(tmp_path: Path, more: str) -> None:
    with pytest.raises(
        LaunchError, match=r"calls self\.stage, which RayDAPOTrainer is not given .*main_dapo.*test_freq=-1"
    ):
        of_recipe(tmp_path, more=more)


@pytest.mark.parametrize(
    "words",
    [
        {"given": ", stage=stage"},
        {"given": ", **parts"},
        {"used": GUARDED},
        {"own": OWN},
        {"more": "trainer.val_before_train=False trainer.test_freq=-1"},
    ],
)
def test_a_recipe_whose_trainer_validates_without_it_is_planned(tmp_path: Path, words: dict[str, str]) -> None:
    assert rollouts(of_recipe(tmp_path, **words)) == 20
