"""verl's entry point does nothing until an audit is requested. verl itself is not needed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rlstep_hooks.systems.verl.observe import plugin

OWN = {
    "rlstep_hooks",
    "rlstep_hooks.systems",
    "rlstep_hooks.systems.verl",
    "rlstep_hooks.systems.verl.observe",
    "rlstep_hooks.systems.verl.observe.environment",
    "rlstep_hooks.systems.verl.observe.plugin",
}

MEASURE = """
import importlib.metadata, json, os, sys, time, typing  # what verl has when it loads entry points
before = set(sys.modules)
begin = time.process_time()
import rlstep_hooks.systems.verl.observe.plugin
print(json.dumps([time.process_time() - begin, sorted(set(sys.modules) - before)]))
"""


def imported(**environment: str) -> tuple[float, set[str]]:
    """Seconds of processor time that importing the entry point takes in a new process, and the modules that come with it."""
    output = subprocess.run(
        [sys.executable, "-c", MEASURE], env=environment, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    seconds, modules = json.loads(output)
    return seconds, set(modules)


def test_nothing_is_imported_unless_asked_for() -> None:
    _, modules = imported()
    assert modules - {"__future__"} == OWN


def test_it_costs_under_five_milliseconds() -> None:
    assert min(imported()[0] for _ in range(5)) < 0.005


def test_asked_for_it_loads_the_hooks(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("asked")
    for environment in ({"RLSTEP_DIR": str(folder)}, {"VERL_USE_EXTERNAL_MODULES": "a,rlstep_hooks.verl"}):
        _, modules = imported(**environment)
        assert "rlstep_hooks.systems.verl.observe.attach" in modules
        assert not {"torch", "ray", "verl"} & modules, "the process may be one that needs none of these"


@pytest.mark.parametrize(
    ("environment", "asked"),
    [
        ({}, False),
        ({"RLSTEP_DIR": ""}, False),
        ({"RLSTEP_DIR": "records"}, True),
        ({"VERL_USE_EXTERNAL_MODULES": "rlstep_hooks.verl_other"}, False),
        ({"VERL_USE_EXTERNAL_MODULES": "a,rlstep_hooks.verl"}, True),
    ],
)
def test_what_asks_for_an_audit(environment: dict[str, str], asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RLSTEP_DIR", "VERL_USE_EXTERNAL_MODULES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert plugin.asked() is asked
