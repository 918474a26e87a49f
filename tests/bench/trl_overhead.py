"""What the audit costs a TRL run: training with and without it, paired, events per second, bytes per event.

The audit is switched on and off in turn within one run; each run gives one ratio of median cycle times, and quoted is the
median over the runs.

    python tests/bench/trl_overhead.py [--runs N] [--updates N]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import platform
import statistics
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.events import encode
from rlstep_hooks.judge import Judge
from rlstep_hooks.ledger import records
from rlstep_hooks.testing.tiny_trl import tiny_model, tiny_tokenizer, tiny_trainer

TINY = {"hidden_size": 64, "layers": 4}
LARGE = {"hidden_size": 1024, "layers": 6}


class Alternate(TrainerCallback):  # type: ignore[misc]
    """Switches the audit on and off every few cycles of one run, and takes the time of each cycle.

    A cycle is one rollout, four micro-batches and two updates. On and off are compared within one run because two runs of the
    same program differ by several percent on a shared machine, far more than what is measured here.
    """

    BLOCK = 5

    def __init__(self, audit: StepAuditCallback) -> None:
        self.audit = audit
        self.cycles: dict[bool, list[float]] = {True: [], False: []}
        self._began: float | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An update ended."""
        if state.global_step % 2:
            return
        observer = self.audit._observer
        now = time.perf_counter()
        if observer is None:
            return
        if self._began is not None:
            self.cycles[observer.active].append(now - self._began)
        cycle = state.global_step // 2
        switches = cycle % self.BLOCK == 0
        if switches:
            observer.active = not observer.active
        self._began = None if switches else time.perf_counter()


def train(folder: Path, size: dict[str, int], updates: int) -> tuple[float, float]:
    """Train once; the median seconds of a cycle with the audit and without it."""
    audit = StepAuditCallback(log_dir=folder / "log")
    alternate = Alternate(audit)
    trainer = tiny_trainer(
        folder / "out",
        callbacks=[audit, alternate],
        model=tiny_model(tiny_tokenizer(), **size),
        gradient_accumulation_steps=2,
        num_iterations=2,
        max_steps=updates,
        logging_steps=10_000,
        max_completion_length=8,
    )
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        trainer.train()
    return statistics.median(alternate.cycles[True]), statistics.median(alternate.cycles[False])


def paired(name: str, size: dict[str, int], runs: int, updates: int) -> None:
    """Print the ratios of one size of model."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        train(folder, size, 42)
        times = [train(folder, size, updates) for _ in range(runs)]
    ratios = [audited / bare for audited, bare in times]
    added = statistics.median(audited - bare for audited, bare in times)
    parameters = sum(p.numel() for p in tiny_model(tiny_tokenizer(), **size).parameters())
    print(
        f"{name}: {parameters:,} parameters, {runs} runs of {updates} updates, "
        f"{1000 * statistics.median(bare for _, bare in times) / 2:.1f} ms an update without the audit\n"
        f"  with / without: median {statistics.median(ratios):.4f} (quartiles {_quartiles(ratios)}), "
        f"{1e6 * added / 2:.0f} us more for an update with two micro-batches and half a rollout"
    )


def _quartiles(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.4f} to {high:.4f}"


def events() -> None:
    """Print what one event costs to encode and to judge, and its size on disk."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        audit = StepAuditCallback(log_dir=folder / "log", listeners=())
        tiny_trainer(
            folder / "out", callbacks=[audit], gradient_accumulation_steps=2, num_iterations=2, max_steps=200
        ).train()
        (found,) = records(folder / "log").values()
        recorded = list(found[0].events())
        size = found[0].path.stat().st_size
    began = time.process_time()
    rounds = 50
    for _ in range(rounds):
        for event in recorded:
            encode(event)
    encoding = (time.process_time() - began) / rounds / len(recorded)
    began = time.process_time()
    for _ in range(rounds):
        judge = Judge()
        for event in recorded:
            judge.observe(event)
    judging = (time.process_time() - began) / rounds / len(recorded)
    print(
        f"events: {len(recorded)} recorded, {size / len(recorded):.0f} bytes each on disk, "
        f"{1e6 * encoding:.2f} us to encode, {1e6 * judging:.2f} us to judge ({1 / judging:,.0f} a second)"
    )


def main() -> None:
    """Print all figures."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=8)
    arguments.add_argument("--updates", type=int, default=240)
    options = arguments.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print(f"trl {version('trl')}, torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}")
    paired("tiny", TINY, options.runs, options.updates)
    paired("larger", LARGE, max(options.runs // 4, 2), max(options.updates // 4, 40))
    events()


if __name__ == "__main__":
    main()
