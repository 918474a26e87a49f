"""How an audit gets into a run of ms-swift: `rlstep run`, and a callback of a plugin; and what is refused before training."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.systems.swift.observe.adapter import SwiftAdapter
from rlstep_hooks.systems.trl.observe.adapter import adapter_of
from rlstep_hooks.systems.trl.releases import installed_release
from tests.reports import report_of
from tests.systems.run_command import LIMIT, rlstep
from tests.systems.swift import tiny

if TYPE_CHECKING:
    from pathlib import Path


def run(folder: Path, *options: str, environment: dict[str, str] | None = None, **settings: Any) -> str:
    """`swift rlhf` as a user starts it; what it printed."""
    words = [*options, "swift", "rlhf", *tiny.arguments(folder, **settings)]
    outcome = subprocess.run(
        words,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=os.environ | (environment or {}),
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    return outcome.stdout + outcome.stderr


def test_rlstep_run(folder: Path) -> None:
    said = run(folder, *rlstep("run", "--dir", "log", "--"), num_iterations=2)
    assert "ms-swift 4.6.0" in said
    report = report_of(folder / "log")
    assert report.verdict == "PASS"
    assert (report.counts.rollouts, report.counts.updates) == (6, 12)
    assert report.schedule.framework == "ms-swift"


def test_a_callback_with_a_name(folder: Path) -> None:
    run(folder, environment={"RLSTEP_DIR": str(folder / "log")}, callbacks="rlstep")
    assert report_of(folder / "log").verdict == "PASS"


@pytest.fixture
def trainer(folder: Path) -> Any:
    return tiny.train(folder, max_steps=1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda trainer, patch: patch.setattr(trainer.args, "async_generate", True), "async_generate"),
        (
            lambda trainer, patch: patch.setattr(type(trainer.template), "sequence_parallel_size", 2, raising=False),
            "sequence_parallel_size",
        ),
        (
            lambda trainer, patch: patch.setattr(
                "rlstep_hooks.systems.swift.observe.adapter.installed_swift", lambda: "4.3.2"
            ),
            "ms-swift 4.3.2 is not supported (4.4 to 4.6 are)",
        ),
    ],
)
def test_refused(trainer: Any, change: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    release, adapter = installed_release(), adapter_of(trainer)
    assert release is not None
    assert isinstance(adapter, SwiftAdapter)
    assert adapter.refusal(trainer, release) == ""
    if said == "sequence_parallel_size":
        monkeypatch.delattr(trainer.template, "sequence_parallel_size", raising=False)
    change(trainer, monkeypatch)
    assert said in adapter.refusal(trainer, release)


def test_a_trainer_without_rollouts(folder: Path) -> None:
    """DPO: one line, and nothing is done."""
    messages = [{"role": "user", "content": "add two"}, {"role": "assistant", "content": "yes"}]
    row = json.dumps({"messages": messages, "rejected_response": "so"})
    (folder / "rows.jsonl").write_text(f"{row}\n" * 8)
    audit = StepAuditCallback(log_dir=None, listeners=())
    tiny.train(
        folder,
        [audit],
        rlhf_type="dpo",
        reward_funcs=None,
        num_generations=None,
        max_completion_length=None,
        top_k=None,
    )
    assert audit.report.verdict == "NOT_EVALUATED"
    assert "makes no rollouts, so there is nothing to audit" in audit.report.not_evaluated["order"]
