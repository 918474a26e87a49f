"""Settings that a function of the program chooses, names whose last assignment is known, and keywords that a mapping hands in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.python_file import read_calls
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import Place

if TYPE_CHECKING:
    from pathlib import Path

_PICK = "def pick(given, default):\n    if given is not None:\n        return given\n    return default\n"
_DIVISOR = """
def divisor(n, most):
    for each in range(min(most, n), 0, -1):
        if n % each == 0:
            return each
    return 1
"""
_LOOP = "def total(numbers):\n    total = 0\n    for each in numbers:\n        {}\n    return total\n"
_PARSED = (
    "import argparse, json, yaml\nparser = argparse.ArgumentParser()\nparser.add_argument('--n', type=int)\n"
    "parser.add_argument('--config')\nparser.add_argument('--small', action='store_true')\nargs = parser.parse_args()\n"
)


def found(folder: Path, text: str, **flags: str) -> int | None:
    """The value of `Config(n=...)`; None where it is unknown."""
    path = folder / "train.py"
    path.write_text(text)
    given = {name: Setting(name, value, Place("command"), name) for name, value in flags.items()}
    setting = read_calls(path, given, lambda name: folder / name).settings["Config.n"]
    value: int = setting.value
    return None if setting.unknown else value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (_PICK + "Config(n=pick(None, 8), m=pick(4, 2))\n", 8),
        (_PICK + "Config(n=pick(4, 8), m=pick(None, 2))\n", 4),
        (_PICK + "Config(n=pick(default=2, given=4), m=pick(1, 2))\n", 4),
        (_PICK + "def twice(n):\n    return pick(n, 3) * 2\nConfig(n=twice(None), m=twice(2))\n", 6),
        ("def pick(n):\n    '''Doc.'''\n    print(n)\n    m = n * 2\n    return m\nConfig(n=pick(4), m=pick(2))\n", 8),
        (
            "def pick(n):\n    if n > 3:\n        return 1\n    else:\n        return 2\nConfig(n=pick(4), m=pick(2))\n",
            1,
        ),
        ("def main():\n    def pick(n):\n        return n\n    Config(n=pick(4), m=pick(2))\nmain()\n", 4),
        ("def pick(n):\n    n = n * 2\n    return n\nConfig(n=pick(4), m=pick(2))\n", 8),
        ("def pick(n):\n    for _ in range(2):\n        return n\nConfig(n=pick(4), m=pick(2))\n", 4),
        ("def pick(n):\n    if n > 3:\n        n = 8\n    return n\nConfig(n=pick(4), m=pick(2))\n", 8),
        (_DIVISOR + "Config(n=divisor(9, 5), m=divisor(8, 5))\n", 3),
        (
            _LOOP.format("if each % 2:\n            continue\n        total += each")
            + "Config(n=total([1, 2, 4, 7]), m=total([1]))\n",
            6,
        ),
        (
            _LOOP.format("if each > 2:\n            break\n        total += each")
            + "Config(n=total([1, 2, 4, 2]), m=total([1]))\n",
            3,
        ),
        ("def up(n):\n    while n < 30:\n        n *= 2\n    return n\nConfig(n=up(4), m=up(2))\n", 32),
        ("def two(n):\n    a, b = n, n + 1\n    a += b\n    return a\nConfig(n=two(4), m=two(2))\n", 9),
        (
            "def own(n):\n    found = {}\n    found['x'] = n\n    n = found['x'] + 1\n    return n\nConfig(n=own(4), m=own(2))\n",
            5,
        ),
        (
            "def kept(n):\n    n = n + 1\n    if n > given():\n        raise ValueError\n    assert given()\n"
            "    return n\nConfig(n=kept(4), m=kept(2))\n",
            5,
        ),
        # A check that ends the program gives nothing back.
        (
            "def kept(n):\n    n = n + 1\n    if n > 4:\n        raise ValueError\n    return n\nConfig(n=kept(4), m=kept(2))\n",
            None,
        ),
        ("def kept(n):\n    if n > 3:\n        raise ValueError\n    return n\nConfig(n=kept(4), m=kept(2))\n", None),
        # What a function does beside working out a value may change what it gives back.
        (_LOOP.format("total += given(each)") + "Config(n=total([1, 2]), m=total([1]))\n", None),
        (_LOOP.format("if given():\n            total += each") + "Config(n=total([1, 2]), m=total([1]))\n", None),
        ("def up(n):\n    while n > 0:\n        n *= 2\n    return n\nConfig(n=up(4), m=up(2))\n", None),
        ("n = 3\ndef up(m):\n    m = m + 1\n    n = given()\n    return n\nConfig(n=up(4), m=up(2))\n", None),
        (
            "def two(n):\n    first = [n]\n    second = first\n    second.append(2)\n"
            "    n = len(first)\n    return n\nConfig(n=two(4), m=two(2))\n",
            None,
        ),
        ("def up(n):\n    n = n + 1\n    change(n)\n    return n\nConfig(n=up(4), m=up(2))\n", None),
        ("def pick(n):\n    if seen():\n        return 8\n    return n\nConfig(n=pick(4), m=pick(2))\n", None),
        (
            "def pick(n):\n    try:\n        return n\n    except ValueError:\n        return 8\nConfig(n=pick(4), m=pick(2))\n",
            None,
        ),
        ("@cached\ndef pick(n):\n    return n\nConfig(n=pick(4), m=pick(2))\n", None),
        ("def pick(*n):\n    return 8\nConfig(n=pick(4), m=pick(2))\n", None),
        ("def pick(n):\n    return pick(n)\nConfig(n=pick(4), m=pick(2))\n", None),
    ],
)
def test_a_function_that_chooses_is_followed(tmp_path: Path, text: str, value: int | None) -> None:
    assert found(tmp_path, text) == value


@pytest.mark.parametrize(
    ("flags", "value"),
    [({}, 8), ({"n": "2"}, 2), ({"config": "sizes.yaml"}, 16), ({"config": "sizes.yaml", "n": "2"}, 2)],
)
def test_the_command_comes_before_the_file_and_the_file_before_the_default(
    tmp_path: Path, flags: dict[str, str], value: int
) -> None:
    (tmp_path / "sizes.yaml").write_text("n: 16\n")
    text = (
        _PARSED + "def load(path):\n    with open(path) as f:\n        return yaml.safe_load(f)\n"
        "sizes = {}\nif args.config:\n    sizes = load(args.config)\n"
        "def resolve(given, key, default):\n    if given is not None:\n        return given\n    if key in sizes:\n"
        "        return sizes[key]\n    return default\n"
        "def train(n=4, m=1):\n    Config(n=n)\n"
        "keywords = {'n': resolve(args.n, 'n', 8), 'm': resolve(None, 'm', 3)}\ntrain(**keywords)\n"
    )
    assert found(tmp_path, text, **flags) == value


@pytest.mark.parametrize(
    ("text", "flags", "value"),
    [
        ("n = 4\nif args.small:\n    n = 8\nConfig(n=n)\n", {}, 4),
        ("n = 4\nif args.small:\n    n = 8\nConfig(n=n)\n", {"small": "true"}, 8),
        ("def make(n=4):\n    if args.small:\n        n = 8\n    Config(n=n)\nmake()\n", {}, 4),
        ("def make(n=4):\n    if args.small:\n        n = 8\n    Config(n=n)\nmake()\n", {"small": "true"}, 8),
        ("n = 4\nConfig(n=n)\nn = 8\nprint(n)\n", {}, 4),
        ("n = 4\ndef make():\n    Config(n=n)\nn = 8\nmake()\n", {}, None),
        ("n = 4\nfor _ in range(2):\n    Config(n=n)\n    n = 8\n", {}, None),
        ("n = 4\nif seen():\n    n = 8\nConfig(n=n)\n", {}, None),
        ("n = 4\nn += 4\nConfig(n=n)\n", {}, None),
    ],
)
def test_a_name_is_what_was_assigned_last(tmp_path: Path, text: str, flags: dict[str, str], value: int | None) -> None:
    assert found(tmp_path, _PARSED + text, **flags) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("sizes = {'n': 8}\nmake(**sizes)\n", 8),
        ("sizes = {'m': 8}\nmake(**sizes)\n", 2),
        ("sizes = {'n': 8}\nsizes['n'] = 4\nmake(**sizes)\n", 4),
        ("sizes = {'n': 8}\nsizes[seen()] = 4\nmake(**sizes)\n", None),
        ("make(**seen())\n", None),
    ],
)
def test_a_mapping_hands_in_what_it_holds(tmp_path: Path, text: str, value: int | None) -> None:
    assert found(tmp_path, f"def make(n=2, m=1):\n    Config(n=n)\n{text}") == value


@pytest.mark.parametrize(
    "loads",
    [
        "json.load(open(args.config))",
        "json.loads(open(args.config).read())",
        "json.loads(Path(args.config).read_text())",
    ],
)
def test_a_json_file_is_read_as_json(tmp_path: Path, loads: str) -> None:
    (tmp_path / "sizes.json").write_text('{"train": {"n": 8e0, "rate": 1e-5}}')
    start = f"{_PARSED}from pathlib import Path\nsizes = {loads}\nConfig(n="
    # 1e-5 is a number in JSON, and a text for PyYAML.
    assert (
        found(tmp_path, start + "sizes['train']['n'] if sizes['train']['rate'] < 1 else 1)\n", config="sizes.json") == 8
    )


_ENV = """
import os
def env(name, default):
    text = os.environ.get(name, "")
    if text.strip() == "":
        return default
    {last}
