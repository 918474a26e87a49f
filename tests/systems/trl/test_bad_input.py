"""Bad input gets a clear answer, and training goes on."""

from __future__ import annotations

import os
import resource
import signal
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version

from rlstep_hooks import StepAuditCallback, StepAuditError, plan
from rlstep_hooks.systems.trl.observe import callback as callback_module
from rlstep_hooks.systems.trl.observe.limits import is_compiled
from rlstep_hooks.systems.trl.releases import TrlRelease
from rlstep_hooks.testing.tiny_trl import tiny_model, tiny_rows, tiny_tokenizer, tiny_trainer
from rlstep_hooks.testing.trl_faults import FAULTS
from tests.reports import report_of
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import problems

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHORT = {"max_steps": 2}
FIRST_REUSE = 2 if RELEASE.release < (0, 17) else 1
"""The update in which a rollout that comes too early shows: 0.16 generates for each micro-batch of the first pass anyway."""


def test_an_unsupported_trainer_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    audit = StepAuditCallback(log_dir=None)
    tokenizer = tiny_tokenizer()
    trainer = SFTTrainer(
        model=tiny_model(tokenizer),
        args=SFTConfig(
            output_dir=str(tmp_path),
            max_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=2,
            disable_tqdm=True,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict({"text": ["add two and three"] * 4}),
        processing_class=tokenizer,
        callbacks=[audit],
    )
    trainer.train()
    assert trainer.state.global_step == 1
    assert audit.report.verdict == "NOT_EVALUATED"
    assert "SFTTrainer makes no rollouts" in audit.report.not_evaluated["order"]
    assert "SFTTrainer makes no rollouts" in capsys.readouterr().err
    with pytest.raises(TypeError, match="no system knows SFTTrainer"):
        plan(trainer)


def test_an_unsupported_release_is_named(build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callback_module, "installed_release", lambda: TrlRelease("9.9.0", "9.9.0"))
    trainer, audit = build(**SHORT)
    trainer.train()
    assert trainer.state.global_step == 2
    assert audit.report.verdict == "NOT_EVALUATED"
    assert "TRL 9.9.0 is not supported (0.16 to 1.16 are)" in audit.report.not_evaluated["order"]


def test_two_callbacks_on_one_trainer(tmp_path: Path) -> None:
    first, second = (StepAuditCallback(log_dir=None, listeners=()) for _ in range(2))
    tiny_trainer(tmp_path, callbacks=[first, second], **SHORT).train()
    assert first.report.verdict == "PASS", problems(first.report)
    assert second.report.verdict == "NOT_EVALUATED"
    assert "another StepAuditCallback" in second.report.not_evaluated["order"]


def test_one_callback_on_two_trainers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit = StepAuditCallback(log_dir=None, listeners=())
    one = tiny_trainer(tmp_path / "1", callbacks=[audit], **SHORT)
    two = tiny_trainer(tmp_path / "2", callbacks=[audit], **SHORT)
    two.train()
    assert two.state.global_step == 2
    assert "one callback audits one trainer" in capsys.readouterr().err
    one.train()
    assert audit.report.verdict == "PASS", problems(audit.report)
    assert audit.report.counts.updates == 2


def test_a_second_training_call_is_a_run_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    audit = StepAuditCallback(log_dir=log, listeners=())
    trainer = tiny_trainer(tmp_path, callbacks=[audit], num_iterations=2, max_steps=4)
    trainer.train()
    first = audit.report
    trainer.train()
    assert audit.report.run != first.run
    assert first.verdict == audit.report.verdict == "PASS", problems(audit.report)
    assert len(list(log.glob("*.jsonl"))) == 2


def test_a_second_call_after_a_run_cut_in_mid_cycle_is_explained(build: Callable[..., Any]) -> None:
    trainer, audit = build(num_iterations=2, max_steps=3)
    trainer.train()
    assert audit.report.verdict == "PASS", problems(audit.report)
    trainer.train()
    if RELEASE.release < (0, 17):  # there the phase is global_step % num_iterations, which begins anew
        assert audit.report.verdict == "PASS", problems(audit.report)
    else:
        assert audit.report.verdict == "FAIL"
        assert audit.report.findings[0].deviation == "trl-second-training-call"
        assert audit.report.findings[0].where.microbatch == 0


def test_a_log_dir_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    audit = StepAuditCallback(log_dir=tmp_path / "file" / "log", listeners=())
    tiny_trainer(tmp_path / "out", callbacks=[audit], **SHORT).train()
    assert audit.report.verdict == "PASS"
    assert "nothing is recorded" in audit.report.not_evaluated["recording"]


def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    """The kernel refuses further writes (a file size limit stands for a full disk: write() fails the same way)."""
    log = tmp_path / "log"
    audit = StepAuditCallback(log_dir=log, listeners=())
    trainer = tiny_trainer(tmp_path / "out", callbacks=[audit], max_steps=6, logging_steps=100)
    before, old = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, before[1]))
    try:
        trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)
    assert trainer.state.global_step == 6
    assert audit.report.verdict == "PASS"
    assert audit.report.counts.updates == 6
    assert "recording stopped" in audit.report.not_evaluated["recording"]
    assert "before training did" in report_of(log).not_evaluated["record"]


