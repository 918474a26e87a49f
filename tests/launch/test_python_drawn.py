"""What the sixteenth draw showed of Python files: options that a loop makes, keywords that a function gathers, rows of a list."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.python_file import read_calls
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import Place

if TYPE_CHECKING:
    from pathlib import Path


def read(folder: Path, text: str, flags: dict[str, str] | None = None, name: str = "Trained.n") -> object:
    """The value of a keyword in a file that is called with flags; None where it is asked about."""
    (folder / "train.py").write_text(text)
    given = {key: Setting(key, value, Place("launch.sh", 1, 1), f"--{key}") for key, value in (flags or {}).items()}
    calls = read_calls(folder / "train.py", flags=given, finder=lambda name: folder / name)
    found = (calls.lengths if name.endswith("dataset") else calls.settings).get(name)
    return None if found is None or found.unknown or "Trained" in calls.opened else found.value


OPTIONS = """
import argparse
from dataclasses import dataclass, fields

@dataclass
class Sizes:
    n: int = 4
    deep: bool = False

def parsed():
    parser = argparse.ArgumentParser()
    for f in fields(Sizes):
        {before}
        parser.add_argument({words})
    return Sizes(**vars(parser.parse_args()))

cfg = parsed()
Trained(n=cfg.n, deep=cfg.deep)
"""
KIND = "kind = (lambda s: s == 'yes') if f.type == bool else f.type"
WORDS = 'f"--{f.name}", type=kind, default=f.default'


@pytest.mark.parametrize(
    ("before", "words", "flags", "expected"),
    [
        (KIND, WORDS, {}, 4),
        (KIND, WORDS, {"n": "8"}, 8),
        ("pass", WORDS.replace("kind", "f.type"), {}, None),  # what else the loop does is not known
        (KIND, WORDS.replace("kind", "f.type"), {"n": "8"}, 8),
        (KIND, WORDS.replace("kind", "lambda word: 2 * int(word)"), {"n": "8"}, None),
        (KIND, WORDS.replace("kind", "lambda word: 2 * int(word)"), {}, 4),
        (KIND, WORDS.replace("f.default", "f.default or 2"), {}, None),
        (KIND, WORDS.replace("--", "--own_"), {}, None),
        ("if f.name == 'n':\n            continue", WORDS.replace("kind", "int"), {}, None),
    ],
)
def test_options_that_a_loop_makes_of_the_fields_of_a_dataclass(
    tmp_path: Path, before: str, words: str, flags: dict[str, str], expected: int | None
) -> None:
    assert read(tmp_path, OPTIONS.format(before=before, words=words), flags) == expected


def test_a_field_of_another_type_is_not_converted_as_a_number_is(tmp_path: Path) -> None:
    text = OPTIONS.format(before=KIND, words=WORDS)
    assert read(tmp_path, text, {"deep": "yes"}, "Trained.deep") is None
    assert read(tmp_path, text, {}, "Trained.deep") is False
    assert read(tmp_path, f"from __future__ import annotations\n{text}") is None  # no text can be called


GATHERED = """
import inspect

def build(first=None, **kwargs):
    {does}
    return Trained(**{given})

{call}
"""
KEPT = "kept = {key: value for key, value in kwargs.items() if key in inspect.signature(Trained).parameters}"


@pytest.mark.parametrize(
    ("does", "given", "call", "expected"),
    [
        ("pass", "kwargs", "build(n=4)", 4),
        (KEPT, "kept", "build(n=4)", 4),
        ("print(sorted(set(kwargs)))", "kwargs", "build(first=3, n=4, m=5)", 4),
        ("kwargs['n'] = 8", "kwargs", "build(n=4)", None),
        ("kwargs.update(n=8)", "kwargs", "build(n=4)", None),
        ("other = kwargs\n    other['n'] = 8", "kwargs", "build(n=4)", None),
        ("kwargs = {'n': 8}", "kwargs", "build(n=4)", 8),
        ("fill(kwargs)", "kwargs", "build(n=4)", None),
        ("pass", "kwargs", "build(n=4)\nbuild(n=8)", None),
        ("pass", "kwargs", "sizes = {'n': 4}\nbuild(**sizes)", 4),
        ("pass", "kwargs", "sizes = {'n': 4}\nif asked():\n    sizes['n'] = 8\nbuild(**sizes)", None),
        ("pass", "kwargs", "build(**asked())", None),
    ],
)
def test_keywords_that_a_function_gathers(
    tmp_path: Path, does: str, given: str, call: str, expected: int | None
) -> None:
    assert read(tmp_path, GATHERED.format(does=does, given=given, call=call)) == expected


ROWS = """
from datasets import Dataset
{rows}
ds = Dataset.from_list(rows)
GRPOTrainer(train_dataset=ds)
"""


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("rows = [{'prompt': each} for each in ['a', 'b', 'c']]", 3),
        ("rows = [{'prompt': 'a'}, {'prompt': 'b'}]", 2),
        ("rows = [{'prompt': each} for each in ['a', 'b', 'c'] if asked(each)]", None),
        ("rows = [{'prompt': each} for each in ['a', *asked()]]", None),
        ("rows = [{'prompt': 'a'}]\nrows.append({'prompt': 'b'})", None),
        ("rows = [{'prompt': 'a'}]\nother = rows", None),
        ("rows = [{'prompt': a + b} for a in ['a', 'b'] for b in ['c', 'd']]", None),
    ],
)
def test_rows_of_a_list_that_has_a_name(tmp_path: Path, rows: str, expected: int | None) -> None:
    assert read(tmp_path, ROWS.format(rows=rows), name="GRPOTrainer.train_dataset") == expected
