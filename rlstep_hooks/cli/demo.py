"""`rlstep demo`: audits a real run of a tiny model."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

from rlstep_hooks.cli.complain import complain
from rlstep_hooks.show.console import ConsoleListener, LiveListener
from rlstep_hooks.show.terminal import Terminal

UPDATES = 60


def show(fault: str | None, log_dir: Path | None) -> int:
    """Train a tiny model with the real GRPOTrainer under audit; the exit status: 1 if the audit fails."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # the run makes its own model, tokenizer and rows
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import torch
        import trl  # noqa: F401 - only to say early and clearly what is missing
    except ImportError as error:
        complain(f"the demo trains with TRL: {error}. Install rlstep-hooks[trl].")
        return 2
    from rlstep_hooks.testing.trl_faults import FAULTS

    if fault is not None and fault not in FAULTS:
        complain(f"there is no fault {fault}; the faults are {', '.join(FAULTS)}")
        return 2
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    console = Terminal()
    console.print(
        "A real run of trl.GRPOTrainer on this CPU: a tiny, randomly initialised Qwen2"
        + (f", broken on purpose: [bold]{fault}[/bold]" if fault else ""),
        highlight=False,
    )
    console.print()
    with tempfile.TemporaryDirectory() as scratch:
        report = _train(console, Path(scratch), FAULTS[fault] if fault else None, log_dir)
    if fault is None:
        console.print("`rlstep demo --fault regenerate_every_step` shows the same run broken", highlight=False)
    status: int = report.exit_status(strict=False)
    return status


def _train(console: Terminal, scratch: Path, fault: Any, log_dir: Path | None) -> Any:
    import logging

    from rlstep_hooks.systems.trl.observe.callback import StepAuditCallback
    from rlstep_hooks.testing.tiny_trl import tiny_trainer

    logging.getLogger("transformers").setLevel(logging.ERROR)
    views = (ConsoleListener(console), LiveListener(console))
    audit = StepAuditCallback(on_fail="warn", log_dir=log_dir, listeners=views)
    trainer = tiny_trainer(
        scratch,
        callbacks=[audit],
        rows=60,
        gradient_accumulation_steps=2,
        num_iterations=3,
        max_steps=UPDATES,
        logging_steps=1000,
    )
    if fault is not None:
        fault(trainer)
    _silence(trainer)
    trainer.train()
    return audit.report


def _silence(trainer: Any) -> None:
    """Remove the callback that prints transformers' metrics, so that the screen shows only the audit."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
