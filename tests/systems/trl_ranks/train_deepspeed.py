"""Run by torchrun from test_deepspeed: TRL's GRPO under a real DeepSpeed engine on the CPU; each rank leaves its verdict in a file."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.testing.tiny_trl import tiny_trainer
from tests.faults.mistakes.order import old_log_probs_follow_the_policy


class SwallowThirdUpdate(TrainerCallback):  # type: ignore[misc]
    """Makes DeepSpeed's engine do nothing where the third update is due."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        engine = self.trainer.model_wrapped
        vars(engine).pop("_take_model_step", None)
        if state.global_step == 2:
            engine._take_model_step = lambda *a, **k: None


def settings_of_deepspeed(stage: int, *, offload: bool, bf16: bool) -> dict[str, Any]:
    """A configuration of DeepSpeed as transformers' documentation writes it."""
    zero: dict[str, Any] = {"stage": stage}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    return {
        "zero_optimization": zero,
        "bf16": {"enabled": bf16},
        "gradient_accumulation_steps": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def main(folder: Path, case: str) -> None:
    """Train on this rank.

    Args:
        folder: Where records and verdicts go.
        case: Words joined by "-": `zero2`, `offload`, `bf16`, and a fault.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    words = case.split("-")
    audit = StepAuditCallback(log_dir=folder / "log", listeners=())
    stage = next(int(word[4:]) for word in words if word.startswith("zero"))
    trainer = tiny_trainer(
        folder / "out",
        callbacks=[audit],
        rows=12,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_iterations=2,
        num_train_epochs=1,
        bf16="bf16" in words,
        deepspeed=settings_of_deepspeed(stage, offload="offload" in words, bf16="bf16" in words),
    )
    if "swallowed" in words:
        trainer.add_callback(SwallowThirdUpdate(trainer))
    if "refreshed" in words:
        old_log_probs_follow_the_policy(trainer)
    trainer.train()
    report = audit.report
    result = {
        "verdict": report.verdict,
        "updates": report.counts.updates,
        "planned": int(report.schedule.updates),
        "global_step": trainer.state.global_step,
        "findings": [[f.code, f.severity, f.where.update, f.observed] for f in report.findings],
        "deviations": [f.deviation for f in report.findings if f.deviation],
        "rules": {rule.code: [rule.verdict, rule.reason] for rule in report.rules},
        "not_evaluated": report.not_evaluated,
    }
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(result))
    torch.distributed.destroy_process_group()


main(Path(sys.argv[1]), sys.argv[2])
