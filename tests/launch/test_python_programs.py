"""Programs of somebody's own whose sizes come by way of files, classes, functions and paths; small ones that the tests write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.python_file import read_calls
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import Place

if TYPE_CHECKING:
    from pathlib import Path

# The file that the programs open: 8 is its size, and 4 that of a group.
SIZES = "train:\n  size: 8\n  group: 4\n"
HEAD = """
import argparse, yaml
from dataclasses import dataclass
from pathlib import Path
import os
"""
ARGS = """
parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int)
parser.add_argument("--preset", default="small")
parser.add_argument("--config", type=Path, default=Path("sizes.yaml"))
args = parser.parse_args()
"""


def size(folder: Path, text: str, **flags: str) -> int | None:
    """The value of `Config(n=...)`; None where it is unknown."""
    (folder / "sizes.yaml").write_text(SIZES)
    path = folder / "train.py"
    path.write_text(HEAD + text)
    given = {name: Setting(name, value, Place("command"), name) for name, value in flags.items()}
    setting = read_calls(path, given, lambda name: folder / name).settings["Config.n"]
    value: int = setting.value
    return None if setting.unknown else value


LOAD = """
def check(found):
    if "train" not in found:
        raise ValueError(found)
    {check}

def load(path):
    with open(path) as file:
        found = yaml.safe_load(file)
    {more}
    return found

def main():
    config = load("sizes.yaml")
    {change}
    Config(n=config["train"]["size"])

main()
"""


def loads(check: str = "", more: str = "", change: str = "") -> str:
    return LOAD.format(check=check or "return", more=more or "print(found)", change=change)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (loads(more="if not isinstance(found, dict):\n        raise ValueError"), 8),
        (loads(more="assert found, path"), 8),
        (loads(more="check(found)"), 8),
        (loads(more="check(found)", check="found['train'] = {}"), None),
        (loads(more="found['train']['size'] = 2"), 2),
        (loads(more="found['train']['size'] = given()"), None),
        (loads(more="found = merge(found)"), None),
        (loads(more="path = other(path)"), None),
        (loads(more="if path:\n        return {}"), None),
    ],
)
def test_a_file_that_a_function_checks_before_it_gives_it_back(tmp_path: Path, text: str, value: int | None) -> None:
    assert size(tmp_path, text) == value


OVERRIDE = "if args.size is not None:\n        config['train']['size'] = args.size"


@pytest.mark.parametrize(
    ("change", "flags", "value"),
    [
        (OVERRIDE, {}, 8),
        (OVERRIDE, {"size": "2"}, 2),
        ("config['train']['size'] = 2", {}, 2),
        ("config['train']['group'] = given()", {}, 8),
        ("config['more'] = given()", {}, 8),
        ("config['train']['size'] = given()", {}, None),
        ("config['train'][given()] = 2", {}, None),
        ("config['train'].update(given())", {}, None),
        ("if given():\n        config['train']['size'] = 2", {}, None),
        ("for each in given():\n        config['train']['size'] = each", {}, None),
        # Whether it is set depends on what is set.
        ("if config['train']['size'] > 4:\n        config['train']['size'] = 4", {}, None),
        ("Config(n=8)\n    config['train']['size'] = 2", {}, None),
    ],
)
def test_what_a_program_sets_in_a_file_that_it_has_opened(
    tmp_path: Path, change: str, flags: dict[str, str], value: int | None
) -> None:
    assert size(tmp_path, ARGS + loads(change=change), **flags) == value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ('Path(__file__).resolve().parent / "sizes.yaml"', 8),
        ("Path(__file__).parents[0].joined", None),
        ('Path(__file__).parents[0] / "sizes.yaml"', 8),
        ('os.path.join(os.path.dirname(os.path.abspath(__file__)), "sizes.yaml")', 8),
        ('os.path.join(given(), "sizes.yaml")', None),
        ('Path(given()) / "sizes.yaml"', None),
        ("args.config", 8),
        ("args.config.expanduser().resolve()", 8),
    ],
)
def test_a_path_that_a_program_puts_together(tmp_path: Path, path: str, value: int | None) -> None:
    load = "def load(path):\n    return yaml.safe_load(Path(path).read_text())\n"
    assert (
        size(tmp_path, f"{ARGS}FILE = {path}\n{load}config = load(FILE)\nConfig(n=config['train']['size'])\n") == value
    )


CLASS = """
@dataclass
class Sizes:
    size: int = 2
    group: int = 2
    {field}

    @classmethod
    def from_file(cls, path):
        with open(path) as file:
            found = yaml.safe_load(file)
        return cls(**found["train"])

    @staticmethod
    def small():
        return Sizes(size=3)

