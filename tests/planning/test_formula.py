"""The language of formulas: exact, lazy where it says so, and nothing beyond it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, ClassVar

import pytest

from rlstep_hooks.planning.explained import shown
from rlstep_hooks.planning.formula import FUNCTIONS, FormulaError, NotKnownError, Unknown, evaluate, fill, names_in


class Given(dict[str, Any]):
    """Values for a test; an `Unknown` among them is not known."""

    functions: ClassVar[dict[str, Any]] = {**FUNCTIONS, "double": lambda value: 2 * value}

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if isinstance(value, Unknown):
            raise NotKnownError(value.reason)
        return value

    def given(self, name: str) -> bool:
        return name in self


HERE = Given(
    {
        "a.batch": 10,
        "size": 4,
        "nothing": None,
        "rows": Unknown("nobody said"),
        "name": "grpo",
        "sizes": (4, 4, 2),
        "big": 2**70,
    }
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.batch / size", Fraction(5, 2)),
        ("a.batch / 5", 2),
        ("ceil(a.batch / size) * size", 12),
        ("floor(big / 3)", 2**70 // 3),
        ("a.batch // size + a.batch % size", 4),
        ("nothing or size", 4),
        ("size if nothing is None else nothing", 4),
        ("name == 'grpo' and size in (2, 4)", True),
        ("not (size > 4)", True),
        ("lcm(size, 6)", 12),
        ("double(size)", 8),
        ("sum(sizes) - len(sizes)", 7),
        ("slices(a.batch, size)", (4, 4, 2)),
        ("known(rows)", False),
        ("known(rows) and rows > 3", False),
        ("given(a.batch) and not given(b.batch)", True),
        ("limited(a.batch, nothing)", 10),
        ("limited(a.batch, size)", 4),
        ("limited(rows * 2, size)", 4),
        ("nearest(7, a.batch * 2 % it == 0)", "5 or 10"),
        ("nearest(size, gcd(it, a.batch) == it)", "2 or 5"),
        ("rows // 2", Unknown("nobody said")),
        ("unknown('the data decides') if size > 3 else 1", Unknown("the data decides")),
        ("1 if size < 3 else 2 if size < 5 else rows", 2),
    ],
)
def test_expressions(text: str, value: Any) -> None:
    assert evaluate(text, HERE) == value


def test_whole_fractions_are_integers() -> None:
    assert type(evaluate("a.batch / 5", HERE)) is int


@pytest.mark.parametrize(
    "text",
    [
        "1.5 * size", "[1, 2]", "__import__('os')", "size.real()", "lambda: 1", "size := 3", "f'{size}'",
        "nothing + 1", "size / 0", "size +", "missing + 1", "no_such_function(1)", "min(1, key=size)", "sizes[0]", "size ** 9",
    ],
)  # fmt: skip
def test_what_is_no_formula(text: str) -> None:
    with pytest.raises(FormulaError):
        evaluate(text, HERE)


def test_templates() -> None:
    assert (
        fill("{a.batch} samples, {a.batch / size} each, {sizes}, of {rows}", HERE)
        == "10 samples, 5/2 each, [4, 4, 2], of ?"
    )


def test_names() -> None:
    assert names_in("ceil(a.batch / size) if nearest(x.y, it > z) else 'b'") == {"a.batch", "size", "x.y", "z"}


@pytest.mark.parametrize(
    ("text", "steps", "as_it_ran", "inputs"),
    [
        ("a.batch / (size)", {}, "a.batch / (size)", {"a.batch": 10, "size": 4}),
        ("half * size", {"half": "a.batch - 5"}, "(a.batch - 5) * size", {"a.batch": 10, "size": 4}),
        ("(nothing or size) + (1 if nothing is None else rows)", {}, "size + 1", {"size": 4}),
        ("limited(a.batch * 2, nothing)", {}, "a.batch * 2", {"a.batch": 10}),
        ("limited(a.batch * 2, size)", {}, "min(a.batch * 2, size)", {"a.batch": 10, "size": 4}),
        ("limited(rows, size)", {}, "size", {"size": 4}),
        ("rows * size", {}, "rows * size", {"rows": None, "size": 4}),
        ("size * 2", {"size": "max(size, 1)"}, "max(size, 1) * 2", {"size": 4}),
    ],
)
def test_an_expression_is_shown_as_it_ran(
    text: str, steps: dict[str, str], as_it_ran: str, inputs: dict[str, Any]
) -> None:
    assert shown(text, HERE, steps) == (as_it_ran, inputs)
