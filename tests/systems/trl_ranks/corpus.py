"""`python -m tests.systems.trl_ranks.corpus DEPLOYMENT [FAULT ...]`: the corpus of faults on two ranks, as a table.

For each fault: what must find it in one process, and what finds it on two ranks, at its place, or the reason why not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from tests.faults.fault import WHOLE_RUN, Fault
from tests.faults.trl_faults import EXPRESSIBLE
from tests.systems.trl_ranks.cases import WRITTEN, Case, Deployment, Outcome
from tests.systems.trl_ranks.differences import EVERYWHERE, differences_of
from tests.systems.trl_ranks.launching import outcomes
from tests.systems.trl_ranks.rank_faults import OF_RANKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.planning.finding import Where
    from tests.systems.trl_ranks.differences import Difference, Kind

RANKS = 2
CLEAN = "clean"
COUNTED = ("rows", "evaluation_rows")
"""Settings that grow with the ranks, so that there are as many rollouts and updates as in one process."""


SHARDING: dict[Deployment, dict[str, Any]] = {"zero3": {"zero": {"stage3_param_persistence_threshold": 64}}}
"""Settings of a deployment's own: by default ZeRO-3 would leave all parameters of the tiny model gathered, and of a real one few."""


def settings_of(fault: Fault) -> dict[str, object]:
    """The settings of a fault for several ranks, but for those that its ranks have from the fault itself."""
    written = {name: value for name, value in fault.settings.items() if isinstance(value, WRITTEN)}
    return {name: value * RANKS if name in COUNTED else value for name, value in written.items()}


def cases_of(faults: Sequence[Fault], deployment: Deployment) -> list[tuple[Case, Case]]:
    """The cases of these faults, each with the healthy run of what it needs."""
    cases: list[tuple[Case, Case]] = []
    sharding = SHARDING.get(deployment, {})
    healthy: list[tuple[object, Case]] = []
    for fault in faults:
        settings = settings_of(fault)
        own = {name: value for name, value in fault.settings.items() if name not in settings}
        needs = (settings, own, fault.prepare)
        known = next((case for of, case in healthy if of == needs), None)
        if known is None:
            known = Case(
                name=f"{CLEAN}-{fault.name}", fault=fault.name, healthy=True, settings=settings, sharding=sharding
            )
            healthy.append((needs, known))
        case = Case(name=fault.name, fault=fault.name, settings=settings, sharding=sharding)
        cases.append((case, known))
    return cases


def is_at(place: Where, expected: Where) -> bool:
    """Whether a finding has each number of the expected place."""
    numbers = {name: value for name, value in msgspec.structs.asdict(expected).items() if value is not None}
    if expected == WHOLE_RUN:
        return msgspec.structs.replace(place, rank=None) == expected
    return all(getattr(place, name) == value for name, value in numbers.items())


def outcome_in_words(fault: Fault, outcome: Outcome, *, without_effect: bool) -> tuple[Kind, str]:
    """A class of outcomes, and what came of a fault in words.

    Args:
        fault: The fault.
        outcome: What the first rank says of it.
        without_effect: Whether all ranks have ended with the weights of the healthy run.
    """
    if outcome.error:
        return "refused", outcome.error.splitlines()[0]
    codes = list(dict.fromkeys(f"{f.code}{'' if f.severity == 'error' else 'w'}" for f in outcome.found))
    named = [f for f in outcome.found if f.code == fault.code]
    if named and is_at(named[0].place, fault.where):
        return "same", f"{fault.code} at its place"
    if named:
        return "elsewhere", f"{fault.code} at {named[0].place}"
    if codes:
        return "other", " ".join(codes)
    if without_effect:
        return "harmless", f"{outcome.verdict}; both ranks end with the weights of the healthy run"
    verdict, reason = outcome.rules.get(fault.code, ("", "no such rule"))
    return "missed", f"{outcome.verdict}; {fault.code}: {verdict} {reason}"


def is_explained(kind: Kind, words: str, known: Difference | None) -> bool:
    """Whether this outcome of a fault is the one that the table of differences has; `same` needs no explanation."""
    if kind == "same" or known is None:
        return kind == "same" and known is None
    return known.kind == kind and known.found.partition(" ")[0] in words


def digests(of_ranks: Sequence[Outcome]) -> list[str]:
    """What the ranks trained."""
    return [outcome.trained for outcome in of_ranks]


def main() -> int:
    """Print the table; exit status 0 if healthy runs are silent and faults are found as in one process or as `differences` says."""
    parser = argparse.ArgumentParser(prog="corpus")
    parser.add_argument("deployment", choices=get_args(Deployment))
    parser.add_argument("faults", nargs="*")
    parser.add_argument("--folder", type=Path, help="goes on where a run of this folder was broken off")
    arguments = parser.parse_args()
    every = {fault.name: fault for fault in EXPRESSIBLE} | OF_RANKS
    faults = [every[name] for name in arguments.faults] if arguments.faults else list(every.values())
    deployment: Deployment = arguments.deployment
    pairs = cases_of(faults, deployment)
    healthy = {case.name: clean.name for case, clean in pairs}
    found: dict[str, list[Outcome]] = {}
    explained = differences_of(deployment) if deployment in EVERYWHERE else {}
    tally: Counter[str] = Counter()
    unexplained: list[str] = []
    loud = 0

    def say(name: str, of_ranks: list[Outcome]) -> None:
        nonlocal loud
        found[name] = of_ranks
        first = of_ranks[0]
        if name.startswith(CLEAN):
            texts = [first.error] if first.error else [f"{f.code} {f.place} {f.text}" for f in first.found]
            loud += bool(texts)
            print(f"{name:50} {first.verdict} {' | '.join(texts)} ({first.seconds:.1f} s)", flush=True)
            return
        fault = every[name]
        clean = found.get(healthy[name], [])
        kind, words = outcome_in_words(fault, first, without_effect=digests(clean) == digests(of_ranks))
        tally[kind] += 1
        if not is_explained(kind, words, explained.get(name)):
            unexplained.append(name)
        print(f"{name:50} {fault.code:7} {kind:9} {words} ({first.seconds:.1f} s)", flush=True)

    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="ranks-"))
    print(folder, flush=True)
    cases = list({case.name: case for fault, clean in pairs for case in (clean, fault)}.values())
    outcomes(folder / deployment, deployment, cases, ranks=RANKS, say=say)
    print(dict(tally), "healthy runs accused:", loud)
    print("not as the table of differences says:", ", ".join(unexplained) or "none")
    return int(bool(loud or unexplained))


if __name__ == "__main__":
    sys.exit(main())
