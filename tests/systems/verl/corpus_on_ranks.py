"""The corpus of faults in real runs of verl whose trainers are two processes: what finds each fault there.

    python -m tests.systems.verl.corpus_on_ranks [LAUNCH ...]

Each launch of `fault_launches` that one process trains is made with two, and with as many micro-batches on each as one process has. Of
each fault one line says whether its rule names it at its rollout; a last line has what is found where no fault is.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.systems.verl.audited import alarms
from tests.systems.verl.fault_launches import LAUNCHES, named, train
from tests.systems.verl.faults import FAULTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.systems.audited import Audited
    from tests.systems.verl.fault_launches import Launch

RANKS = 2
MICRO_BATCHES: dict[str, Any] = {
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 2,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 2,
}
REFUSED = frozenset({"samples_of_an_update_left_out"})
"""Faults that verl refuses on several ranks: it raises where no number of samples is given (core_algos.py 0.9.1:1186)."""
OF_ONE_PROCESS = tuple(name for name, made in LAUNCHES.items() if made.ranks == 1)


def on_ranks(made: Launch) -> Launch:
    """A launch of one process, of two that share the model by FSDP2: torch's FSDP1 refuses verl's start on a CPU."""
    reference = "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"
    more = MICRO_BATCHES | ({reference: 2} if reference in made.settings else {})
    more |= {"critic.ppo_micro_batch_size_per_gpu": 2} if made.critic else {}
    faults = {name: at for name, at in made.faults.items() if name not in REFUSED}
    return replace(made, ranks=RANKS, faults=faults, settings={**made.settings, **more})


def told(made: Launch, run: Audited) -> Iterator[str]:
    """What is said of each fault of a run."""
    found = alarms(run.report)
    for name, at in made.faults.items():
        fault = FAULTS[name]
        place = None if fault.whole_run else at + fault.shows_after
        if place in named(run, fault):
            yield f"  found      {name}: {fault.code}"
            continue
        there = sorted({each.code for each in found if place in (each.rollouts or (each.where.rollout,))})
        verdict = "elsewhere" if there else "missed"
        rule = next((rule for rule in run.report.rules if rule.code == fault.code), None)
        why = "" if rule is None else f" ({rule.verdict} {rule.reason})"
        yield f"  {verdict:10} {name}: {fault.code}{why} at rollout {place}; there {', '.join(there) or 'nothing'}"
    faulty = {at + offset for name, at in made.faults.items() for offset in (0, FAULTS[name].shows_after)}
    beside = [
        f"{each.code} at {each.where.rollout}"
        for each in found
        if each.where.rollout is not None and each.where.rollout not in faulty and each.code not in made.lasting
    ]
    yield f"  beside the faults: {', '.join(beside) or 'nothing'}"


def main() -> None:
    """Train launches, and print what is found."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("launches", nargs="*", metavar="LAUNCH", default=OF_ONE_PROCESS)
    for name in arguments.parse_args().launches:
        made = on_ranks(LAUNCHES[name])
        with tempfile.TemporaryDirectory() as folder:
            run = train(made, Path(folder))
        print(f"{name}: status {run.outcome.status}, {run.report.counts.rollouts} rollouts", flush=True)
        for line in told(made, run):
            print(line, flush=True)


if __name__ == "__main__":
    main()
