"""Things of a Python file that have several names: a change by one of them is never read past, and Python itself says the value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.launch.random_aliases import read, run, wrong

if TYPE_CHECKING:
    from pathlib import Path

START = "inner = {'n': 4, 'k': 2}\n"


@pytest.mark.parametrize(
    "text",
    [
        "out = {}\nout['a'] = inner\ninner['n'] = 8\nConfig(n=out['a']['n'])\n",
        "out = {'a': inner}\ninner['n'] = 8\nConfig(**out['a'])\n",
        "out = {'a': inner}\nout['a']['n'] = 8\nConfig(**inner)\n",
        "out = dict(a=inner)\nout['a'].update(n=8)\nConfig(n=inner['n'])\n",
        "out = {}\nout.update(a=inner)\nout['a']['n'] = 8\nConfig(**inner)\n",
        "out = {}\nout.setdefault('a', inner)['n'] = 8\nConfig(**inner)\n",
        "runs = [inner]\nruns[0]['n'] = 8\nConfig(**inner)\n",
        "runs = []\nruns.append(inner)\nfor each in runs:\n    each['n'] = 8\nConfig(**inner)\n",
        "runs = {'a': inner}\nfor key, each in runs.items():\n    each.update(n=8)\nConfig(**dict(inner))\n",
        "for each in (inner,):\n    each['n'] = 8\nConfig(**inner)\n",
        "[each.update(n=8) for each in [inner]]\nConfig(**inner)\n",
        "other = inner if inner else {}\nother['n'] = 8\nConfig(**inner)\n",
        "other = inner or {}\nother['n'] = 8\nConfig(**inner)\n",
        "first, second = inner, 3\nfirst['n'] = 8\nConfig(**inner)\n",
        "def fill(kw=inner):\n    kw['n'] = 8\nfill()\nConfig(**inner)\n",
        "def get():\n    return inner\nget()['n'] = 8\nConfig(**inner)\n",
        "def get():\n    return inner\nsame = get()\nsame['n'] = 8\nConfig(**inner)\n",
        "class Holder:\n    def __init__(self, kw):\n        kw['n'] = 8\nHolder(inner)\nConfig(**inner)\n",
        "class Holder:\n    pass\nheld = Holder()\nheld.kw = inner\nheld.kw['n'] = 8\nConfig(**inner)\n",
        "class Sizes:\n    kw = {'n': 4}\nsizes = Sizes()\nsizes.kw['n'] = 8\nConfig(n=Sizes.kw['n'])\n",
        "class Sizes:\n    n = 4\nsizes = Sizes()\nall_of = {'a': sizes}\nsetattr(all_of['a'], 'n', 8)\nConfig(n=sizes.n)\n",
        "out = {'a': inner}\nmore = dict(out)\nmore['a']['n'] = 8\nConfig(**inner)\n",
        "out = {'a': inner}\nmore = {**out}\nout['a']['n'] = 8\nConfig(n=more['a']['n'])\n",
    ],
)
def test_a_change_by_another_name_is_not_read_past(tmp_path: Path, text: str) -> None:
    assert run(START + text) == 8
    assert read(tmp_path, START + text) in (None, 8)


@pytest.mark.parametrize(
    "text",
    [
        "out = {'a': inner}\nConfig(n=out['a']['n'])\n",
        "out = {'a': inner}\nout['b'] = 8\nConfig(**inner)\n",
        "other = dict(inner)\nother['n'] = 8\nConfig(**inner)\n",
        "other = {**inner, 'n': 8}\nother['n'] = 9\nConfig(**inner)\n",
        "import copy\nother = copy.deepcopy(inner)\nother['n'] = 8\nConfig(**inner)\n",
        "other = dict(inner)\ninner['n'] = 8\nConfig(**other)\n",
        "Config(**inner)\ninner['n'] = 8\n",
        "for key, value in inner.items():\n    print(key, value)\nConfig(**inner)\n",
        "runs = [inner]\nruns.append(3)\nConfig(**inner)\n",
    ],
)
def test_what_no_other_name_changes_is_read(tmp_path: Path, text: str) -> None:
    assert run(START + text) == read(tmp_path, START + text) == 4


@pytest.mark.parametrize(
    "body",
    [
        "out = {'a': {'n': 4}}\n    one = out['a']\n    one['n'] = 8\n    return out['a']['n']",
        "one = {'n': 4}\n    out = {'a': one}\n    one['n'] = 8\n    return out['a']['n']",
        "one = {'n': 4}\n    out = []\n    out.append({'a': one})\n    one['n'] = 8\n    return out[0]['a']['n']",
        "one = {'n': 4}\n    two = one or {}\n    two['n'] = 8\n    return one['n']",
        "one = {'n': 4}\n    two = one if one else {}\n    two['n'] = 8\n    return one['n']",
    ],
)
def test_a_function_that_changes_a_thing_by_another_name(tmp_path: Path, body: str) -> None:
    for more in (
        "",
        "for each in [1]:\n        print(each)\n    ",
    ):  # with a loop, the function is followed step by step
        text = f"def size():\n    {more}{body}\nConfig(n=size())\n"
        assert run(text) == 8
        assert read(tmp_path, text) in (None, 8)


OPENED = "import yaml\ncfg = yaml.safe_load(open('sizes.yaml'))\n"
SIZES = "train: {n: 4, sub: {n: 4}}\nn: 4\n"


@pytest.mark.parametrize(
    "text",
    [
        "one = cfg['train']\ncfg['train']['n'] = 8\nConfig(n=one['n'])\n",
        "one = cfg['train']\none['n'] = 8\nConfig(n=cfg['train']['n'])\n",
        "one = cfg['train']['sub']\ncfg['train']['sub']['n'] = 8\nConfig(n=one['n'])\n",
        "one = cfg.get('train')\ncfg['train'].update(n=8)\nConfig(n=one['n'])\n",
        "for key, each in cfg.items():\n    if key == 'train':\n        each['n'] = 8\nConfig(n=cfg['train']['n'])\n",
        "def main():\n    one = cfg['train']\n    cfg['train']['n'] = 8\n    Config(n=one['n'])\nmain()\n",
    ],
)
def test_a_change_of_a_file_by_another_name_is_not_read_past(tmp_path: Path, text: str, monkeypatch: Any) -> None:
    (tmp_path / "sizes.yaml").write_text(SIZES)
    monkeypatch.chdir(tmp_path)
    assert run(OPENED + text) == 8
    assert read(tmp_path, OPENED + text) in (None, 8)


@pytest.mark.parametrize(
    "text",
    [
        "one = cfg['train']\nConfig(n=one['n'])\ncfg['train']['n'] = 8\n",
        "one = cfg['train']\ncfg['train'] = {'n': 8}\nConfig(n=one['n'])\n",
        "n = cfg['train']['n']\ncfg['train']['n'] = 8\nConfig(n=n)\n",
        "one = cfg['train']['sub']\ncfg['train']['n'] = 8\nConfig(n=one['n'])\n",
        "one = dict(cfg['train'])\ncfg['train']['n'] = 8\nConfig(n=one['n'])\n",
        "one = cfg['train']\none['m'] = 8\nConfig(n=one['n'])\n",
    ],
)
def test_what_no_other_name_changes_of_a_file_is_read(tmp_path: Path, text: str, monkeypatch: Any) -> None:
    (tmp_path / "sizes.yaml").write_text(SIZES)
    monkeypatch.chdir(tmp_path)
    assert run(OPENED + text) == read(tmp_path, OPENED + text) == 4


LOADED = """
from common import {name}
PATH = "sizes.yaml"
cfg = {name}("sizes.yaml")
one = cfg["train"]
one["m"] = 1
Config(n=one["n"])
"""
COMMON = """
import yaml
PATH = "other.yaml"

