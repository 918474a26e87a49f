"""What a machine changes in source code, and that a process then runs the changed code. No framework is needed."""

from __future__ import annotations

import ast
import functools
import sys
from typing import TYPE_CHECKING

import pytest

from tests.mutants.children import run_each
from tests.mutants.drawing import drawn
from tests.mutants.operators import OPERATORS, Mutation, mutated, mutations
from tests.mutants.outcomes import Judgement, Table, judgements, outcome
from tests.mutants.sources import LivingFunctions, NoMutantError, executed
from tests.mutants.training import difference

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator
    from pathlib import Path

EXAMPLES = {
    "arithmetic": ("a + b", "a - b"),
    "operand": ("a * b", "b"),
    "accumulation": ("total += a", "total = a"),
    "constant": ("a[1]", "a[2]"),
    "comparison": ("a < b", "a <= b"),
    "condition": ("a and b", "a or b"),
    "sign": ("-a", "a"),
    "statement": ("a.step()", "pass"),
    "loop": ("for a in b:\n    break", "for a in b:\n    continue"),
    "detached": ("a * log_ratio", "a * log_ratio.detach()"),
    "reduction": ("a.sum()", "a.mean()"),
    "call_left_out": ("torch.clamp(a, 0, 1)", "a"),
    "dimension": ("a.f(dim=1)", "a.f(dim=0)"),
    "bound": ("a[:b]", "a[:]"),
    "argument": ("f(a, b)", "f(b, a)"),
}
"""Of each operator a statement, and one that it is made into."""


def _made(source: str, operator: str) -> set[str]:
    module = f"def function(a, b, total):\n{_indented(source)}\n"
    found = [mutation for mutation in mutations("example", module) if mutation.operator == operator]
    return {ast.unparse(mutated(module, mutation).body[0].body) for mutation in found}  # type: ignore[attr-defined]


def _indented(source: str) -> str:
    return "\n".join(f"    {line}" for line in source.splitlines())


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_makes_its_mistake(operator: str) -> None:
    before, after = EXAMPLES[operator]
    assert ast.unparse(ast.parse(after)) in _made(before, operator)
    assert ast.unparse(ast.parse(before)) not in _made(before, operator)


@pytest.mark.parametrize(
    "source",
    [
        "logger.warning(1 + 2)",
        "raise ValueError(1 + 2)",
        "assert a < b",
        "'''What 1 + 2 is.'''",
        "def g(x: int = 1): pass",
    ],
)
def test_what_only_says_something_is_left_alone(source: str) -> None:
    assert not mutations("example", f"def function(a, b):\n{_indented(source)}\n")


def test_what_runs_when_a_module_is_imported_is_left_alone() -> None:
    assert not mutations("example", "LIMIT = 1 + 2\nclass Settings:\n    size: int = 3\n")


SOURCE = """
import functools

def logged(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper

class Loss:
    @logged
    def value(self, x):
        def inner(y):
            return y + x
        if x > 100:
            return 0
        return inner(2)

    def super_value(self):
        return super().__repr__() and 5
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    (tmp_path / "mutated_example.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    import importlib

    yield importlib.import_module("mutated_example")
    del sys.modules["mutated_example"]


def _mutation(before: str, after: str) -> Mutation:
    return next(m for m in mutations("mutated_example", SOURCE) if (m.before, m.after) == (before, after))


def test_a_decorated_method_that_lives_runs_the_mutated_code(module: types.ModuleType) -> None:
    loss = module.Loss()
    method = loss.value  # held since before
    living = LivingFunctions(["mutated_example"])
    assert method(3) == 5
    living.put_in_force(_mutation("y + x", "y - x"))
    assert method(3) == -1
    assert loss.super_value() == 5
    living.put_in_force(_mutation("5", "6"))
    assert loss.super_value() == 6


def test_a_change_that_needs_another_closure_is_no_mutant(module: types.ModuleType) -> None:
    with pytest.raises(NoMutantError):
        LivingFunctions(["mutated_example"]).put_in_force(_mutation("super().__repr__() and 5", "5"))


def test_lines_that_run(module: types.ModuleType) -> None:
    lines = executed(["mutated_example"], lambda: module.Loss().value(3))["mutated_example"]
    text = SOURCE.splitlines()
    assert {text[line - 1].strip() for line in lines} == {
        "def inner(y):", "return y + x", "if x > 100:", "return inner(2)", "return function(*args)",
    }  # fmt: skip


def test_a_draw_is_even_over_lines_and_the_same_for_a_seed() -> None:
    source = "def function(a, b):\n    x = a * b + a * b + a * b + a * b\n    y = a < b\n    z = a - b\n    return -a\n"
    found = mutations("example", source)
    lines = {"one": {"example": [2, 3, 4]}, "two": {"example": [4]}}
    first = drawn(found, lines, 3, seed=1)
    assert sorted(mutation.line for mutation, _ in first) == [2, 3, 4]
    assert first == drawn(found, lines, 3, seed=1)
    everything = drawn(found, lines, 1000, seed=2)
    assert len({mutation for mutation, _ in everything}) == len(everything) == sum(m.line < 5 for m in found)
    assert {run for mutation, run in everything if mutation.line == 3} == {"one"}


def _fails() -> dict[str, object]:
    raise KeyError("gone")


def _sleeps() -> dict[str, object]:
    import time

    time.sleep(60)
    return {}


def test_each_child_has_its_answer(tmp_path: Path) -> None:
    jobs = [("answers", functools.partial(dict, value=3)), ("fails", _fails), ("sleeps", _sleeps)]
    answers = dict(run_each(jobs, tmp_path, limit_s=4.0, at_once=2))
    assert answers == {"answers": {"value": 3}, "fails": {"raised": "KeyError: 'gone'"}, "sleeps": {"hung": True}}
    assert "KeyError" in (tmp_path / "fails.log").read_text()


TRAINING = {"steps": ["a", "b"], "weights": "c", "logs": [{"loss": "1"}]}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({}, ""), ({"steps": ["a", "x"]}, "update 1"), ({"steps": ["a"]}, "update 1"), ({"weights": "x"}, "weights at the end"),
        ({"logs": []}, "logs"),
    ],
)  # fmt: skip
def test_where_trainings_part(change: dict[str, object], where: str) -> None:
    assert difference(TRAINING, TRAINING | change) == where


def test_a_table_counts_what_is_real() -> None:
    found = {"code": "RLS801", "severity": "error", "text": "", "title": ""}
    some = mutations("example", "def function(a, b):\n    return a * b + a - b\n")

    def tried(number: int, change: dict[str, object], *findings: dict[str, str]) -> None:
        answer = {"training": TRAINING | change, "verdict": "PASS", "findings": findings}
        table.outcomes.append(outcome(some[number], "one", answer, TRAINING))

    table = Table(judged={some[2].key: Judgement(some[2].key, "one", "legal", "another order of equal rows")})
    tried(0, {})
    tried(1, {"weights": "x"}, found)
    tried(2, {"weights": "x"})
    assert "1 real faults, 1 found: 100.0%" in table.text()
    tried(3, {"weights": "x"})
    tried(4, {"logs": []})
    table.outcomes.append(outcome(some[5], "one", {"raised": "KeyError"}, TRAINING))
    text = table.text()
    assert "2 real faults, 1 found: 50.0%" in text
    assert "1 legal" in text
    assert "1 not judged" in text
    assert "1 logs" in text
    assert "another order of equal rows" in text


def test_judgements_can_be_read() -> None:
    assert all(judgement.kind in {"real", "legal", "logs"} and judgement.why for judgement in judgements().values())
