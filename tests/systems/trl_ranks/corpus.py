"""`python -m tests.systems.trl_ranks.corpus DEPLOYMENT [FAULT ...]`: the corpus of faults on two ranks, as a table.

For each fault: what must find it in one process, and what finds it on two ranks, at its place, or the reason why not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import msgspec

from tests.faults.fault import WHOLE_RUN, Fault
from tests.faults.trl_faults import EXPRESSIBLE
from tests.systems.trl_ranks.cases import Case, Deployment, Outcome
from tests.systems.trl_ranks.launching import outcomes
from tests.systems.trl_ranks.rank_faults import OF_RANKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.planning.finding import Where

RANKS = 2
CLEAN = "clean"
COUNTED = ("rows", "evaluation_rows")
"""Settings that grow with the ranks, so that there are as many rollouts and updates as in one process."""


def settings_of(fault: Fault) -> dict[str, object]:
    """The settings of a fault for several ranks."""
    return {name: value * RANKS if name in COUNTED else value for name, value in fault.settings.items()}


def cases_of(faults: Sequence[Fault]) -> list[Case]:
    """These faults, each preceded by a healthy run of its settings, where there was none before."""
    cases: list[Case] = []
    known: list[object] = []
    for fault in faults:
        settings = settings_of(fault)
        if settings not in known:
            known.append(settings)
            cases.append(Case(name=f"{CLEAN}-{len(known)}", settings=settings))
        cases.append(Case(name=fault.name, fault=fault.name, settings=settings))
    return cases


def is_at(place: Where, expected: Where) -> bool:
    """Whether a finding has each number of the expected place."""
    numbers = {name: value for name, value in msgspec.structs.asdict(expected).items() if value is not None}
    if expected == WHOLE_RUN:
        return msgspec.structs.replace(place, rank=None) == expected
    return all(getattr(place, name) == value for name, value in numbers.items())


def outcome_in_words(fault: Fault, outcome: Outcome) -> tuple[str, str]:
    """A class of outcomes, and what came of a fault in words."""
    if outcome.error:
        return "error", outcome.error.splitlines()[0]
    codes = list(dict.fromkeys(f"{f.code}{'' if f.severity == 'error' else 'w'}" for f in outcome.found))
    named = [f for f in outcome.found if f.code == fault.code]
    if named and is_at(named[0].place, fault.where):
        return "same", f"{fault.code} at its place"
    if named:
        return "elsewhere", f"{fault.code} at {named[0].place}"
    if codes:
        return "other", " ".join(codes)
    verdict, reason = outcome.rules.get(fault.code, ("", "no such rule"))
    return "missed", f"{outcome.verdict}; {fault.code}: {verdict} {reason}"


def main() -> int:
    """Print the table; exit status 0 if healthy runs are silent and all that can be found is found."""
    parser = argparse.ArgumentParser(prog="corpus")
    parser.add_argument("deployment", choices=get_args(Deployment))
    parser.add_argument("faults", nargs="*")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    every = {fault.name: fault for fault in EXPRESSIBLE} | OF_RANKS
    faults = [every[name] for name in arguments.faults] if arguments.faults else list(every.values())
    deployment: Deployment = arguments.deployment
    tally: Counter[str] = Counter()
    loud = 0

    def say(name: str, of_ranks: list[Outcome]) -> None:
        nonlocal loud
        first = of_ranks[0]
        if name.startswith(CLEAN):
            texts = [first.error] if first.error else [f"{f.code} {f.place} {f.text}" for f in first.found]
            loud += bool(texts)
            print(f"{name:50} {first.verdict} {' | '.join(texts)} ({first.seconds:.1f} s)", flush=True)
            return
        fault = every[name]
        kind, words = outcome_in_words(fault, first)
        tally[kind] += 1
        print(f"{name:50} {fault.code:7} {kind:9} {words} ({first.seconds:.1f} s)", flush=True)

    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="ranks-"))
    print(folder)
    outcomes(folder / deployment, deployment, cases_of(faults), ranks=RANKS, say=say)
    print(dict(tally), "healthy runs accused:", loud)
    return int(bool(loud or tally["missed"] or tally["error"]))


if __name__ == "__main__":
    sys.exit(main())
