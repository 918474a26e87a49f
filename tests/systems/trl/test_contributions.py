"""The drafts for TRL trained as they stand, with a tiny model and tiny rows in the place of those that they name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.testing.tiny_trl import tiny_model, tiny_rows, tiny_tokenizer
from tests.contributions.ready import DRAFTS
from tests.contributions.test_drafts import blocks
from tests.systems.run_command import LIMIT
from tests.systems.trl.conftest import RELEASE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(RELEASE.release < (1, 16), reason="the drafts are for the newest release")

PAGE = DRAFTS / "trl" / "rlstep_integration.md"


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    tokenizer = tiny_tokenizer()
    tiny_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_the_page_trains(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import datasets

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: tiny_rows(16))
    usage, findings, *_ = blocks(PAGE.relative_to(DRAFTS), "python")
    here = {'"Qwen/Qwen3-0.6B"': repr(model), "GRPOConfig(\n": "GRPOConfig(use_cpu=True, bf16=False, report_to=[],\n"}
    for said, instead in here.items():
        assert usage.count(said) == 1
        usage = usage.replace(said, instead)
    names: dict[str, Any] = {}
    exec(usage, names)
    assert capsys.readouterr().out.splitlines()[-1] == "PASS"
    counts = names["audit"].report.counts
    assert (counts.updates, counts.rollouts) == (8, 4)  # two updates for each rollout, as the comment says
    exec(findings, names)


GATE = DRAFTS / "gate" / "test_step_audit.py"
ONE_LOSS = ("-k", "dapo")
"""Of the gate's three losses the first, where one is enough to see the gate fail."""


def gate(folder: Path, model: str, before: str = "", *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the draft of a framework's own test in a session of its own."""
    text, replaced = re.subn(r'^MODEL = ".*"$', f"MODEL = {model!r}", GATE.read_text(), flags=re.MULTILINE)
    assert replaced == 1
    (folder / "test_step_audit.py").write_text(text)
    (folder / "conftest.py").write_text(before)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        "test_step_audit.py",
        *options,
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RLSTEP_", "PYTEST_"))}
    return subprocess.run(
        command, cwd=folder, env=environment | more, capture_output=True, text=True, timeout=LIMIT, check=False
    )


HALVED = """
import trl
compute = trl.GRPOTrainer._compute_loss
trl.GRPOTrainer._compute_loss = lambda self, model, inputs: compute(self, model, inputs) / 2
"""


def test_the_gate_finds_a_loss_that_a_bound_of_one_tenth_passes_over(tmp_path: Path, model: str) -> None:
    done = gate(tmp_path, model, HALVED, *ONE_LOSS)
    assert done.returncode == 1
    assert "RLS801" in done.stdout, done.stdout[-3000:]


OF_TOMORROW = """
import importlib.metadata
installed = importlib.metadata.version
importlib.metadata.version = lambda name: "99.0.0.dev0" if name == "trl" else installed(name)
"""


def test_the_gate_passes_over_a_main_branch_that_is_judged_as_the_release_that_is_named(
    tmp_path: Path, model: str
) -> None:
    done = gate(tmp_path, model, OF_TOMORROW, RLSTEP_AS_RELEASE="trl=1.16.0")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "3 passed" in done.stdout, done.stdout[-3000:]


def test_the_gate_refuses_a_main_branch_where_no_release_is_named(tmp_path: Path, model: str) -> None:
    done = gate(tmp_path, model, OF_TOMORROW, *ONE_LOSS, RLSTEP_AS_RELEASE="")
    assert done.returncode == 1, done.stdout[-3000:]
    assert "TRL 99.0.0.dev0 is not supported" in done.stdout, done.stdout[-3000:]