def load(path):
    with open(path) as file:
        return yaml.safe_load(file)

def load_own(path):
    return yaml.safe_load(open(PATH))

def load_changed(path):
    found = yaml.safe_load(open(path))
    found["train"]["n"] = 8
    return found
"""


@pytest.mark.parametrize(("name", "value"), [("load", 4), ("load_own", None), ("load_changed", None)])
def test_a_file_that_a_function_of_another_file_loads(tmp_path: Path, name: str, value: int | None) -> None:
    (tmp_path / "sizes.yaml").write_text(SIZES)
    (tmp_path / "other.yaml").write_text("train: {n: 8}\n")
    (tmp_path / "common.py").write_text(COMMON)
    assert read(tmp_path, LOADED.format(name=name)) == value


KEEPS = """
def keep(wanted, taken, *, owner):
    names = set(taken)
    {does}
    return {{key: value for key, value in wanted.items() if key in names}}
"""
KEPT = """
import inspect
{imports}
wanted = {{"n": 4, "new": 1}}
taken = set(inspect.signature(Config.__init__).parameters)
kw = keep(wanted, {given}, owner="Config")
Config(**kw)
"""


@pytest.mark.parametrize(
    ("does", "given", "value"),
    [
        ("print(owner)", "taken", 4),
        ("dropped = sorted(set(wanted) - names)", "inspect.signature(Config).parameters", 4),
        ("wanted['n'] = 8", "taken", None),
        ("wanted.update(n=8)", "taken", None),
        ("print(owner)", "asked()", None),
    ],
)
@pytest.mark.parametrize("is_beside", [False, True])
def test_keywords_that_a_function_filters(
    tmp_path: Path, does: str, given: str, value: int | None, is_beside: bool
) -> None:
    keeps = KEEPS.format(does=does)
    (tmp_path / "compat.py").write_text(keeps)
    text = KEPT.format(imports="from compat import keep" if is_beside else keeps, given=given)
    assert read(tmp_path, text) == value


LAST_BY_NAMES = "".join(f"v{n} = {'inner' if n == 0 else f'v{n - 1}'}\n" for n in range(40))
LAST_BY_FUNCTIONS = "def f0(kw):\n    kw['n'] = 8\n" + "".join(
    f"def f{n}(kw):\n    f{n - 1}(kw)\n" for n in range(1, 40)
)
OBJECT = (
    "class Holder:\n    def __init__(self, kw):\n        self.kw = kw\n    def set(self):\n        self.kw['n'] = 8\n"
)


@pytest.mark.parametrize(
    "text",
    [
        "b = inner\nc = b\nd = c\ne = d\ne['n'] = 8\nConfig(**inner)\n",
        f"{LAST_BY_NAMES}v39['n'] = 8\nConfig(**inner)\n",
        f"{LAST_BY_NAMES}v39['n'] = 8\nConfig(n=v20['n'])\n",
        f"{LAST_BY_FUNCTIONS}f39(inner)\nConfig(**inner)\n",
        "a = [inner]\nb = {'x': a}\nc = [b]\nd = (c,)\nd[0][0]['x'][0]['n'] = 8\nConfig(**inner)\n",
        # The change by another name comes after the last one by its own.
        "b = inner\ninner['n'] = 5\nb['n'] = 8\nConfig(**inner)\n",
        "def get():\n    inner['n'] = 8\ninner['n'] = 5\nget()\nConfig(**inner)\n",
        f"{OBJECT}held = Holder(inner)\ninner['n'] = 5\nheld.set()\nConfig(**inner)\n",
        f"{OBJECT}class Below(Holder):\n    pass\nheld = Below(inner)\nheld.set()\nConfig(**inner)\n",
        "STORE = []\ndef keep(kw):\n    STORE.append(kw)\nkeep(inner)\nSTORE[0]['n'] = 8\nConfig(**inner)\n",
        "def keep(kw):\n    global held\n    held = kw\nkeep(inner)\ninner['n'] = 5\nheld['n'] = 8\nConfig(**inner)\n",
        "def same(kw):\n    one = kw\n    return one\nv = same(inner)\nv['n'] = 8\nConfig(**inner)\n",
        "def same(kw):\n    return kw\ndef again(kw):\n    return same(kw)\nv = again(inner)\nv['n'] = 8\nConfig(**inner)\n",
    ],
)
def test_a_change_by_a_name_that_is_far_away_is_not_read_past(tmp_path: Path, text: str) -> None:
    assert run(START + text) == 8
    assert read(tmp_path, START + text) in (None, 8)


def test_a_function_of_another_file_that_gives_back_what_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "common.py").write_text("def same(kw):\n    one = kw\n    return one\n")
    text = "from common import same\ninner = {'n': 4}\nv = same(inner)\nv['n'] = 8\nConfig(**inner)\n"
    assert read(tmp_path, text) is None
    assert read(tmp_path, text.replace("v['n'] = 8\n", "")) == 4


def test_names_in_a_circle_and_functions_that_call_themselves_are_read(tmp_path: Path) -> None:
    text = "def walk(kw, depth):\n    print(kw)\n    return walk(kw, depth - 1) if depth else kw\nwalk(inner, 3)\nConfig(**inner)\n"
    assert run(START + text) == read(tmp_path, START + text) == 4
    circle = "a = inner\nfor each in range(3):\n    b = a\n    a = b\nConfig(**inner)\n"
    assert run(START + circle) == read(tmp_path, START + circle) == 4


def test_random_programs_are_never_read_wrongly(tmp_path: Path) -> None:
    texts, rightly = wrong(tmp_path, 300, 2026113016)
    assert not texts
    assert rightly > 5
