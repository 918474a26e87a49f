"""`python -m tests.mutants grpo --number 400 --seed 1`: see the package."""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.mutants.children import run_each
from tests.mutants.drawing import drawn
from tests.mutants.operators import Mutation, mutations
from tests.mutants.outcomes import Outcome, Table, judgements, outcome
from tests.mutants.sources import LivingFunctions, NoMutantError, executed, source_of
from tests.mutants.training import difference

if TYPE_CHECKING:
    from tests.mutants.run import Run, Target

TARGETS = {
    "grpo": "trl_runs",
    "rloo": "trl_runs",
    "sb3": "sb3_runs",
    "verl-turns": "verl_runs",
    "verl-losses": "verl_losses",
    "verl": "verl_launches",
    "openrlhf": "openrlhf_launches",
}
"""What can be mutated, and the module that has its runs."""
LAUNCHED = ("verl", "openrlhf")
"""Targets whose trainings are whole launches."""


def unmutated(run: Run, folder: Path) -> dict[str, Any]:
    """An audited run, and the modules that it needs."""
    return run.audited(folder) | {"modules": sorted(sys.modules)}


def mutant(run: Run, folder: Path, living: LivingFunctions, mutation: Mutation) -> dict[str, Any]:
    """An audited run of a mutant."""
    try:
        living.put_in_force(mutation)
    except NoMutantError as error:
        return {"none": str(error)}
    return run.audited(folder)


class Session:
    """Mutants of one target, one after another."""

    def __init__(self, target: Target, folder: Path, *, limit_s: float, at_once: int) -> None:
        self.target, self.folder = target, folder
        self._run_each = functools.partial(run_each, folder=folder, limit_s=limit_s, at_once=at_once)
        self._runs = {run.name: run for run in target.runs}
        self._unmutated: dict[str, Any] = {}
        self.lines: dict[str, dict[str, list[int]]] = {}

    def begin(self) -> None:
        """Train without a mutation: with the audit, which must be silent, and without it, which must be the same training.

        Raises:
            RuntimeError: It was not.
        """
        for name in self.target.modules:
            importlib.import_module(name)
        for name, answer in self._run_each(
            (name, functools.partial(unmutated, run, self.folder)) for name, run in self._runs.items()
        ):
            if answer.get("verdict") != "PASS" or answer["findings"]:
                raise RuntimeError(f"the unmutated run {name} is accused or raised: {answer}")
            self._unmutated[name] = answer["training"]
            for module in answer["modules"]:
                with contextlib.suppress(Exception):  # modules of a test, or that need a device
                    importlib.import_module(module)
        traced: list[tuple[str, Any]] = []
        for name, run in self._runs.items():
            traced.append((name, functools.partial(self._bare_with_lines, run)))
        for name, answer in self._run_each(traced):
            if "raised" in answer or (where := difference(self._unmutated[name], answer["training"])):
                raise RuntimeError(f"the run {name} without the audit differs: {answer.get('raised') or where}")
            self.lines[name] = answer["lines"]
        self._living = LivingFunctions(self.target.modules)
        gc.collect()
        gc.freeze()

    def _mutant(self, run: Run, folder: Path, mutation: Mutation) -> dict[str, Any]:
        return mutant(run, folder, self._living, mutation)

    def _bare_with_lines(self, run: Run) -> dict[str, Any]:
        training: dict[str, Any] = {}
        lines = executed(self.target.modules, lambda: training.update(run.bare(self.folder)))
        return {"training": training, "lines": lines}

    def all_mutations(self) -> list[Mutation]:
        """Every mistake that can be made in the target's modules."""
        return [found for module in self.target.modules for found in mutations(module, source_of(module))]

    def try_each(self, wanted: list[tuple[Mutation, str]], say: Any) -> list[Outcome]:
        """Train each mutant."""
        jobs = (
            (
                f"{index:04d}",
                functools.partial(self._mutant, self._runs[run], self.folder / str(index), mutation),
            )
            for index, (mutation, run) in enumerate(wanted)
        )
        outcomes = []
        for name, answer in self._run_each(jobs):
            mutation, run = wanted[int(name)]
            outcomes.append(outcome(mutation, run, answer, self._unmutated[run]))
            say(name, outcomes[-1])
        return outcomes


class LaunchedSession(Session):
    """Mutants of a target whose trainings are whole launches."""

    def begin(self) -> None:
        """As for those of one process; without the modules, which are imported by the launches."""
        jobs = [
            *(
                (f"audited {name}", functools.partial(run.audited, self.folder / f"audited {name}"))
                for name, run in self._runs.items()
            ),
            *(
                (
                    f"bare {name}",
                    functools.partial(run.bare_with_lines, self.target.modules, self.folder / f"bare {name}"),
                )
                for name, run in self._runs.items()
            ),
        ]
        answers = dict(self._run_each(jobs))
        for name in self._runs:
            audited, bare = answers[f"audited {name}"], answers[f"bare {name}"]
            if audited.get("verdict") != "PASS" or audited["findings"]:
                raise RuntimeError(f"the unmutated run {name} is accused or raised: {audited}")
            if "raised" in bare or (where := difference(audited["training"], bare["training"])):
                raise RuntimeError(f"the run {name} without the audit differs: {bare.get('raised') or where}")
            self._unmutated[name], self.lines[name] = audited["training"], bare["lines"]

    def _mutant(self, run: Any, folder: Path, mutation: Mutation) -> dict[str, Any]:
        answer: dict[str, Any] = run.audited(folder, mutation)
        return answer


def main() -> int:
    """Exit status 0 if no survivor is without a judgement."""
    parser = argparse.ArgumentParser(prog="mutants", description="Faults made by a machine, each trained for real.")
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--number", type=int, default=100, help="mutants to train")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--at-once", type=int, default=2, help="processes at a time")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that one may take")
    parser.add_argument(
        "--results", type=Path, help="a file that gets an outcome a line; what is in it is not tried again"
    )
    parser.add_argument("--again", type=Path, metavar="RESULTS", help="try the survivors of an earlier session again")
    arguments = parser.parse_args()
    target: Target = importlib.import_module(f"tests.mutants.{TARGETS[arguments.target]}").TARGETS[arguments.target]
    known = read(arguments.results)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        kind = LaunchedSession if arguments.target in LAUNCHED else Session
        session = kind(target, Path(folder), limit_s=arguments.limit, at_once=arguments.at_once)
        session.begin()
        if arguments.again is not None:
            wanted = [(entry.mutation, entry.run) for entry in read(arguments.again) if entry.survived]
        else:
            wanted = drawn(session.all_mutations(), session.lines, arguments.number, arguments.seed)
        tried = {(entry.mutation, entry.run) for entry in known}

        def say(name: str, entry: Outcome) -> None:
            print(f"{name} {entry.what:<10} {' '.join(entry.codes) or entry.verdict:<12} {entry.mutation}", flush=True)
            if arguments.results is not None:
                with arguments.results.open("a") as stream:
                    stream.write(entry.to_json() + "\n")

        outcomes = known + session.try_each([pair for pair in wanted if pair not in tried], say)
    table = Table(outcomes, judgements())
    print(f"\n{arguments.target}, seed {arguments.seed}\n{table.text()}")
    return int(any(table.kind(entry) == "not judged" for entry in outcomes if entry.survived))


def read(file: Path | None) -> list[Outcome]:
    """The outcomes of an earlier session; none if there is no file."""
    if file is None or not file.exists():
        return []
    return [Outcome.from_json(line) for line in file.read_text().splitlines()]


if __name__ == "__main__":
    sys.exit(main())
