"""TRL's own faults, each in a real run of a release that has it, explained in the finding; and silence where it is fixed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.systems.trl.observe.facts import layers_drop_cache
from rlstep_hooks.testing.tiny_trl import tiny_trainer
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import codes, explained, problems

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

CYCLE = {"gradient_accumulation_steps": 2, "num_iterations": 2, "max_steps": 8}


def release_between(first: str, end: str) -> bool:
    """Whether the installed release is in [first, end)."""
    return Version(first) <= RELEASE < Version(end)


def check(report: Report, name: str, *, present: bool) -> None:
    """All findings are explained by the named deviation, or there are none."""
    if present:
        assert report.verdict == "FAIL"
        assert explained(report) == {name}, problems(report)
        assert all(f.deviation == name for f in report.findings if f.severity == "error"), problems(report)
        finding = report.findings[0]
        assert finding.why.startswith("known deviation: ")
        assert finding.fix
    else:
        assert report.verdict == "PASS", problems(report)
        assert not problems(report)


def test_evaluation_on_start(build: Callable[..., Any]) -> None:
    trainer, audit = build(eval_on_start=True, eval_strategy="steps", eval_steps=100, evaluation_rows=3, **CYCLE)
    trainer.train()
    # In 0.16 its batches take the training branch but leave the order of events as it is; 0.17 trains on them.
    check(audit.report, "trl-evaluation-taken-for-training", present=release_between("0.17", "0.18"))
    if release_between("0.17", "0.18"):
        assert {"RLS202", "RLS503", "RLS504"} <= codes(audit.report)
        assert audit.report.findings[0].where.microbatch in (0, None)


def test_evaluation_before_training(build: Callable[..., Any]) -> None:
    trainer, audit = build(evaluation_rows=3, **CYCLE)
    trainer.evaluate()
    trainer.train()
    check(audit.report, "trl-evaluation-taken-for-training", present=release_between("0.17", "0.18"))


def test_evaluation_from_a_callback(build: Callable[..., Any]) -> None:
    from transformers import TrainerCallback

    trainer, audit = build(evaluation_rows=3, **CYCLE)

    class Evaluate(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                trainer.evaluate()

    trainer.add_callback(Evaluate())
    trainer.train()
    check(audit.report, "trl-evaluation-taken-for-training", present=release_between("0.16", "0.18"))
    if release_between("0.16", "0.18"):
        assert "RLS504" in codes(audit.report)


def test_evaluation_by_strategy_is_harmless_everywhere(build: Callable[..., Any]) -> None:
    trainer, audit = build(eval_strategy="steps", eval_steps=2, evaluation_rows=4, **CYCLE)
    trainer.train()
    assert audit.report.verdict == "PASS", problems(audit.report)
    assert audit.report.counts.evaluation_rollouts >= 12


@pytest.mark.parametrize("saved_at", [3, 4])
def test_resume(tmp_path: Path, saved_at: int) -> None:
    settings = {**CYCLE, "save_strategy": "steps", "save_steps": saved_at}
    tiny_trainer(tmp_path, **settings | {"max_steps": saved_at}).train()
    audit = StepAuditCallback(log_dir=None, listeners=())
    trainer = tiny_trainer(tmp_path, callbacks=[audit], **settings)
    checkpoint = str(tmp_path / f"checkpoint-{saved_at}")
    if saved_at == 3 and Version("0.17") > RELEASE:
        with pytest.raises(TypeError, match="'NoneType' object is not subscriptable"):
            trainer.train(resume_from_checkpoint=checkpoint)
        check(audit.report, "trl-resume-raises", present=True)
        assert codes(audit.report) == {"RLS701"}
        return
    trainer.train(resume_from_checkpoint=checkpoint)
    assert trainer.state.global_step == 8
    check(audit.report, "trl-resume-phase", present=saved_at == 3)
    if saved_at == 3:
        # The interrupted rollout had one pass left: after one update a new one was due.
        assert codes(audit.report) == {"RLS202"}
        where = audit.report.findings[0].where
        assert (where.update, where.microbatch) == (4, 2)


def test_stale_rollouts_without_old_log_probs(build: Callable[..., Any]) -> None:
    if Version("0.18") > RELEASE:
        pytest.skip("steps_per_generation came with 0.18")
    trainer, audit = build(
        gradient_accumulation_steps=4, steps_per_generation=3, num_train_epochs=1, loss_type="bnpo", rows=36
    )
    trainer.train()
    check(audit.report, "trl-stale-without-old-log-probs", present=release_between("0.18", "0.20"))
    if release_between("0.18", "0.20"):
        assert codes(audit.report) == {"RLS304"}
        assert audit.report.findings[0].where.microbatch == 4


def test_gradients_left_over(build: Callable[..., Any]) -> None:
    if Version("0.18") > RELEASE:
        pytest.skip("steps_per_generation came with 0.18")
    trainer, audit = build(
        gradient_accumulation_steps=3, steps_per_generation=5, num_train_epochs=2, loss_type="bnpo", rows=36
    )
    trainer.train()
    present = release_between("0.18", "0.20")
    check(audit.report, "trl-gradients-left-over", present=present)
    assert audit.report.counts.updates == (22 if present else 24)
    if present:
        first = audit.report.findings[0]
        assert (first.code, first.where.update, first.where.microbatch) == ("RLS204", 11, 35)


@pytest.mark.parametrize("scheduler", ["linear", "constant"])
def test_max_steps_counts_dropped_rows(build: Callable[..., Any], scheduler: str) -> None:
    trainer, audit = build(
        gradient_accumulation_steps=2, num_iterations=2, num_train_epochs=1, rows=37, lr_scheduler_type=scheduler
    )
    trainer.train()
    present = release_between("0.16", "0.20")
    check(audit.report, "trl-horizon-counts-dropped-rows", present=present)
    assert (trainer.state.max_steps, trainer.state.global_step) == ((37, 36) if present else (36, 36))
    if present:
        assert codes(audit.report) == ({"RLS206", "RLS601"} if scheduler == "linear" else {"RLS206"})


@pytest.mark.parametrize(("accumulation", "per_generation"), [(2, 4), (4, 2), (2, 2)])
def test_dapo_divisor(build: Callable[..., Any], accumulation: int, per_generation: int) -> None:
    if Version("0.22") > RELEASE:
        pytest.skip("the dapo loss came with 0.22")
    trainer, audit = build(
        gradient_accumulation_steps=accumulation, steps_per_generation=per_generation, max_steps=4, loss_type="dapo"
    )
    trainer.train()
    present = release_between("0.22", "1.9.1") and accumulation != per_generation
    check(audit.report, "trl-dapo-divisor", present=present)
    if present:
        assert codes(audit.report) == {"RLS801"}
        # GA=2, spg=4: the gradient is half as large as documented; GA=4, spg=2: twice.
        assert f"{accumulation / per_generation:.4g} times" in audit.report.findings[0].observed


@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo"])
def test_other_losses_do_not_depend_on_the_generation_period(
    build: Callable[..., Any], loss_type: str, beta: float
) -> None:
    if Version("0.18") > RELEASE:
        pytest.skip("steps_per_generation came with 0.18")
    trainer, audit = build(
        gradient_accumulation_steps=2, steps_per_generation=4, max_steps=4, loss_type=loss_type, beta=beta
    )
    trainer.train()
    check(audit.report, "", present=False)
    outcome = next(rule for rule in audit.report.rules if rule.code == "RLS801")
    assert outcome.verdict == "PASS", outcome.reason
    assert outcome.checks >= 1


@pytest.mark.parametrize("reused", [False, True], ids=["one pass", "two passes"])
def test_gradient_checkpointing(build: Callable[..., Any], reused: bool) -> None:
    """Completions are long enough that what is lost shows: without its context, each token has other log-probs."""
    passes = CYCLE if reused else {"max_steps": 8}
    trainer, audit = build(gradient_checkpointing=True, max_completion_length=16, learning_rate=1e-2, **passes)
    trainer.train()
    present = layers_drop_cache(trainer.model) and release_between("0.16", "0.22")
    check(audit.report, "trl-gradient-checkpointing-in-generation", present=present)
    if present:
        assert "RLS313" in codes(audit.report)
