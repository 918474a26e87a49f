"""Names of functions: what a function assigns once, and what its only call hands in; and keywords that only some releases take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.python_file import read_calls

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.launch.settings import Setting


def found(tmp_path: Path, text: str, name: str = "n") -> Setting:
    path = tmp_path / "train.py"
    path.write_text(text)
    return read_calls(path).settings[f"Config.{name}"]


@pytest.mark.parametrize(
    "text",
    [
        "def make(n, other):\n    return Config(n=n)\nn = 4\nmake(8, 3)\n",
        "def make(other, *, n):\n    return Config(n=n)\nmake(3, n=8)\n",
        "def make(n=8):\n    return Config(n=n)\nmake()\n",
        "def make():\n    n = 4\n    n = 8\n    return Config(n=n)\n",
        "def one():\n    n = 4\n\ndef make():\n    n = 8\n    return Config(n=n)\n",
        "N = 8\ndef one(N):\n    return N\n\ndef make():\n    return Config(n=N)\n",
        "def inner(n):\n    return Config(n=n * 2)\n\ndef outer(n):\n    inner(n // 2)\n\n"
        "if __name__ == '__main__':\n    n = 8\n    outer(n)\n",
        "class Mine:\n    N = 4\n    def make(self):\n        return Config(n=N)\n\nN = 8\n\ndef other(N):\n    pass\n",
    ],
)
def test_a_name_is_what_its_own_function_binds(text: str, tmp_path: Path) -> None:
    setting = found(tmp_path, text)
    assert (setting.value, setting.unknown) == (8, ())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            "def make():\n    if small():\n        n = min(8, 9)\n    else:\n        n = 8\n    return Config(n=n)\nmake()\n",
            8,
        ),
        ("if small():\n    n = 8\nelse:\n    n = 4\nConfig(n=n)\n", None),
        ("n = 8\nif small():\n    n = 8\nConfig(n=n)\n", 8),
        ("n = 8\nfor _ in range(2):\n    n += 1\nConfig(n=n)\n", None),
        ("n = 8\nfor n in sizes():\n    pass\nConfig(n=n)\n", None),
        ("def make(n):\n    if small():\n        n = 8\n    return Config(n=n)\nmake(8)\n", None),
    ],
)
def test_a_name_that_is_given_the_same_everywhere_is_that(tmp_path: Path, text: str, value: int | None) -> None:
    setting = found(tmp_path, text)
    assert (setting.value if not setting.unknown else None) == value


@pytest.mark.parametrize(
    "text",
    [
        "def make(n):\n    return Config(n=n)\nmake(8)\nmake(4)\n",
        "def make(n):\n    return Config(n=n)\nrun(make)\n",
        "def make(n):\n    return Config(n=n)\n",
        "@hydra.main()\ndef make(n):\n    return Config(n=n)\nmake(8)\n",
        "def make(n):\n    n = n + 1\n    return Config(n=n)\nmake(8)\n",
        "def make(n):\n    return Config(n=n)\nmake(*sizes)\n",
        "def make(n):\n    return Config(n=n)\nmake(**sizes)\n",
        "def make(n):\n    return Config(n=n)\nfor n in (4, 8):\n    make(n)\n",
        "def make():\n    if flag:\n        n = 8\n    return Config(n=n)\ndef other(n):\n    pass\n",
        "def make():\n    global n\n    n = 8\n\ndef other(n):\n    return Config(n=n)\nother(8)\n",
        "def make(n):\n    return Config(n=n)\ndef make(n):\n    return Config(n=n)\nmake(8)\n",
        "x = [Config(n=n) for n in (8,)]\nn = 8\n",
        "f = lambda n: Config(n=n)\nf(8)\n",
    ],
)
def test_a_name_that_the_run_binds_is_not_known(text: str, tmp_path: Path) -> None:
    assert found(tmp_path, text).unknown


FILTERS = "allowed = set(inspect.signature(Config.__init__).parameters)\nkw = dict(n=8, new=1)\n"


@pytest.mark.parametrize(
    "text",
    [
        FILTERS + "kw = {k: v for k, v in kw.items() if k in allowed}\nConfig(**kw)\n",
        FILTERS + "other = {k: v for k, v in kw.items() if k in allowed}\nConfig(**other)\n",
        FILTERS + "Config(**{k: v for k, v in kw.items() if k in Config.__dataclass_fields__})\n",
    ],
)
def test_keywords_that_a_class_may_not_take_keep_their_values(text: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    calls = read_calls(path)
    assert calls.opened == {}
    assert (calls.settings["Config.n"].value, calls.settings["Config.n"].unknown) == (8, ())
    assert "Config.n" not in calls.keywords


@pytest.mark.parametrize(
    "comprehension",
    [
        "{k: v for k, v in kw.items() if k in chosen}",
        "{k: v for k, v in kw.items() if v in allowed}",
        "{k: f(v) for k, v in kw.items() if k in allowed}",
        "{k: v for k, v in kw.items() if k in allowed and k != 'n'}",
    ],
)
def test_keywords_that_something_else_chooses_are_not_known(comprehension: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"{FILTERS}chosen = read()\nConfig(**{comprehension})\n")
    assert "Config" in read_calls(path).opened


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("kw = dict(n=4)\nkw.update(dict(n=8))\nConfig(**kw)\n", 8),
        (
            "kw = dict(n=4)\nif FAST == 1:\n    kw.update(dict(n=8))\nelse:\n    kw['n'] = 2\nFAST = 1\nConfig(**kw)\n",
            8,
        ),
        (
            "kw = dict(n=4)\nif FAST == 1:\n    kw.update(dict(n=8))\nelse:\n    kw['n'] = 2\nFAST = 0\nConfig(**kw)\n",
            2,
        ),
    ],
)
def test_changes_under_conditions_that_are_known(text: str, value: int, tmp_path: Path) -> None:
    setting = found(tmp_path, text)
    assert (setting.value, setting.unknown) == (value, ())


def test_a_change_under_a_condition_of_the_run_is_not_known(tmp_path: Path) -> None:
    assert found(tmp_path, "kw = dict(n=4)\nif fast():\n    kw.update(dict(n=8))\nConfig(**kw)\n").unknown


def test_a_file_that_a_function_is_handed_is_read(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("train: {n: 8}\n")
    text = (
        "import yaml\n\ndef load(path):\n    with open(path) as file:\n        return yaml.safe_load(file)\n\n"
        "def other():\n    cfg = 4\n\ndef train(cfg):\n    return Config(n=cfg['train']['n'])\n\n"
        "def main():\n    cfg = load('c.yaml')\n    train(cfg)\n"
    )
    path = tmp_path / "train.py"
    path.write_text(text)
    setting = read_calls(path, {}, lambda name: tmp_path / name).settings["Config.n"]
    assert (setting.value, setting.unknown) == (8, ())
