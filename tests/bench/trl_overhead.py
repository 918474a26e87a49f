"""What the audit costs a TRL run: paired training runs with and without it, events per second, bytes per event.

Each pair trains the same run twice, in an order that alternates, and gives one ratio of the median time of a cycle (one
rollout, four micro-batches, two updates). Quoted is the median over the pairs.

    python tests/bench/trl_overhead.py [--pairs N] [--updates N]
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
from itertools import pairwise
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


class Clock(TrainerCallback):  # type: ignore[misc]
    """Takes the time at the end of each cycle of one rollout and its two updates."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An update ended."""
        if state.global_step % 2 == 0:
            self.ends.append(time.perf_counter())

    def cycle(self) -> float:
        """The median seconds of a cycle: one that another process disturbed does not count."""
        return statistics.median(after - before for before, after in pairwise(self.ends))


def train(folder: Path, size: dict[str, int], updates: int, *, audited: bool) -> float:
    """Train once; the median seconds of a cycle of four micro-batches and two updates."""
    clock = Clock()
    callbacks: list[Any] = [StepAuditCallback(log_dir=folder / "log")] if audited else []
    trainer = tiny_trainer(
        folder / "out",
        callbacks=[*callbacks, clock],
        model=tiny_model(tiny_tokenizer(), **size),
        gradient_accumulation_steps=2,
        num_iterations=2,
        max_steps=updates,
        logging_steps=10_000,
        max_completion_length=8,
    )
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        trainer.train()
    return clock.cycle()


def paired(name: str, size: dict[str, int], pairs: int, updates: int) -> None:
    """Print the ratios of one size of model."""
    ratios, bare = [], []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        train(folder, size, 6, audited=True)
        for pair in range(pairs):
            order = (False, True) if pair % 2 else (True, False)
            times = {audited: train(folder, size, updates, audited=audited) for audited in order}
            ratios.append(times[True] / times[False])
            bare.append(times[False])
    parameters = sum(p.numel() for p in tiny_model(tiny_tokenizer(), **size).parameters())
    print(
        f"{name}: {parameters:,} parameters, {pairs} pairs of {updates} updates, "
        f"{1000 * statistics.median(bare) / 2:.1f} ms an update without the audit\n"
        f"  with / without: median {statistics.median(ratios):.4f} (quartiles {_quartiles(ratios)})"
    )


def _quartiles(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.4f} to {high:.4f}"


def events() -> None:
    """Print what one event costs to encode and to judge, and its size on disk."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        train(folder, TINY, 200, audited=True)
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
    arguments.add_argument("--pairs", type=int, default=20)
    arguments.add_argument("--updates", type=int, default=80)
    options = arguments.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print(f"trl {version('trl')}, torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}")
    paired("tiny", TINY, options.pairs, options.updates)
    paired("larger", LARGE, max(options.pairs // 3, 3), max(options.updates // 10, 4))
    events()


if __name__ == "__main__":
    main()
