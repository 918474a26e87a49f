"""Run by torchrun: `train_swift.py FOLDER DEPLOYMENT`. Trains cases with ms-swift, as `train_many` does with TRL."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks import StepAuditCallback
from tests.systems.swift import tiny
from tests.systems.swift_ranks.faults import OF_RANKS
from tests.systems.trl_ranks.train_many import main, outcome_of

if TYPE_CHECKING:
    from tests.systems.trl_ranks.cases import Case, Deployment, Outcome


def train(folder: Path, deployment: Deployment, case: Case, engines: list[Any]) -> Outcome:
    """Train a case on this rank."""
    audit = StepAuditCallback(log_dir=folder / "log", listeners=())
    if int(os.environ["RANK"]) == 0:
        tiny.files(folder, rows=24)
    torch.distributed.barrier()
    settings: dict[str, Any] = {"use_cpu": "true", "ddp_backend": "gloo", **case.settings}
    if deployment != "ddp":
        settings["deepspeed"] = deployment
    mistake = OF_RANKS[deployment].get(case.fault)
    trainer = tiny.train(folder, [audit], **({"apply": mistake.apply} if mistake else {}), **settings)
    return outcome_of(audit.report, trainer)


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo") if sys.argv[2] == "ddp" else None
    main(Path(sys.argv[1]), sys.argv[2], train)  # type: ignore[arg-type]  # the launch gives one of them