def test_the_log_of_another_run_is_never_overwritten(tmp_path: Path) -> None:
    log = tmp_path / "log"
    runs = []
    for _ in range(2):
        audit = StepAuditCallback(log_dir=log, listeners=())
        tiny_trainer(tmp_path / "out", callbacks=[audit], **SHORT).train()
        runs.append({path.name: path.read_bytes() for path in log.glob("*.jsonl")})
    assert len(runs[1]) == 2
    assert runs[0].items() <= runs[1].items()


def test_a_subclass_that_overrides_hooked_methods(tmp_path: Path) -> None:
    import trl

    class Mine(trl.GRPOTrainer):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return 2 * super().compute_loss(*args, **kwargs)

    audit = StepAuditCallback(log_dir=None, listeners=())
    tiny_trainer(tmp_path, callbacks=[audit], trainer_class=Mine, **SHORT).train()
    assert audit.report.verdict == "PASS", problems(audit.report)
    assert "the loss of Mine" in audit.report.not_evaluated["RLS801"]


def test_dispatch_batches(build: Callable[..., Any]) -> None:
    """accelerate itself cannot dispatch rows that are no tensors: its error passes, and the report says what was unsure."""
    trainer, audit = build(accelerator_config={"dispatch_batches": True}, **SHORT)
    with pytest.raises(TypeError, match="Can only find the batch size of tensors"):
        trainer.train()
    assert not problems(audit.report)
    assert "dispatch_batches" in audit.report.not_evaluated["RLS502"]


def test_torch_compile(build: Callable[..., Any]) -> None:
    trainer, audit = build(torch_compile=True, torch_compile_backend="eager", **SHORT)
    trainer.train()
    assert trainer.state.global_step == 2
    assert not problems(audit.report)
    assert "torch.compile" in audit.report.not_evaluated["RLS402"]


def test_a_compiled_trainer_is_left_behind_with_transformers_before_5(build: Callable[..., Any]) -> None:
    """The environment alone carries it to later trainers: accelerate's shared state does not."""
    build(torch_compile=True, torch_compile_backend="eager", **SHORT)
    later, _ = build(**SHORT)
    assert not later.args.torch_compile
    assert is_compiled(later) == (Version(version("transformers")) < Version("5"))
    os.environ["ACCELERATE_DYNAMO_BACKEND"] = "no"
    last, _ = build(**SHORT)
    assert not is_compiled(last)


