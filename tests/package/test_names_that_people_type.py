"""Names in users' launch scripts and environments."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import rlstep_hooks
from rlstep_hooks.openrlhf import runtime_env_hook
from rlstep_hooks.systems.openrlhf.observe import ray_hooks


@pytest.mark.parametrize("asked", [True, False])
def test_verl_attaches_when_it_imports_the_name_that_asks_for_an_audit(asked: bool) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "RLSTEP_DIR"}
    name = "rlstep_hooks.verl"
    program = f"import sys, {name}; print('rlstep_hooks.systems.verl.observe.attach' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment | {"VERL_USE_EXTERNAL_MODULES": name if asked else "other"},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str(asked), done.stderr


def test_the_name_for_ray_leads_to_the_hook() -> None:
    assert runtime_env_hook is ray_hooks.runtime_env_hook


def test_the_function_plan_is_not_hidden_by_a_package() -> None:
    from rlstep_hooks.planning import schedule  # what the function's own modules import

    assert schedule.Schedule is rlstep_hooks.Schedule
    assert callable(rlstep_hooks.plan)
    assert callable(rlstep_hooks.audit)
