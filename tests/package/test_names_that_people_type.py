"""Names in users' launch scripts and environments: today's names and those of earlier READMEs work."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import rlstep_hooks
from rlstep_hooks.frameworks.openrlhf import launch as earlier_launch
from rlstep_hooks.openrlhf import runtime_env_hook
from rlstep_hooks.render import console as earlier_console
from rlstep_hooks.show.console import LiveListener


@pytest.mark.parametrize("name", ["rlstep_hooks.verl", "rlstep_hooks.frameworks.verl"])
@pytest.mark.parametrize("asked", [True, False])
def test_verl_attaches_when_it_imports_the_name_that_asks_for_an_audit(name: str, asked: bool) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "RLSTEP_DIR"}
    program = f"import sys, {name}; print('rlstep_hooks.systems.verl.observe.attach' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment | {"VERL_USE_EXTERNAL_MODULES": name if asked else "other"},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str(asked), done.stderr


def test_earlier_names_lead_to_the_same_objects() -> None:
    assert earlier_launch.runtime_env_hook is runtime_env_hook
    assert earlier_console.LiveListener is LiveListener


def test_the_function_plan_is_not_hidden_by_a_package() -> None:
    from rlstep_hooks.planning import schedule  # what the function's own modules import

    assert schedule.Schedule is rlstep_hooks.Schedule
    assert callable(rlstep_hooks.plan)
    assert callable(rlstep_hooks.audit)
