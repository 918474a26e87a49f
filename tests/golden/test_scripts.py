"""A corpus of launch scripts in the style of the projects: each names its own options and what its plan must say.

`# plan:` holds the options of `rlstep plan`, `# expect:` fields of the Schedule (and the framework's name).
"""

from __future__ import annotations

import argparse
import shlex
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from rlstep_hooks.launch.shell.script import read_script
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launch_search import find_launch
from tests.golden.reading import planned

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.sh"))


def header(script: Path, name: str) -> str:
    return next(
        (line.partition(":")[2] for line in script.read_text().splitlines() if line.startswith(f"# {name}:")), ""
    )


def options(script: Path) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    for name, kind in (("rows", int), ("world-size", int), ("line", int), ("framework", str), ("version", str)):
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--set", action="append", dest="variables", default=[])
    given = vars(parser.parse_args(shlex.split(header(script, "plan"))))
    given["variables"] = dict(text.split("=", 1) for text in given["variables"])
    return {name: value for name, value in given.items() if value is not None}


def expected(script: Path) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in header(script, "expect").split())


def shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    return str(value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value)


def test_there_are_enough_scripts() -> None:
    assert len(SCRIPTS) >= 30


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_gives_its_training_command(script: Path) -> None:
    given = options(script)
    commands = read_script(script, given=given.get("variables"))
    launched = [
        command
        for command in commands
        if command.program.kind in ("module", "script") or command.program.name.startswith(("trl ", "swift ", "tune ", "llamafactory"))
    ]  # fmt: skip
    assert launched or any(command.program.name.endswith((".sh", "rl")) for command in commands)
    assert all("\\" not in token.text for command in launched for token in command.arguments)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_means_what_it_says(script: Path) -> None:
    wanted = expected(script)
    framework = wanted.pop("framework")
    given = options(script)
    assert find_launch([str(script)], Options(**given)).framework == framework
    plan = planned(script, **given)
    assert plan.schedule is not None, [finding.observed for finding in plan.findings]
    assert {name: shown(getattr(plan.schedule, name)) for name in wanted} == wanted
