"""Texts that a model may give as the completion of a row: right answers in many forms, and texts that hold no answer. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Kind = Literal["without an answer", "the prompt", "right", "wrong", "in noise", "among others", "rare"]
"""What a text is to its row: it holds no answer; it is the prompt; it gives the row's own answer, or that of another row; the own
answer stands within other words, or between others' answers; a text that holds no answer and that few models give."""

FORMS = (
    "{}",
    "#### {}",
    "${}$",
    "\\boxed{{{}}}",
    "$\\boxed{{{}}}$",
    "Answer: {}",
    "Answer: \\boxed{{{}}}",
    "The answer is {}.",
    "<answer>{}</answer>",
    "<think>so</think>\n{}",
    "<think>so</think><answer>{}</answer>",
    "<think>\nso\n</think>\n\\boxed{{{}}}",
    "<think>\nso\n</think>\n<answer>\n{}\n</answer>",
    "<think>\nso\n</think>\n<answer>\n\\boxed{{{}}}\n</answer>",
    "<think>\nso\n</think>\n<answer>\n```python\n{}\n```\n</answer>",
    "```python\n{}\n```",
    "<reasoning>\nso\n</reasoning>\n<answer>\n{}\n</answer>\n",
    "so</think>\n{}",
    "so</think>\n\\boxed{{{}}}",
)
"""Forms in which completions usually give an answer."""

_BROKEN = ("#### ", "\\boxed{", "\\boxed{}", "$$", "Answer:", "<answer></answer>", "<answer>", "</think>", "<think>")
"""Forms without an answer, or that are not closed."""
_BROKEN_TOLD = "the form {!r} without an answer"
_TOWER = "9**9**9**9"
"""A short text that no machine can evaluate."""
_DIGITS = 5000
"""Digits that Python does not turn into a number (sys.get_int_max_str_digits() is 4300)."""
_LONGEST_ANSWER = 300
"""Characters of a column's value that may be an answer."""
_LEAVES = 4
"""Values of a nested column that may be answers."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a reward function may compare a completion with."""

    prompt: str = ""
    """The text of the prompt; empty if it is not known."""
    columns: tuple[tuple[str, Any], ...] = ()
    """Name and value of each column."""

    def answers(self) -> dict[str, tuple[str, ...]]:
        """The name of each value that may be an answer -> the texts that give it: as it stands, and what is usually taken of it."""
        found: dict[str, tuple[str, ...]] = {}
        for name, value in self.columns:
            for number, leaf in enumerate(_leaves(value)):
                found[f"{name} {number}" if number else name] = tuple(dict.fromkeys(_readings(leaf)))
        return found


@dataclass(frozen=True, kw_only=True)
class Witness:
    """One completion, and what it is to its row."""

    row: int
    text: str
    kind: Kind
    told: str
    """What the completion is, in words: "an empty completion"."""
    form: tuple[str, str, int] = ("", "", 0)
    """The form of the answer that the text gives, the name of its value, and which reading of the value it is. A right and a
    wrong text that are alike in these can be compared."""


def witnesses(rows: Sequence[Row], *, longest: int, forms: Sequence[str] = ()) -> list[Witness]:
    """Texts for each of these rows, the likely ones first.

    Args:
        rows: One row, or two with different answers, whose answers are each other's wrong ones.
        longest: Tokens that a completion may have.
        forms: Forms of answers besides the usual ones, with "{}" where the answer stands.
    """
    every = tuple(dict.fromkeys((*FORMS, *forms)))
    found: list[Witness] = []
    for number, row in enumerate(rows):
        found += [
            Witness(row=number, text=text, kind="without an answer", told=told) for text, told in _without(longest)
        ]
        if row.prompt:
            found.append(Witness(row=number, text=row.prompt, kind="the prompt", told="the prompt itself"))
        found += _giving(number, rows, every)
    # In one row alone: each may cost the whole time limit.
    return found + [Witness(row=0, text=text, kind="rare", told=told) for text, told in _rare(rows, longest)]


