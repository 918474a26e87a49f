"""A test suite that never heard of an audit, with real training: under `rlstep run -- pytest`, and with `--rlstep-audit`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from rlstep_hooks.systems.trl.releases import installed_release
from tests.systems.run_command import LIMIT, rlstep

if TYPE_CHECKING:
    from pathlib import Path

RELEASE = installed_release()
pytestmark = pytest.mark.skipif(
    RELEASE is None or not RELEASE.since("1.16"), reason="what this shows does not depend on the release"
)

SUITE = """
import pytest
import torch
from rlstep_hooks.testing.tiny_trl import tiny_trainer

torch.set_num_threads(1)

def broken(completions, **_):
    raise ValueError("no reward")

class TestTrainer:
    @pytest.mark.parametrize("passes", [1, 2])
    def test_train(self, tmp_path, passes, capsys, caplog):
        trainer = tiny_trainer(tmp_path, max_steps=2, num_iterations=passes)
        trainer.train()
        assert "rlstep" not in capsys.readouterr().err + caplog.text
        assert not [name for logs in trainer.state.log_history for name in logs if name.startswith("rlstep")]

    def test_raises(self, tmp_path):
        trainer = tiny_trainer(tmp_path, max_steps=2, reward=broken)
        with pytest.raises(ValueError, match="^no reward$"):
            trainer.train()

    def test_fails(self, tmp_path):
        tiny_trainer(tmp_path, max_steps=1).train()
        assert 1 == 2

    def test_init(self, tmp_path):
        tiny_trainer(tmp_path, algorithm="RLOO", max_steps=1)

    def test_refuses(self, tmp_path):
        with pytest.raises(ValueError):
            tiny_trainer(tmp_path, num_generations=3)

def test_other():
    pass
"""
ROWS = (
    r"test_foreign\.py",
    r"  TestTrainer::test_train\[1\] +passed +PASS +RLS102",
    r"  TestTrainer::test_train\[2\] +passed +PASS",
    r"  TestTrainer::test_raises +passed +NOT EVALUATED .*\[1\].*",
    r"  TestTrainer::test_fails +failed +PASS +RLS102",
    r"  TestTrainer::test_init +passed +not trained",
    r"\[1\] training raised ValueError: no reward \(1 test\)",
    r"5 tests, 4 training calls: 3 PASS, 1 NOT EVALUATED, 1 not trained; 2 tests built no trainer that is audited",
)


def outcomes(folder: Path, *command: str) -> tuple[str, dict[str, str]]:
    """What a command prints, and how each test ended."""
    (folder / "test_foreign.py").write_text(SUITE)
    done = subprocess.run(
        [*command, "-q", "-p", "no:cacheprovider", "-W", "ignore", "--junitxml", "ended.xml", "test_foreign.py"],
        cwd=folder,
        # As without a terminal anywhere, and in no audit.
        env={name: value for name, value in os.environ.items() if not name.startswith(("RLSTEP_", "PYTEST_"))},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 1, f"one test fails by itself:\n{done.stdout}{done.stderr}"
    cases = ElementTree.parse(folder / "ended.xml").iter("testcase")
    return done.stdout + done.stderr, {str(case.get("name")): case[0].tag if len(case) else "" for case in cases}


PYTEST = (sys.executable, "-m", "pytest")


@pytest.mark.parametrize(
    "command",
    [
        (*rlstep("run", "--dir", "log", "--"), *PYTEST),
        (*PYTEST, "--rlstep-audit"),
        (*PYTEST, "--rlstep-audit", "-n", "2"),
    ],
    ids=["rlstep run", "--rlstep-audit", "xdist"],
)
def test_every_trainer_of_a_suite_is_audited_without_a_change(tmp_path: Path, command: tuple[str, ...]) -> None:
    text, ended = outcomes(tmp_path, *command)
    assert {name: tag for name, tag in ended.items() if tag} == {"test_fails": "failure"}
    assert len(ended) == 7
    lines = [line.rstrip() for line in text.splitlines()]
    for row in ROWS:
        assert any(re.fullmatch(row, line) for line in lines), f"{row} is not in\n{text}"
    assert text.count("5 tests, 4 training calls") == 1
    assert not re.search(r"rollout \d+ of", text), "no live lines between the dots of pytest"
