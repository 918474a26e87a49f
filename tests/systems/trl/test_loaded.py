"""A policy that the trainer loads itself, against its files (RLS423)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("trl")

import torch
from transformers import PreTrainedModel

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.testing.tiny_trl import tiny_model, tiny_tokenizer, tiny_trainer
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import problems

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

DTYPE = "dtype" if RELEASE.major else "torch_dtype"


def saved(folder: Path, dtype: torch.dtype = torch.float32) -> str:
    """Where a tiny model is saved."""
    tiny_model(tiny_tokenizer()).to(dtype).save_pretrained(folder / "model")
    return str(folder / "model")


def report_of(folder: Path, model: Any, **more: Any) -> Report:
    """What is said of a run of two updates."""
    audit = StepAuditCallback(log_dir=None, listeners=())
    tiny_trainer(folder, callbacks=[audit], model=model, max_steps=2, **more).train()
    return audit.report


def outcome(report: Report) -> tuple[str, int]:
    """The verdict of the rule, and what it compared."""
    [found] = [rule for rule in report.rules if rule.code == "RLS423"]
    return found.verdict, found.checks


@pytest.mark.parametrize("algorithm", ["GRPO", "RLOO"])
def test_a_model_that_is_loaded_as_it_is_saved(algorithm: str, tmp_path: Path) -> None:
    if algorithm == "RLOO" and RELEASE.release < (0, 22):
        pytest.skip("RLOOTrainer is another trainer before 0.22")
    report = report_of(tmp_path, saved(tmp_path), algorithm=algorithm)
    assert problems(report) == []
    assert outcome(report) == ("PASS", 1)


@pytest.mark.parametrize(
    ("of_file", "asked"), [("float32", "bfloat16"), ("bfloat16", "float32"), ("bfloat16", "bfloat16")]
)
def test_other_dtypes_of_the_file_and_of_the_model(of_file: str, asked: str, tmp_path: Path) -> None:
    model = saved(tmp_path, getattr(torch, of_file))
    report = report_of(tmp_path, model, model_init_kwargs={DTYPE: asked})
    assert outcome(report) == ("PASS", 1)


def test_a_model_that_a_script_hands_over_is_not_compared(tmp_path: Path) -> None:
    assert outcome(report_of(tmp_path, tiny_model(tiny_tokenizer()), beta=0.0))[0] == "NOT_EVALUATED"


def test_weights_that_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, load = saved(tmp_path), PreTrainedModel.from_pretrained.__func__  # type: ignore[attr-defined]

    def forgetful(cls: Any, *args: Any, **kwargs: Any) -> Any:
        found = load(cls, *args, **kwargs)
        for name, of in found.named_parameters():
            if "self_attn" in name:
                torch.nn.init.normal_(of.data, std=0.02)
        return found

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(forgetful))
    report = report_of(tmp_path, model)
    [found] = [of for of in report.findings if of.code == "RLS423"]
    assert found.severity == "error"


@pytest.mark.parametrize("begins", [True, "pissa", "olora"])
def test_adapters_on_a_model_that_is_loaded(begins: bool | str, tmp_path: Path) -> None:
    """Some take a part of the weights that they stand beside out of these."""
    peft = pytest.importorskip("peft")
    trl = pytest.importorskip("trl")
    targets = ["q_proj", "v_proj"]
    config = peft.LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM", init_lora_weights=begins)

    class WithAdapters(trl.GRPOTrainer):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, peft_config=config, **kwargs)

    report = report_of(tmp_path, saved(tmp_path), trainer_class=WithAdapters)
    assert outcome(report) == ("PASS", 1)


def test_files_that_cannot_be_read_stop_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlstep_hooks.observe import loaded_weights

    def unreadable(*given: Any) -> Any:
        raise OSError("no such file")

    monkeypatch.setattr(loaded_weights, "saved_heads", unreadable)
    report = report_of(tmp_path, saved(tmp_path))
    assert (problems(report), outcome(report)[0]) == ([], "NOT_EVALUATED")
