"""The corpus of faults in real runs of OpenRLHF whose trainers are two processes for each role: what finds each fault there.

    TORCH_EXTENSIONS_DIR=FOLDER python -m tests.systems.openrlhf.corpus_on_ranks [--stage 2] [LAUNCH ...]

Each launch of `fault_launches` is made with two ranks, and with as many micro-batches on each as one process has. Of each fault a line
says whether its rule names it at its rollout; a last line has what is found where no fault is.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.systems.openrlhf.audited import alarms
from tests.systems.openrlhf.fault_launches import LAUNCHES, found_at, train
from tests.systems.openrlhf.faults import FAULTS
from tests.systems.openrlhf.launch import Assets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.systems.audited import Audited
    from tests.systems.openrlhf.fault_launches import Launch

RANKS = 2
NOT_IN_ZERO_3 = frozenset({"sync_of_old_weights", "norm_above_its_limit"})
"""Faults that ZeRO-3 breaks off, because between forwards it holds no whole weights that could be copied, or that change a method of
the optimizer of ZeRO-1 and 2."""
PATIENCE = 1200.0
"""Seconds after which a launch is ended."""


def on_ranks(made: Launch, stage: int) -> Launch:
    """A launch of one process for each role, of two."""
    more = {
        "actor.num_gpus_per_node": RANKS,
        "ds.zero_stage": stage,
        "train.micro_batch_size": 2,
        "rollout.micro_batch_size": 2,
    }
    if "critic.num_gpus_per_node" in made.settings:
        more |= {"critic.num_gpus_per_node": RANKS}
    left_out = NOT_IN_ZERO_3 if stage == 3 else frozenset()
    faults = {name: at for name, at in made.faults.items() if name not in left_out}
    return replace(made, faults=faults, settings={**made.settings, **more}, limit=PATIENCE)


def told(made: Launch, run: Audited) -> Iterator[str]:
    """What is said of each fault of a run."""
    found = alarms(run.report)
    for name, at in made.faults.items():
        fault = FAULTS[name]
        if found_at(run, made, name):
            yield f"  found      {name}: {fault.code}"
            continue
        rollouts = {*fault.shows_in(at)}
        there = sorted({each.code for each in found if rollouts & {each.where.rollout, *each.rollouts}})
        verdict = "elsewhere" if there else "missed"
        rule = next((rule for rule in run.report.rules if rule.code == fault.code), None)
        why = "" if rule is None else f" ({rule.verdict} {rule.reason})"
        yield f"  {verdict:10} {name}: {fault.code}{why} at rollout {at}; there {', '.join(there) or 'nothing'}"
    faulty = {rollout for name, at in made.faults.items() for rollout in (at, *FAULTS[name].shows_in(at))}
    beside = [
        f"{each.code} at {each.where.rollout}"
        for each in found
        if each.where.rollout is not None and each.where.rollout not in faulty and each.code not in made.true_beside
    ]
    yield f"  beside the faults: {', '.join(beside) or 'nothing'}"


def main() -> None:
    """Train launches, and print what is found."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("launches", nargs="*", metavar="LAUNCH", default=tuple(LAUNCHES))
    arguments.add_argument("--stage", type=int, default=2, help="of ZeRO")
    options = arguments.parse_args()
    extensions = Path(os.environ["TORCH_EXTENSIONS_DIR"])
    for name in options.launches:
        made = on_ranks(LAUNCHES[name], options.stage)
        with tempfile.TemporaryDirectory() as folder:
            run = train(made, Path(folder), Assets.write(Path(folder), rows=8 * 64), extensions)
        print(f"{name}: status {run.outcome.status}, {run.report.counts.rollouts} rollouts", flush=True)
        for line in told(made, run):
            print(line, flush=True)


if __name__ == "__main__":
    main()
