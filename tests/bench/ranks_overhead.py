"""What the audit's hooks take of a TRL run of two ranks: processor time of the hooks by that of the whole process, for each deployment.

Each call of a hook is timed by its thread's processor time, without what it wraps; hooks that torch calls (of tensors, modules and
optimizers) are timed too. A cycle is one rollout and the two updates on it. The first 8 cycles compare everything; later cycles mix
what is compared, one of 41, with what is not. So these figures are printed: the first cycles but for the one with the imports and
those in which slopes of layers are measured; these, but for one with the imports; the later cycles in which gradients are joined or
losses recomputed, and the others. With more micro-batches an update trains more rows, and no more of them are scored again. Completions
have 8 tokens, or as many as are asked for.

    python -m tests.bench.ranks_overhead [--deployments ddp fsdp2 zero2 zero3] [--updates N] [--microbatches N] [--tokens N]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.record.cadence import ALL_OF_FIRST, SLOPES_AT
from rlstep_hooks.testing.tiny_trl import tiny_model, tiny_tokenizer, tiny_trainer
from tests.bench.hook_meter import Stopwatch, watched
from tests.bench.trl_overhead import LARGER
from tests.systems.torchrun import torchrun
from tests.systems.trl_ranks.train_many import (
    allow_sharding_on_the_cpu,
    gather_outside_of_the_graph,
    settings_of,
)

DEPLOYMENTS = ("ddp", "fsdp2", "zero2", "zero3")
RANKS = 2
PATIENCE = 1800
"""Seconds for one launch."""
BESIDE = ("fsdp2", "zero3")
"""Deployments in which slopes are measured in the cycle before the rollout that tells of them."""
COMPARED = 0.002
"""Share of a rank's processor time above which a later cycle counts as one in which something is compared: cycles of both kinds
differ by a factor of ten and more."""


class Cycles(TrainerCallback):  # type: ignore[misc]
    """Processor time of each cycle, and of hooks in it.

    Args:
        watches: Gets a watch with each call of a hook.
    """

    def __init__(self, watches: list[Stopwatch]) -> None:
        self.watches = watches
        self.cycles: list[tuple[float, float]] = []
        """Seconds of this process in all its threads, and of hooks."""
        self._began = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An update ended."""
        if state.global_step % LARGER.updates_per_cycle:
            return
        now = time.process_time()
        self.cycles.append((now - self._began, sum(watch.processor for watch in self.watches)))
        self.watches.clear()
        self._began = now


def train(folder: Path, deployment: Any, updates: int, microbatches: int, tokens: int) -> None:
    """Train on this rank, and leave its cycles in FOLDER/rank<N>.json."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    if deployment.startswith("fsdp"):
        allow_sharding_on_the_cpu()
    if deployment.startswith("zero"):
        gather_outside_of_the_graph()
    watches: list[Stopwatch] = []
    cycles = Cycles(watches)
    with watched(watches):
        trainer = tiny_trainer(
            folder / "out",
            callbacks=[StepAuditCallback(log_dir=folder / "log"), cycles],
            model=tiny_model(tiny_tokenizer(), **LARGER.model),
            max_steps=updates,
            logging_steps=10_000,
            **LARGER.settings | {"gradient_accumulation_steps": microbatches, "max_completion_length": tokens},
            **settings_of(deployment, {}),
        )
        trainer.train()
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(cycles.cycles))
    os._exit(0)  # torch aborts or hangs now and then when the interpreter of a rank exits, after all is done


def shares(deployment: str, cycles: list[tuple[float, float]]) -> dict[str, list[tuple[float, float]]]:
    """The cycles of a deployment by what is compared in them."""
    sloped = {place - 1 for place in SLOPES_AT} - {0} if deployment in BESIDE else set(SLOPES_AT)
    later = [of for place, of in enumerate(cycles) if place >= ALL_OF_FIRST and place not in sloped]
    return {
        f"the first {ALL_OF_FIRST}": [
            of for place, of in enumerate(cycles[:ALL_OF_FIRST]) if place and place not in sloped
        ],
        "with slopes": [cycles[place] for place in sorted(sloped) if place < len(cycles)],
        "later, compared": [of for of in later if of[1] > COMPARED * of[0]],
        "later, others": [of for of in later if of[1] <= COMPARED * of[0]],
        "all later": later,
    }


def measure(deployment: str, updates: int, microbatches: int, tokens: int) -> None:
    """Train in a deployment, and print what hooks take."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            torchrun(
                RANKS,
                "-m",
                __spec__.name,
                "--rank-of",
                deployment,
                "--folder",
                scratch,
                "--updates",
                str(updates),
                "--microbatches",
                str(microbatches),
                "--tokens",
                str(tokens),
            ),
            env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.DEVNULL,
            timeout=PATIENCE,
            check=True,
        )
        of_ranks = [json.loads(Path(scratch, f"rank{rank}.json").read_text()) for rank in range(RANKS)]
    every = [shares(deployment, cycles) for cycles in of_ranks]
    each = statistics.median(whole for cycles in of_ranks for whole, _ in cycles) / LARGER.updates_per_cycle
    print(f"{deployment}: {1000 * each:.0f} ms of processor time an update and rank")
    for kind in every[0]:
        found = [cycle for of in every for cycle in of[kind]]
        if found:
            hooks, whole = sum(of[1] for of in found), sum(of[0] for of in found)
            print(
                f"  {kind}: {len(found)} cycles, hooks take {100 * hooks / whole:.2f} %, "
                f"{1000 * hooks / len(found) / LARGER.updates_per_cycle:.1f} ms an update"
            )


def main() -> None:
    """Print all figures."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--deployments", nargs="+", choices=DEPLOYMENTS, default=DEPLOYMENTS)
    arguments.add_argument("--updates", type=int, default=120)
    arguments.add_argument("--microbatches", type=int, default=LARGER.settings["gradient_accumulation_steps"])
    arguments.add_argument("--tokens", type=int, default=8)
    arguments.add_argument("--rank-of", choices=DEPLOYMENTS, help=argparse.SUPPRESS)
    arguments.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.rank_of:
        train(options.folder, options.rank_of, options.updates, options.microbatches, options.tokens)
    for deployment in options.deployments:
        measure(deployment, options.updates, options.microbatches, options.tokens)


if __name__ == "__main__":
    main()
