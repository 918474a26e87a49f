"""LLaMA-Factory's PPO: healthy runs, accelerate's deviation, faults; and training as without the audit."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import torch
from llamafactory.train.ppo import trainer as module

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.systems.llamafactory.observe import audit
from tests.reports import report_of
from tests.systems.llamafactory import tiny
from tests.systems.run_command import LIMIT, rlstep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

PPO = module.CustomPPOTrainer


@pytest.fixture
def attached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As the injection does it in a command of `rlstep run`."""
    monkeypatch.setenv("RLSTEP_DIR", str(folder / "log"))
    before = vars(PPO)["ppo_train"]
    audit.audit_ppo(module)
    yield
    assert audit.detach() == []
    assert vars(PPO)["ppo_train"] is before


def audited(folder: Path, **settings: Any) -> Report:
    tiny.train(folder, **settings)
    return report_of(folder / "log")


def codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings if finding.severity != "info"}


def test_as_planned_passes(folder: Path, attached: None) -> None:
    report = audited(folder)
    assert codes(report) == set()
    assert (report.verdict, report.complete) == ("PASS", True)
    assert (report.counts.rollouts, report.counts.samples) == (6, 48)
    assert (report.counts.updates, report.counts.old_logprob_refreshes) == (24, 6)
    assert report.schedule.framework == "LLaMA-Factory"
    assert [values.lag for values in report.lags] == [0, 1, 2, 3]
    assert report.lags[0].max_abs_log_ratio < 1e-5
    assert report.lags[1].max_abs_log_ratio > 1e-4


def test_a_run_that_max_steps_ends(folder: Path, attached: None) -> None:
    report = audited(folder, max_steps=5, lr_scheduler_type="linear")
    assert codes(report) == set()
    assert (report.verdict, report.counts.rollouts, report.counts.updates) == ("PASS", 5, 20)


def test_every_microbatch_of_the_last_rollout_is_an_update(folder: Path, attached: None) -> None:
    report = audited(folder, per_device_train_batch_size=2, gradient_accumulation_steps=2)
    assert codes(report) == {"RLS113"}
    [finding] = [finding for finding in report.findings if finding.code == "RLS113"]
    assert finding.deviation == "llamafactory-last-rollout"
    assert finding.observed == "4 updates, and 8 in the last rollout of a data epoch"
    assert report.counts.updates == 4 + 4 + 8 + 4 + 4 + 8


def test_rlstep_run(folder: Path) -> None:
    (folder / "ppo.json").write_text(json.dumps(tiny.settings(folder)))
    words = rlstep("run", "--dir", "log", "--", "llamafactory-cli", "train", "ppo.json")
    outcome = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    assert "LLaMA-Factory" in outcome.stdout + outcome.stderr
    assert report_of(folder / "log").verdict == "PASS"


def test_bit_for_bit_the_same(folder: Path, attached: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with_audit = tiny.train(folder)
    state = torch.get_rng_state()
    monkeypatch.delenv("RLSTEP_DIR")
    plain = tiny.train(folder)
    assert torch.equal(state, torch.get_rng_state())
    assert plain.keys() == with_audit.keys()
    assert all(torch.equal(value, with_audit[name]) for name, value in plain.items())
    assert (folder / "log").exists()
    assert "RLSTEP_DIR" not in os.environ


def test_the_callback_says_how(folder: Path) -> None:
    callback = StepAuditCallback(log_dir=None, listeners=())
    tiny.train(folder, [callback], max_steps=1)
    assert callback.report.verdict == "NOT_EVALUATED"
    assert "rlstep run -- llamafactory-cli train" in callback.report.not_evaluated["order"]


# Faults: 4 updates on each rollout.


def test_passes_changed_in_mid_run(folder: Path, attached: None, monkeypatch: pytest.MonkeyPatch) -> None:
    count, step = itertools.count(), PPO.step

    def fewer(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        if next(count) == 2:
            trainer.config.ppo_epochs = 1
        return step(trainer, *args, **kwargs)

    monkeypatch.setattr(PPO, "step", fewer)
    report = audited(folder)
    assert report.verdict == "FAIL"
    found = next(finding for finding in report.findings if finding.code == "RLS201")
    assert found.where.rollout == 3


def test_an_update_too_many(folder: Path, attached: None, monkeypatch: pytest.MonkeyPatch) -> None:
    step = PPO.step

    def one_more(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        statistics = step(trainer, *args, **kwargs)
        trainer.optimizer.step()
        return statistics

    monkeypatch.setattr(PPO, "step", one_more)
    report = audited(folder)
    assert report.verdict == "FAIL"
    found = next(finding for finding in report.findings if finding.code == "RLS203")
    assert (found.where.rollout, found.where.update) == (0, 4)


def test_weights_written_after_the_old_log_probs(folder: Path, attached: None, monkeypatch: pytest.MonkeyPatch) -> None:
    count, rewards = itertools.count(), PPO.compute_rewards

    def perturbing(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        if next(count) == 2:
            with torch.no_grad():
                for parameter in trainer.model.parameters():
                    parameter.mul_(3.0)
        return rewards(trainer, *args, **kwargs)

    monkeypatch.setattr(PPO, "compute_rewards", perturbing)
    report = audited(folder)
    assert {"RLS301", "RLS404"} <= codes(report)
    assert next(finding for finding in report.findings if finding.code == "RLS301").where.rollout == 2


def test_a_run_that_ends_too_early(folder: Path, attached: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """`max_steps` epochs are planned, and the loop stops before."""
    count, step = itertools.count(), PPO.step

    def stops(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        trainer.control.should_training_stop = next(count) == 3
        return step(trainer, *args, **kwargs)

    monkeypatch.setattr(PPO, "step", stops)
    report = audited(folder)
    assert report.counts.rollouts == 4
    assert report.verdict != "PASS"