def test_a_model_that_another_trainers_settings_compile(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found in one process with a trainer that had torch_compile: transformers 4.51 leaves it in the environment."""
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "EAGER")
    trainer, audit = build(**SHORT)
    trainer.train()
    assert not trainer.args.torch_compile
    assert not problems(audit.report)
    assert "torch.compile" in audit.report.not_evaluated["RLS402"]


def test_a_loss_that_hides_its_log_probs(build: Callable[..., Any]) -> None:
    """Stands for liger's fused loss, whose kernels need a GPU: the loss is computed without the log-prob method."""
    trainer, audit = build(**SHORT)

    def fused(model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        import torch

        tokens = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        return model(input_ids=tokens).logits.logsumexp(-1).mean()

    trainer.compute_loss = fused
    trainer.train()
    assert trainer.state.global_step == 2
    assert audit.report.verdict == "PASS", problems(audit.report)
    assert "cannot be seen" in audit.report.not_evaluated["RLS301"]
    assert "cannot be seen" in audit.report.not_evaluated["RLS302"]


def test_an_unknown_on_fail_is_refused() -> None:
    with pytest.raises(ValueError, match='on_fail is "warn", "stop" or "raise"'):
        StepAuditCallback(on_fail="explode")  # type: ignore[arg-type]


def test_on_fail_raise_comes_out_of_train(tmp_path: Path) -> None:
    audit = StepAuditCallback(on_fail="raise", log_dir=None, listeners=())
    trainer = tiny_trainer(tmp_path, callbacks=[audit], gradient_accumulation_steps=2, num_iterations=2, max_steps=8)
    FAULTS["regenerate_every_step"](trainer)
    with pytest.raises(StepAuditError, match="RLS201 Rollout too early") as caught:
        trainer.train()
    assert caught.value.finding.code == "RLS201"
    assert trainer.state.global_step <= FIRST_REUSE
    assert audit.report.verdict == "FAIL"
    assert "training_step" not in vars(trainer)


def test_on_fail_stop_ends_cleanly(tmp_path: Path) -> None:
    audit = StepAuditCallback(on_fail="stop", log_dir=None, listeners=())
    trainer = tiny_trainer(tmp_path, callbacks=[audit], gradient_accumulation_steps=2, num_iterations=2, max_steps=8)
    FAULTS["regenerate_every_step"](trainer)
    trainer.train()
    assert trainer.state.global_step == FIRST_REUSE
    assert audit.report.verdict == "FAIL"
    assert audit.report.complete


def test_a_stop_by_the_user_is_no_finding(build: Callable[..., Any]) -> None:
    from transformers import TrainerCallback

    class Stop(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step == 3

    trainer, audit = build(num_iterations=2, max_steps=8)
    trainer.add_callback(Stop())
    trainer.train()
    assert audit.report.verdict == "PASS", problems(audit.report)
    assert audit.report.counts.updates == 3


def test_defaults_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSTEP_DIR", str(tmp_path / "here"))
    monkeypatch.setenv("RLSTEP_ON_FAIL", "raise")
    audit = StepAuditCallback(listeners=())
    assert audit.on_fail == "raise"
    tiny_trainer(tmp_path / "out", callbacks=[audit], **SHORT).train()
    assert report_of(tmp_path / "here").verdict == "PASS"
    monkeypatch.delenv("RLSTEP_DIR")
    audit = StepAuditCallback(listeners=())
    tiny_trainer(tmp_path / "out", callbacks=[audit], **SHORT).train()
    assert audit.folder == tmp_path / "out" / "rlstep"


def test_a_callback_added_later_audits_too(tmp_path: Path) -> None:
    audit = StepAuditCallback(log_dir=None, listeners=())
    trainer = tiny_trainer(tmp_path, **SHORT)
    trainer.add_callback(audit)
    trainer.train()
    assert audit.report.verdict == "PASS", problems(audit.report)
    assert "training_step" not in vars(trainer)


def test_a_callback_added_later_sees_an_exception_too(tmp_path: Path) -> None:
    def reward(completions: Any, **kwargs: Any) -> list[float]:
        raise KeyError("mine")

    audit = StepAuditCallback(log_dir=None, listeners=())
    trainer = tiny_trainer(tmp_path, reward=reward, **SHORT)
    trainer.add_callback(audit)
    with pytest.raises(KeyError, match="mine"):
        trainer.train()
    assert not audit.report.complete
    assert not problems(audit.report)
    assert "training_step" not in vars(trainer)
    assert not trainer.optimizer.optimizer._optimizer_step_post_hooks


def test_fewer_rows_than_one_rollout(build: Callable[..., Any]) -> None:
    trainer, audit = build(gradient_accumulation_steps=4, dataset=tiny_rows(3), max_steps=2)
    trainer.train()
    assert trainer.state.global_step == 0
    assert audit.report.verdict == "FAIL"
    assert "RLS209" in {finding.code for finding in audit.report.findings}


def test_a_streaming_set_has_no_totals(build: Callable[..., Any]) -> None:
    if RELEASE.release < (1, 9):  # the first release whose GRPOTrainer takes an iterable data set
        with pytest.raises((NotImplementedError, TypeError, ValueError)):
            build(dataset=tiny_rows(36).to_iterable_dataset(), max_steps=2)[0].train()
        return
    trainer, audit = build(dataset=tiny_rows(36).to_iterable_dataset(), max_steps=4, num_iterations=2)
    trainer.train()
    assert audit.report.verdict == "PASS", problems(audit.report)
    assert audit.report.schedule is not None
    assert audit.report.schedule.rows is None
    assert "stream" in audit.report.not_evaluated["data_epochs"]