"""


@pytest.mark.parametrize(
    ("last", "more", "value"),
    [
        ("return int(text)", "Config(n=env('N', 8), m=env('M', 2))\n", 8),
        ("return int(text)", "os.environ['N'] = '4'\nConfig(n=env('N', 8), m=env('M', 2))\n", None),
        ("return int(text)", "Config(n=env('RANK', 8), m=env('M', 2))\n", None),
        ("raise ValueError", "Config(n=env('N', 8), m=env('M', 2))\n", 8),
    ],
)
def test_a_function_that_reads_a_variable_of_the_environment_is_followed(
    tmp_path: Path, last: str, more: str, value: int | None
) -> None:
    assert found(tmp_path, _ENV.format(last=last) + more) == value


_MODELS = """
from pydantic import BaseModel, ConfigDict, Field, field_validator

class Sizes(BaseModel):
    model_config = ConfigDict(extra="forbid")
    n: int = Field(default=8, ge=1)
    m: int = Field(4, ge=1)
    needed: int = Field(...)

class Project(BaseModel):
    sizes: Sizes = Field(default_factory=Sizes)
    n: int = 2
"""
_CONFIG = """
import yaml
from models import Project

def load(path=None):
    if path is None:
        return Project()
    return Project(**yaml.safe_load(open(path)))
