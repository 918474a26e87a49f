"""Mistakes made by a machine in the source that several ranks train with, each in force on all of them.

The lines are those that the healthy runs execute. A mistake is real where a rank ends with other weights than in the healthy run.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tests.mutants.__main__ import read
from tests.mutants.drawing import drawn
from tests.mutants.operators import Mutation, mutations
from tests.mutants.outcomes import Outcome as Tried
from tests.mutants.outcomes import Table, judgements
from tests.mutants.sources import LivingFunctions, executed, source_of
from tests.systems.trl_ranks.cases import Found

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from rlstep_hooks.judge.report import Report
    from tests.systems.trl_ranks.cases import Outcome

Trained = TypeVar("Trained")


class Mistaken(msgspec.Struct, frozen=True, kw_only=True):
    """A healthy configuration that is trained with a mistake, or with its lines written down, or as it is."""

    name: str
    run: str
    """The configuration."""
    mutation: dict[str, Any] = {}
    """A `Mutation`; empty for none."""
    traced: tuple[str, ...] = ()
    """Modules whose executed lines each rank writes into FOLDER/<name>/lines<N>.json."""


@dataclass(frozen=True)
class Trainings:
    """What two ranks train.

    Attributes:
        title: Names it in the table.
        modules: Their source is mutated.
        runs: Names of healthy configurations.
        train: Trains each in a folder, tells of each that is done, and gives the outcomes of all by name and rank.
    """

    title: str
    modules: tuple[str, ...]
    runs: tuple[str, ...]
    train: Callable[[Path, Sequence[Mistaken], Callable[[str, list[Outcome]], None]], dict[str, list[Outcome]]]


# On a rank
@contextlib.contextmanager
def mistaken(mutation: dict[str, Any]) -> Iterator[None]:
    """With a mutation in force in this process; with none where it is empty."""
    if not mutation:
        yield
        return
    of = Mutation(**mutation)
    with LivingFunctions([of.module]).in_force(of):
        yield


def with_lines(folder: Path, modules: Sequence[str], train: Callable[[], Trained]) -> Trained:
    """Train, and write which lines of these modules were executed on this rank; of no modules nothing."""
    if not modules:
        return train()
    found: list[Trained] = []
    lines = executed(modules, lambda: found.append(train()))
    (folder / f"lines{os.environ['RANK']}.json").write_bytes(msgspec.json.encode(lines))
    return found[0]


# In the session
def with_report(of_ranks: Sequence[Outcome], judge: Callable[[], Report]) -> list[Outcome]:
    """The outcomes of ranks that leave records alone, with what a judge says of these; as they are where one raised.

    Args:
        of_ranks: Without verdicts.
        judge: Judges the records of all ranks.
    """
    if any(rank.error for rank in of_ranks):
        return list(of_ranks)
    report = judge()
    alarms = [
        Found(f.code, f.severity, f.where, f"{f.observed}; {f.why}", f.deviation)
        for f in report.findings
        if f.severity != "info"
    ]
    return [msgspec.structs.replace(rank, verdict=report.verdict, found=alarms) for rank in of_ranks]


def arguments_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What a session is told, beside what the parser has already."""
    parser.add_argument("--number", type=int, default=60, help="mutants to train")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--results", type=Path, help="a file that gets an outcome a line")
    parser.add_argument("--again", type=Path, metavar="RESULTS", help="try the survivors of an earlier session again")
    return parser.parse_args()


def session(of: Trainings, arguments: argparse.Namespace) -> int:
    """Draw mutants, train them, and print the table. Exit status 0 if no survivor is without a judgement."""
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    print(folder, flush=True)
    healthy = _unmutated(of, folder)
    if arguments.again is not None:
        wanted = [(entry.mutation, entry.run) for entry in read(arguments.again) if entry.survived]
    else:
        made = [found for module in of.modules for found in mutations(module, source_of(module))]
        wanted = drawn(made, _executed_lines(of, folder), arguments.number, arguments.seed)
    by_name = {f"{index:04d}": pair for index, pair in enumerate(wanted)}
    table = Table([], judgements())

    def say(name: str, of_ranks: list[Outcome]) -> None:
        mutation, run = by_name[name]
        entry = _tried(mutation, run, of_ranks, healthy[run])
        table.outcomes.append(entry)
        print(
            f"{name} {entry.what:<10} {' '.join(entry.codes) or entry.verdict:<12} {run}: {entry.mutation}", flush=True
        )
        if arguments.results is not None:
            with arguments.results.open("a") as stream:
                stream.write(entry.to_json() + "\n")

    cases = [Mistaken(name=name, run=run, mutation=asdict(mutation)) for name, (mutation, run) in by_name.items()]
    of.train(folder, cases, say)
    print(f"\n{of.title}, seed {arguments.seed}\n{table.text()}")
    return int(any(table.kind(entry) == "not judged" for entry in table.outcomes if entry.survived))


def _unmutated(of: Trainings, folder: Path) -> dict[str, list[Outcome]]:
    """The outcomes of the healthy runs, each trained twice: once it writes the lines that it executes.

    Raises:
        RuntimeError: One is accused, or does not train the same again.
    """
    plain = [Mistaken(name=run, run=run) for run in of.runs]
    lines = [Mistaken(name=_with_lines(run), run=run, traced=of.modules) for run in of.runs]
    found = of.train(folder, plain + lines, lambda name, of_ranks: None)
    for run in of.runs:
        first, again = found[run], found[_with_lines(run)]
        if first[0].error or first[0].verdict != "PASS" or first[0].found:
            raise RuntimeError(f"the unmutated run {run} is accused or raised: {first[0]}")
        if [rank.trained for rank in first] != [rank.trained for rank in again]:
            raise RuntimeError(f"the run {run} does not train the same again: {again[0].error}")
    return {run: found[run] for run in of.runs}


def _with_lines(run: str) -> str:
    return f"{run} with lines"


def _executed_lines(of: Trainings, folder: Path) -> dict[str, dict[str, list[int]]]:
    """The lines that any rank executes, by run and module."""
    found: dict[str, dict[str, list[int]]] = {}
    for run in of.runs:
        lines: defaultdict[str, set[int]] = defaultdict(set)
        for written in sorted((folder / _with_lines(run)).glob("lines*.json")):
            for module, numbers in msgspec.json.decode(written.read_bytes(), type=dict[str, list[int]]).items():
                lines[module].update(numbers)
        found[run] = {module: sorted(numbers) for module, numbers in lines.items()}
    return found


def _tried(mutation: Mutation, run: str, of_ranks: Sequence[Outcome], healthy: Sequence[Outcome]) -> Tried:
    """What became of a mutant."""
    error = next((rank.error for rank in of_ranks if rank.error), "")
    if error:
        what = "hung" if "hung" in error else "none" if "NoMutantError" in error else "raised"
        return Tried(mutation, run, what, error.splitlines()[0])
    differ = [
        index
        for index, (rank, clean) in enumerate(zip(of_ranks, healthy, strict=True))
        if rank.trained != clean.trained
    ]
    found = {f"{f.code} {f.place}": f for rank in of_ranks for f in rank.found}
    return Tried(
        mutation,
        run,
        "changed" if differ else "equivalent",
        f"weights of ranks {differ}" if differ else "",
        of_ranks[0].verdict,
        tuple(
            {"code": f.code, "severity": f.severity, "title": "", "text": f"{f.place}: {f.text}"}
            for f in found.values()
        ),
    )