def load(path):
    found = yaml.safe_load(open(path))
    return Sizes(**found["train"])
"""


@pytest.mark.parametrize(
    ("more", "field", "value"),
    [
        ("sizes = load('sizes.yaml')\nConfig(n=sizes.size)\n", "", 8),
        ("sizes = Sizes.from_file('sizes.yaml')\nConfig(n=sizes.size)\n", "", 8),
        ("sizes = Sizes.small()\nConfig(n=sizes.size)\n", "", 3),
        ("Config(n=Sizes.small().size)\nSizes.small()\n", "", 3),
        (
            "sizes = Sizes.from_file('sizes.yaml')\nConfig(n=sizes.size)\n",
            "def __post_init__(self):\n        self.size = 1",
            None,
        ),
        ("sizes = Sizes.from_file('sizes.yaml')\nsizes.size = given()\nConfig(n=sizes.size)\n", "", None),
        ("sizes = Sizes.from_file('sizes.yaml')\nfill(sizes)\nConfig(n=sizes.size)\n", "", None),
        ("Sizes.size = 5\nsizes = Sizes.small()\nConfig(n=sizes.size)\n", "", None),
        ("sizes = Sizes(**given())\nConfig(n=sizes.size)\n", "", None),
    ],
)
def test_an_object_that_is_made_of_a_section_of_a_file(
    tmp_path: Path, more: str, field: str, value: int | None
) -> None:
    assert size(tmp_path, CLASS.format(field=field) + more) == value


def test_an_object_that_a_function_of_a_module_makes(tmp_path: Path) -> None:
    (tmp_path / "sizes.py").write_text(HEAD + CLASS.format(field=""))
    assert size(tmp_path, "import sizes\nconfig = sizes.load('sizes.yaml')\nConfig(n=config.size)\n") == 8
    assert size(tmp_path, "from sizes import Sizes\nConfig(n=Sizes.from_file('sizes.yaml').size)\n") == 8


METHOD = """
class Trainer:
    def __init__(self, config, size=4):
        self.config = config
        self.size = size

    def train(self):
        Config(n={size})
        {more}

def main():
    config = yaml.safe_load(open("sizes.yaml"))
    trainer = Trainer(config{given})
    trainer.train()

