"""Audit a GRPO run: one line in the trainer's constructor.

    python examples/trl_grpo.py

Trains a tiny model on the CPU for a few seconds. In a run of your own only the lines marked with an arrow are new.
"""

from __future__ import annotations

import tempfile

from rlstep_hooks import StepAuditCallback  # <-
from rlstep_hooks.testing.tiny_trl import tiny_trainer


def main() -> int:
    """Train, and exit with status 1 if the run was not what its configuration says."""
    audit = StepAuditCallback(on_fail="warn")  # <-
    with tempfile.TemporaryDirectory() as folder:
        # Stands for trl.GRPOTrainer(model=..., reward_funcs=..., args=GRPOConfig(...), train_dataset=..., callbacks=[audit])
        trainer = tiny_trainer(
            folder, callbacks=[audit], gradient_accumulation_steps=2, steps_per_generation=4, max_steps=8
        )
        trainer.train()
        for finding in audit.report.findings:  # <- what you would otherwise read on stderr
            print(finding.code, finding.severity, finding.title, "at", finding.where)
    return 1 if audit.report.verdict == "FAIL" else 0


if __name__ == "__main__":
    raise SystemExit(main())
