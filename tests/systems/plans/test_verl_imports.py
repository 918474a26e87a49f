"""A copy of verl without a module that its trainer imports: no run starts in it, and none is planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from tests.systems.plans.checkouts import in_checkout, schedule_of
from tests.systems.plans.test_verl_checkouts import COMPARED_THEN_COUNTED, LAUNCH, MAIN, PASSES, SCALING, trainer

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.launched import Plan

IMPORTS = """
from verl import DataProto
from verl.single_controller import Worker
from verl.trainer.ppo.core_algos import (
    AdvantageEstimator,
)
from transformers.utils import logging
"""


def planned(folder: Path, *, algorithms: bool, whole: bool = True) -> Plan:
    files = {
        "verl/trainer/main_ppo.py": MAIN,
        "verl/trainer/ppo/ray_trainer.py": IMPORTS + trainer(COMPARED_THEN_COUNTED),
        "verl/single_controller/base.py": "",
        "verl/workers/fsdp_workers.py": SCALING,
        "verl/workers/actor/dp_actor.py": PASSES,
    }
    files |= {"verl/trainer/ppo/core_algos.py": ""} if algorithms else {}
    files |= {"verl/__init__.py": ""} if whole else {}
    return in_checkout(folder, files, LAUNCH)


def test_a_module_that_is_not_in_the_clone_is_named(tmp_path: Path) -> None:
    says = (
        r"verl\.trainer\.ppo\.core_algos, which the trainer imports, is not here \(verl/trainer/ppo/ray_trainer\.py:4\)"
    )
    with pytest.raises(LaunchError, match=says):
        planned(tmp_path, algorithms=False)


def test_a_whole_copy_is_planned_and_so_is_one_that_is_laid_over_the_installed_package(tmp_path: Path) -> None:
    assert schedule_of(planned(tmp_path, algorithms=True)).rollouts == 20
    (tmp_path / "over").mkdir()
    assert schedule_of(planned(tmp_path / "over", algorithms=False, whole=False)).rollouts == 20