main()
"""


@pytest.mark.parametrize(
    ("read", "given", "more", "value"),
    [
        ("self.size", "", "", 4),
        ("self.size", ", size=6", "", 6),
        ("self.size", ", 6", "", 6),
        ("self.config['train']['size']", "", "", 8),
        ("self.size", ", given()", "", None),
        ("self.size", "", "self.size = 2", None),
        ("self.size", "", "self.size += 2", None),
        ("self.size", "", "vars(self).update(given())", None),
        ("self.size", "", "change(self)", None),
        ("self.config['train']['size']", "", "self.config['train'] = {}", None),
        ("self.other", "", "", None),
    ],
)
def test_what_an_object_was_given_when_it_was_made(
    tmp_path: Path, read: str, given: str, more: str, value: int | None
) -> None:
    assert size(tmp_path, METHOD.format(size=read, given=given, more=more)) == value


def test_an_object_of_which_there_may_be_others_is_asked_about(tmp_path: Path) -> None:
    text = METHOD.format(size="self.size", given=", 6", more="")
    assert size(tmp_path, text + "Trainer({}, 8).train()\n") is None
    assert size(tmp_path, text + "class Other(Trainer):\n    pass\n") is None
    assert size(tmp_path, text.replace("class Trainer:", "class Trainer(Base):")) is None


PRESETS = "PRESETS = {'small': {'n': 8}, 'large': {'n': 16}}\n"


@pytest.mark.parametrize(
    ("text", "flags", "value"),
    [
        (PRESETS + "chosen = PRESETS[args.preset]\nConfig(n=chosen['n'])\n", {}, 8),
        (PRESETS + "chosen = PRESETS[args.preset]\nConfig(**chosen)\n", {"preset": "large"}, 16),
        (PRESETS + "PRESETS.update(given())\nchosen = PRESETS[args.preset]\nConfig(n=chosen['n'])\n", {}, None),
        (PRESETS + "chosen = PRESETS[given()]\nConfig(n=chosen['n'])\n", {}, None),
        ("def common(n):\n    return dict(n=n, m=2)\nConfig(**common(8))\n", {}, 8),
    ],
)
def test_a_mapping_that_a_key_or_a_function_chooses(
    tmp_path: Path, text: str, flags: dict[str, str], value: int | None
) -> None:
    assert size(tmp_path, ARGS + text, **flags) == value


CHANGED = """
def load(path):
    with open(path) as file:
        return yaml.safe_load(file)

def prepared(config, size=2):
    config["train"]["name"] = config["train"]["name"].replace("a", "b")
    {does}
    return config

def main():
    config = prepared(load("sizes.yaml"))
    Config(n=config["train"]["size"])
    if given():
        change(config)

main()
"""


@pytest.mark.parametrize(
    ("does", "value"),
    [
        ("pass", 8),
        ("config['train']['size'] = 3", 3),
        ("config['train']['size'] = size", 2),
        ("config['train']['group'] = given()", 8),
        ("config['train']['size'] = given()", None),
        ("if given():\n        config['train']['size'] = 3", None),
        ("config.update(given())", None),
        ("config = given()", None),
        ("if given():\n        return {}", None),
    ],
)
def test_a_file_that_a_function_changes_before_it_gives_it_back(tmp_path: Path, does: str, value: int | None) -> None:
    assert size(tmp_path, CHANGED.format(does=does)) == value


def test_a_file_whose_keys_are_numbers_is_asked_about_where_one_is_set(tmp_path: Path) -> None:
    (tmp_path / "numbers.yaml").write_text("1: 8\n2: 4\n")
    text = "config = yaml.safe_load(open('numbers.yaml'))\n{}Config(n=config[1])\n"
    assert size(tmp_path, text.format("")) == 8
    assert size(tmp_path, text.format("config[2] = 3\n")) == 8
    assert size(tmp_path, text.format("config[1] = 3\n")) is None


def test_what_another_function_changes_of_its_own_name_is_no_change(tmp_path: Path) -> None:
    other = "def other():\n    config = given()\n    config['train'] = {}\nother()\n"
    assert size(tmp_path, other + CHANGED.format(does="pass")) == 8


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("more = {}\nif args.preset == 'small':\n    more = dict(n=8)\nConfig(**more)\n", 8),
        ("more = {'n': 4}\nif args.preset == 'large':\n    more = dict(n=8)\nConfig(**more)\n", 4),
        ("more = {'n': 4}\nif given():\n    more = dict(n=8)\nConfig(**more)\n", None),
    ],
)
def test_a_mapping_that_a_condition_assigns_again(tmp_path: Path, text: str, value: int | None) -> None:
    if value is None:
        with pytest.raises(KeyError):
            size(tmp_path, ARGS + text)
        return
    assert size(tmp_path, ARGS + text) == value
