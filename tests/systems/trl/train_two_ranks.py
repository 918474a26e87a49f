"""Run by torchrun from test_processes: each rank trains, audits, and leaves its verdict in a file."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import trl
from packaging.version import Version
from transformers import TrainerCallback, set_seed

from rlstep_hooks import StepAuditCallback, StepAuditError
from rlstep_hooks.testing.tiny_trl import tiny_trainer


class SkipOneUpdate(TrainerCallback):  # type: ignore[misc]
    """Makes the optimizer of this rank do nothing at its third update."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if state.global_step == 2:
            optimizer.optimizer.step = lambda *a, **k: None

    def on_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        vars(optimizer.optimizer).pop("step", None)


def count_own_tokens(trainer: Any) -> None:
    """From the second rollout on, have the losses of this rank divided by its own tokens alone (dapo)."""
    generate, rollouts = trainer._generate_and_score_completions, iter(range(1000))

    def counting(inputs: Any) -> Any:
        output = generate(inputs)
        if next(rollouts) and "num_items_in_batch" in output:
            output["num_items_in_batch"] = output["completion_mask"].sum() * 2
        return output

    trainer._generate_and_score_completions = counting


def main(folder: Path, case: str) -> None:
    """Train on this rank."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    audit = StepAuditCallback(log_dir=folder / "log", on_fail="stop" if case == "stop" else "warn", listeners=())
    callbacks: list[Any] = [] if case == "alone" and rank else [audit]
    trainer = tiny_trainer(
        folder / "out",
        callbacks=callbacks,
        rows=12,
        gradient_accumulation_steps=2,
        num_iterations=2,
        num_train_epochs=1,
        ddp_backend="gloo",
        report_to="tensorboard",
        **({"loss_type": "dapo"} if Version("0.24") <= Version(trl.__version__) else {}),
    )
    if case in ("skip", "stop") and rank == 1:
        trainer.add_callback(SkipOneUpdate())
    if case == "skip" and rank == 1:
        count_own_tokens(trainer)
    if case == "stop":
        # What many scripts do: it takes back the seed of its own that the trainer gave each rank.
        set_seed(42)
    error = ""
    try:
        trainer.train()
    except StepAuditError as raised:
        error = str(raised)
    result = {
        "verdict": audit.report.verdict,
        "processes": audit.report.processes,
        "updates": trainer.state.global_step,
        "findings": [[f.code, f.where.rank, f.where.rollout] for f in audit.report.findings if f.severity == "error"],
        "rules": {rule.code: rule.verdict for rule in audit.report.rules},
        "samples": audit.report.counts.samples,
        "error": error,
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(result))
    torch.distributed.destroy_process_group()


main(Path(sys.argv[1]), sys.argv[2])