def _without(longest: int) -> Iterator[tuple[str, str]]:
    yield "", "an empty completion"
    yield " \n\n", "white space alone"
    yield "?!.,;:-()[]{}<>\"'`|/\\*&^%$#@~=+_", "punctuation alone"
    yield "so " * longest, f"a text of {longest} words without an answer"
    yield "First, so.\n\n1. so\n2. so\n\nStep 1: so\nStep 2: so\n- so\n- so\n\nFinally, so.", "steps without an answer"
    yield "```python\nprint('so')\n```", "a block of code"
    for text in _BROKEN:
        yield text, _BROKEN_TOLD.format(text)


def _rare(rows: Sequence[Row], longest: int) -> Iterator[tuple[str, str]]:
    yield "\x00\x07\x1b[0m\x7f", "control characters"
    yield (
        "\ufffd\ufffd\u200b\u202e\U0001f600\u0661",
        "replacement characters, signs that are not shown and digits of another script",
    )
    yield "(" * longest, f"{longest} opening brackets"
    yield "9" * _DIGITS, f"a number of {_DIGITS} digits"
    # Each of a puzzle's numbers once, in an expression that no machine can evaluate.
    own = next((found for _, value in rows[0].columns for found in _numbers(value)), ()) if rows else ()
    for tower in (_TOWER, "**".join(map(str, sorted(own)))):
        for form in ("{}", "\\boxed{{{}}}", "<answer>{}</answer>") if tower else ():
            yield form.format(tower), f"the number {form.format(tower)!r}"


def _giving(number: int, rows: Sequence[Row], forms: Sequence[str]) -> Iterator[Witness]:
    """Texts that give the row's own answer, and the other row's."""
    own = rows[number].answers()
    others = [row.answers() for place, row in enumerate(rows) if place != number]
    for name, readings in own.items():
        for reading, answer in enumerate(readings):
            wrong = next((other[name][reading] for other in others if len(other.get(name, ())) > reading), None)
            wrong = None if wrong == answer else wrong
            for form in forms:
                key = (form, name, reading)
                right = form.format(answer)
                told = f"the row's {name} as {_shown(right)}"
                yield Witness(row=number, text=right, kind="right", told=told, form=key)
                if wrong is None:
                    continue
                bad = form.format(wrong)
                told = f"another row's {name} as {_shown(bad)}"
                yield Witness(row=number, text=bad, kind="wrong", told=told, form=key)
                told = f"another row's {name}, the row's own and the other again, each as {_shown(right)}"
                yield Witness(row=number, text=f"{bad}\n{right}\n{bad}", kind="among others", told=told, form=key)
                told = f"another row's {name}, the row's own and the other again, in one {_shown(form.format('...'))}"
                inside = form.format(f"{wrong} or {answer} or {wrong}")
                yield Witness(row=number, text=inside, kind="among others", told=told, form=key)
            if wrong is not None:
                noise = f"so it may be {answer} or not, and then some more words"
                told = f"the row's {name} within other words"
                yield Witness(row=number, text=noise, kind="in noise", told=told, form=("{}", name, reading))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _leaves(value: Any) -> list[str]:
    """The short texts and numbers in a value."""
    if hasattr(value, "tolist"):  # numpy's
        value = value.tolist()
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, str | int | float):
        text = str(value)
        return [text] if text.strip() and len(text) <= _LONGEST_ANSWER else []
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    return [leaf for each in inner[:_LEAVES] for leaf in _leaves(each)][:_LEAVES]


def _numbers(value: Any) -> Iterator[Sequence[int]]:
    """Lists of whole numbers in a value, as those of a puzzle."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple) and len(value) > 1 and all(type(each) is int for each in value):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _numbers(each)


_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")


def _readings(text: str) -> Iterator[str]:
    """What is usually taken of a value as its answer: GSM8K's end, what stands in a box; and the value as it stands."""
    yield text.rpartition("#### ")[2].strip().strip("$")
    yield from _BOXED.findall(text)[-1:]
    yield text