"""


@pytest.mark.parametrize(
    ("text", "models", "value"),
    [
        ("from config import load\ncfg = load()\nConfig(n=cfg.sizes.n)\n", _MODELS, 8),
        ("from config import load\ncfg = load(None)\nConfig(n=cfg.sizes.m)\n", _MODELS, 4),
        ("from config import load\ncfg = load()\nConfig(n=cfg.n)\n", _MODELS, 2),
        ("from config import load\ncfg = load('mine.yaml')\nConfig(n=cfg.n)\n", _MODELS, None),
        ("from config import load\ncfg = load(given())\nConfig(n=cfg.n)\n", _MODELS, None),
        ("from config import load\ncfg = load()\nConfig(n=cfg.sizes.needed)\n", _MODELS, None),
        ("from config import load\ncfg = load()\ncfg.sizes.n = 16\nConfig(n=cfg.sizes.n)\n", _MODELS, None),
        (
            "from config import load\ncfg = load()\nConfig(n=cfg.sizes.n)\n",
            _MODELS.replace(
                "    needed", "    @field_validator('n')\n    def twice(cls, n):\n        return n * 2\n    needed"
            ),
            None,
        ),
        (
            "from config import load\ncfg = load()\nConfig(n=cfg.n)\n",
            _MODELS.replace("BaseModel", "BaseSettings"),
            None,
        ),
    ],
)
def test_a_model_of_pydantic_has_the_defaults_that_are_written(
    tmp_path: Path, text: str, models: str, value: int | None
) -> None:
    (tmp_path / "models.py").write_text(models)
    (tmp_path / "config.py").write_text(_CONFIG)
    assert found(tmp_path, text) == value


def test_a_function_whose_result_has_a_name_of_its_own_is_not_followed_into_another_file(tmp_path: Path) -> None:
    """The name may mean something else at the top of the file."""
    (tmp_path / "config.py").write_text(
        "class A:\n    n = 4\nclass B:\n    n = 8\nkind = A\n\ndef load(x):\n    kind = B\n"
        "    if x:\n        return kind()\n    return kind()\n"
    )
    assert found(tmp_path, "from config import load\ncfg = load(1)\nConfig(n=cfg.n)\n") is None


CLICK = """
import click

