"""What a checkpoint brings back: a run that resumes, and one in which a part of its checkpoint is not loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("trl")

from transformers import AutoModelForCausalLM, TrainerCallback

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.testing.tiny_trl import tiny_trainer
from tests.systems.trl.helpers import problems

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

SETTINGS: dict[str, Any] = {
    "rows": 12,
    "gradient_accumulation_steps": 2,
    "num_train_epochs": 1,
    "save_strategy": "steps",
    "save_steps": 4,
    "learning_rate": 1e-2,
    "lr_scheduler_type": "linear",
}


def resumed(folder: Path, fault: Any = None, saved: dict[str, Any] | None = None, **settings: Any) -> Report:
    """The report of a run that resumes from a checkpoint after four updates.

    Args:
        folder: Where both runs write.
        fault: Is done to the trainer that resumes; its `resumes_from` is the checkpoint.
        saved: More settings of the run that saves.
        settings: More settings of both.
    """
    both = SETTINGS | settings
    tiny_trainer(folder, **both | {"max_steps": 4} | (saved or {})).train()
    audit = StepAuditCallback(log_dir=None, listeners=())
    trainer = tiny_trainer(folder, callbacks=[audit], **both)
    trainer.resumes_from = str(folder / "checkpoint-4")
    if fault is not None:
        fault(trainer)
    trainer.train(resume_from_checkpoint=trainer.resumes_from)
    return audit.report


def nothing_loads(name: str) -> Any:
    """A fault: a method of the trainer that loads something does nothing."""

    def apply(trainer: Any) -> None:
        setattr(trainer, name, lambda *args, **kwargs: None)

    return apply


def moments_lost(trainer: Any) -> None:
    """The optimizer's state is cleared after it was loaded."""
    load = trainer._load_optimizer_and_scheduler

    def loads(checkpoint: Any) -> None:
        load(checkpoint)
        trainer.optimizer.optimizer.state.clear()

    trainer._load_optimizer_and_scheduler = loads


def moments_halved(trainer: Any) -> None:
    """The optimizer's first moments are halved after they were loaded."""
    load = trainer._load_optimizer_and_scheduler

    def loads(checkpoint: Any) -> None:
        load(checkpoint)
        for state in trainer.optimizer.optimizer.state.values():
            state["exp_avg"].mul_(0.5)

    trainer._load_optimizer_and_scheduler = loads


def reference_of_the_checkpoint(trainer: Any) -> None:
    """The reference model is the checkpoint."""
    trainer.ref_model.load_state_dict(AutoModelForCausalLM.from_pretrained(trainer.resumes_from).state_dict())


def of_rule(report: Report) -> list[tuple[str, str]]:
    """Severity and expectation of what RLS702 found."""
    return [(found.severity, found.expected) for found in report.findings if found.code == "RLS702"]


@pytest.mark.parametrize(
    "settings",
    [{}, {"beta": 0.1}, {"optim": "sgd"}, {"optim": "adafactor"}, {"num_iterations": 2}, {"bf16": True}],
    ids=str,
)
def test_a_healthy_resume(settings: dict[str, Any], tmp_path: Path) -> None:
    report = resumed(tmp_path, **settings)
    assert not problems(report)
    [rule] = [rule for rule in report.rules if rule.code == "RLS702"]
    assert rule.verdict == "PASS"
    assert rule.checks >= 4


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (nothing_loads("_load_from_checkpoint"), ("error", "the weights that the checkpoint holds")),
        (nothing_loads("_load_optimizer_and_scheduler"), ("error", "an optimizer after 4 steps")),
        (moments_lost, ("error", "an optimizer after 4 steps")),
        (moments_halved, ("error", "the moments that the checkpoint holds")),
        (
            nothing_loads("_load_rng_state"),
            ("error", "the state of torch's random generator that the checkpoint holds"),
        ),
        (reference_of_the_checkpoint, ("warning", "a reference model with the weights that the run began with")),
    ],
)
def test_a_part_that_is_not_brought_back_is_found(fault: Any, found: tuple[str, str], tmp_path: Path) -> None:
    report = resumed(tmp_path, fault, beta=0.1)
    assert found in of_rule(report), problems(report)
    assert report.findings[0].code == "RLS702"


def test_a_checkpoint_without_its_optimizer_is_a_warning(tmp_path: Path) -> None:
    report = resumed(tmp_path, saved={"save_only_model": True})
    assert ("warning", "an optimizer after 1 step or more") in of_rule(report)


def saves_what_was_before(trainer: Any) -> None:
    """The weights that are saved are those before the latest update."""
    save, held = trainer._save, {}

    class Keeps(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
            held.update({name: of.detach().clone() for name, of in model.state_dict().items()})

    trainer.add_callback(Keeps())
    trainer._save = lambda output_dir=None, state_dict=None: save(output_dir, state_dict=dict(held))


@pytest.mark.parametrize("stale", [False, True])
def test_a_checkpoint_holds_what_the_run_held(tmp_path: Path, *, stale: bool) -> None:
    audit = StepAuditCallback(log_dir=None, listeners=())
    trainer = tiny_trainer(tmp_path, callbacks=[audit], **SETTINGS | {"save_steps": 2, "max_steps": 4})
    if stale:
        saves_what_was_before(trainer)
    trainer.train()
    rule = next(rule for rule in audit.report.rules if rule.code == "RLS703")
    assert (rule.verdict, rule.checks) == ("FAIL" if stale else "PASS", 4)
    found = [finding for finding in audit.report.findings if finding.code == "RLS703"]
    assert [(of.where.update, of.expected) for of in found] == (
        [(2, "the weights of the run after 2 updates in its checkpoint")] if stale else []
    )
