"""`import rlstep_hooks` loads nothing but itself; the core loads no framework and no terminal."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rlstep_hooks

ROOT = Path(rlstep_hooks.__file__).parents[1]
HEAVY = {"torch", "transformers", "trl", "accelerate", "datasets", "numpy", "rich", "typer", "vllm", "ray"}
PROGRAM = """
import json, sys, time
before = set(sys.modules)
began = time.perf_counter()
{statement}
seconds = time.perf_counter() - began
print(json.dumps([seconds, sorted(set(sys.modules) - before)]))
"""


def loaded(statement: str) -> tuple[float, set[str]]:
    """Seconds, and the packages outside the standard library that a statement loads in a new process."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    program = PROGRAM.format(statement=statement)
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    seconds, modules = json.loads(run.stdout)
    return seconds, {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)


def test_importing_the_package_loads_nothing_else(record_property: Any) -> None:
    runs = [loaded("import rlstep_hooks") for _ in range(5)]
    record_property("median_import_ms", round(1000 * statistics.median(seconds for seconds, _ in runs), 2))
    assert [packages for _, packages in runs] == [{"rlstep_hooks"}] * 5


@pytest.mark.parametrize(
    "statement",
    [
        "from rlstep_hooks import Finding, Report, Schedule, StepAuditError",
        "import rlstep_hooks.judge.judge, rlstep_hooks.session.recorder, rlstep_hooks.judge.ranks.merge",
        "import rlstep_hooks.systems.trl.plan, rlstep_hooks.systems.trl.observe.resume",
        "from rlstep_hooks import plan",
        "from rlstep_hooks import Schedule, audit; audit(Schedule.ppo(actors=1, steps=4))",
    ],
)
def test_the_core_loads_no_framework_and_no_terminal(statement: str) -> None:
    _, packages = loaded(statement)
    assert packages & HEAVY == set()


def test_public_names_are_listed_and_others_are_refused() -> None:
    assert set(rlstep_hooks.__all__) <= set(dir(rlstep_hooks))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        rlstep_hooks.nonsense  # noqa: B018


def test_an_object_that_no_system_knows_is_refused() -> None:
    with pytest.raises(TypeError, match="no system knows int"):
        rlstep_hooks.plan(42)