@click.command()
@click.option("--project", type=str, default="own")
@click.option({option})
def main(project, size):
    Config(n=size)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("option", "flags", "value"),
    [
        ('"--size", "-n", type=int, default=8, help="The size"', {}, 8),
        ('"--size", "-n", type=int, default=8, help="The size"', {"size": "4"}, 4),
        ('"--size", "-n", type=int, default=8, help="The size"', {"n": "4"}, 4),
        ('"--batch-size", "size", default=8', {"batch-size": "4"}, 4),
        ('"-s", "--size", default=8, show_default=True', {"size": "4"}, 4),
        ('"--size", type=int, required=True', {"size": "4"}, 4),
        ('"--size", type=int, required=True', {}, None),
        ('"--size", type=int, default=8, callback=check', {}, None),
        ('"--size", type=int, default=8, envvar="SIZE"', {}, None),
        ('"--size", type=click.Choice(["4"]), default=8', {"size": "4"}, None),
        ('"--size", type=int, default=given()', {}, None),
    ],
)
def test_the_options_of_click_are_parameters(
    tmp_path: Path, option: str, flags: dict[str, str], value: int | None
) -> None:
    assert found(tmp_path, CLICK.format(option=option), **flags) == value


@pytest.mark.parametrize("call", ["main(['--size', '4'])", "main.callback(1, 4)", "run(main)"])
def test_a_command_of_click_that_is_given_words_of_its_own_is_asked_about(tmp_path: Path, call: str) -> None:
    text = CLICK.format(option='"--size", type=int, default=8').replace("    main()", f"    {call}")
    assert found(tmp_path, text) is None


def test_a_function_that_something_else_decorates_too_is_asked_about(tmp_path: Path) -> None:
    text = CLICK.format(option='"--size", type=int, default=8').replace("def main", "@other\ndef main")
    assert found(tmp_path, text) is None


_SPARE = "def spare():\n    return Config(n=2, m=1)\n{more}def main():\n    Config(n=4, m=1)\nmain()\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (_SPARE.format(more=""), 4),
        (_SPARE.format(more="spare()\n"), None),
        (_SPARE.format(more="RUNS = [spare]\n"), None),
        ("@command\n" + _SPARE.format(more=""), None),
        ("def spare():\n    return Config(n=2, m=1)\n", 2),  # a console script may call it
    ],
)
def test_a_configuration_in_a_function_that_nothing_uses_is_not_the_run_s(
    tmp_path: Path, text: str, value: int | None
) -> None:
    assert found(tmp_path, text) == value
