"""Members of what a function gives back: of a table of configurations, of another file, by what the call hands in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.python_file import read_calls
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import Place

if TYPE_CHECKING:
    from pathlib import Path

SIZES = """
from dataclasses import dataclass

@dataclass
class Sizes:
    batch: int = 4
    group: int = 2

SMALL = Sizes(batch=8)
TABLE = {"small": SMALL, "large": Sizes(batch=16)}

def sizes_of(name, least=1):
    \"\"\"The sizes of a name.\"\"\"
    if name not in TABLE:
        raise ValueError(name)
    assert least > 0
    return TABLE[name]
"""
MAIN = """
import argparse
from sizes import sizes_of

def train(sizes):
    return Config(n=sizes.batch, group=sizes.group)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="small")
    args = parser.parse_args()
    train(sizes_of(args.sizes))
"""


def sizes(folder: Path, main: str, other: str, flags: dict[str, object] | None = None) -> tuple[object, object]:
    """What the configuration is given as `n` and `group`; None for what is not known."""
    (folder / "sizes.py").write_text(other)
    path = folder / "train.py"
    path.write_text(main)
    found = read_calls(path, flags or {}).settings  # type: ignore[arg-type]
    n, group = found["Config.n"], found["Config.group"]
    return (None if n.unknown else n.value, None if group.unknown else group.value)


def test_members_of_what_a_function_of_another_file_gives_back(tmp_path: Path) -> None:
    assert sizes(tmp_path, MAIN, SIZES) == (8, 2)


def test_the_function_may_be_one_of_the_file(tmp_path: Path) -> None:
    assert sizes(tmp_path, SIZES + MAIN.replace("from sizes import sizes_of\n", ""), "") == (8, 2)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    return TABLE[name]", "    TABLE[name].load()\n    return TABLE[name]"),
        ("    return TABLE[name]", "    if found(name):\n        return SMALL\n    return TABLE[name]"),
        ("def sizes_of(name, least=1)", "@lru_cache\ndef sizes_of(name, least=1)"),
        ("def sizes_of(name, least=1)", "def sizes_of(name, **more)"),
        ('"large": Sizes(batch=16)}', '"large": Sizes(batch=16)}\nTABLE.update(load())'),
        ("    return TABLE[name]", "    return replace(TABLE[name], batch=32)"),
    ],
)
def test_a_function_that_may_change_what_it_gives_back_is_not_followed(tmp_path: Path, old: str, new: str) -> None:
    assert sizes(tmp_path, MAIN, SIZES.replace(old, new))[0] is None


@pytest.mark.parametrize("line", ["    sizes.batch = 2\n", "    setattr(sizes, 'batch', 2)\n"])
def test_what_the_file_changes_of_it_is_not_known(tmp_path: Path, line: str) -> None:
    assert sizes(tmp_path, MAIN.replace("    return Config", f"{line}    return Config"), SIZES)[0] is None


@pytest.mark.parametrize(
    ("function", "n"),
    [
        ("def use(sizes):\n    print(sizes.batch)\n", 8),
        ("def use(sizes):\n    sizes.batch *= 2\n", None),
        ("def use(sizes):\n    sizes.load()\n", None),
        ("from elsewhere import use\n", None),
    ],
)
def test_a_function_of_another_file_may_read_an_object_or_change_it(
    tmp_path: Path, function: str, n: int | None
) -> None:
    main = MAIN.replace("import sizes_of", "import sizes_of, use")
    main = main.replace("    return Config", "    use(sizes)\n    return Config")
    assert sizes(tmp_path, main, SIZES + function)[0] == n


FROM_FILE = """
from pathlib import Path
import yaml
from pydantic import BaseModel

class Sizes(BaseModel):
    batch: int = 4
    group: int = 2

def load(path, kind):
    return kind(**yaml.safe_load(Path(path).read_text()))
"""
LOADING = """
import argparse
from sizes import Sizes, load

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=None)
    args = parser.parse_args()
    sizes = load("sizes.yaml", Sizes)
    if args.batch:
        sizes.batch = args.batch
    return Config(n=sizes.batch, group=sizes.group)
"""


def loaded(folder: Path, main: str, flags: dict[str, object] | None = None) -> tuple[object, object]:
    """What the configuration is given as `n` and `group` where a function of another file makes an object of a YAML file."""
    (folder / "sizes.yaml").write_text("batch: 16\n")
    (folder / "sizes.py").write_text(FROM_FILE)
    path = folder / "train.py"
    path.write_text(main)
    found = read_calls(path, flags or {}, lambda name: folder / name).settings  # type: ignore[arg-type]
    n, group = found["Config.n"], found["Config.group"]
    return (None if n.unknown else n.value, None if group.unknown else group.value)


def test_a_function_of_another_file_may_be_given_the_class_of_what_it_makes(tmp_path: Path) -> None:
    assert loaded(tmp_path, LOADING) == (16, 2)


def test_what_the_launch_assigns_over_it_is_not_known(tmp_path: Path) -> None:
    given = {"batch": Setting("batch", "8", Place("the command"))}
    assert loaded(tmp_path, LOADING, given) == (None, 2)
    assert loaded(tmp_path, LOADING.replace("if args.batch:", "if found():")) == (None, 2)
    assert loaded(tmp_path, LOADING.replace('load("sizes.yaml", Sizes)', 'load("sizes.yaml", other())')) == (None, None)


PARSES = """
import argparse

def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    args = parser.parse_args()
    {more}return args

def main():
    args = get_args()
    return Config(n=args.batch, group=2)
"""


@pytest.mark.parametrize(("more", "n"), [("", 4), ("print(args)\n    ", 4), ("args = found(args)\n    ", None)])
def test_the_arguments_that_a_function_parses_under_a_name_of_its_own(tmp_path: Path, more: str, n: int | None) -> None:
    assert sizes(tmp_path, PARSES.format(more=more), "")[0] == n
