"""Python's own operations on plain values, functions within functions, and mappings that are made of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.python_file import read_calls
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

_FLAT = """
def load(path):
    import yaml
    with open(path) as file:
        raw = yaml.safe_load(file)
    def flat(section, prefix=""):
        out = {}
        for key, value in section.items():
            name = f"{prefix}{key}" if prefix else key
            if isinstance(value, dict):
                out.update(flat(value, name + "."))
            else:
                out[name] = value
        return out
    return flat(raw)
"""
_IN_A_LOOP = """
def main():
    for seed in [1, 2]:
        base = {'n': 2}
        both = {**base, 'n': 4}
        Config(**both)
main()
"""
_MERGED = """
def merged(base, over):
    out = dict(base)
    for key, value in over.items():
        if key in out and isinstance(out[key], dict) and isinstance(value, dict):
            out[key] = merged(out[key], value)
        else:
            out[key] = value
    return out
"""


def found(folder: Path, text: str) -> object:
    """The value of `Config(n=...)`; None where it is unknown."""
    path = folder / "train.py"
    path.write_text(text)
    (folder / "sizes.yaml").write_text("train: {batch: 4, deep: {steps: 12}}\nseed: 1\n")
    setting = read_calls(path, {}, lambda name: folder / name).settings["Config.n"]
    return None if setting.unknown else setting.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("import math\nROWS = 30\nConfig(n=math.ceil(ROWS / 8))\n", 4),
        ("import math\nConfig(n=math.floor(30 / 8))\n", 3),
        ("Config(n=sum([2, 3, 4]))\n", 9),
        ("Config(n=sum(each * 2 for each in [1, 2, 3] if each != 2))\n", 8),
        ("SIZES = '4,8'\nConfig(n=int(SIZES.split(',')[1]))\n", 8),
        ("NAME = 'run-4'\nConfig(n=4 if NAME.startswith('run') else 2)\n", 4),
        ("SIZES = {f'size{each}': each for each in [2, 4]}\nConfig(n=SIZES['size4'])\n", 4),
        ("def pick(value):\n    return 4 if isinstance(value, (int, float)) else 2\nConfig(n=pick(8))\npick('a')\n", 4),
        ("def pick(value):\n    return 4 if isinstance(value, list) else 2\nConfig(n=pick([8]))\npick('a')\n", None),
        ("BASE = {'n': 2, 'm': 3}\nOVER = {'n': 4}\nBOTH = {**BASE, **OVER}\nConfig(**BOTH)\n", 4),
        ("BASE = {'n': 2, 'm': 3}\nBOTH = {'n': 4, **BASE}\nConfig(**BOTH)\n", 2),
        ("MORE = {'n': 4}\nkw = dict(n=2, m=3)\nkw.update(MORE)\nConfig(**kw)\n", 4),
        ("MORE = {'n': 4}\nkw = dict(n=2, m=3)\nkw.update(MORE)\nkw['n'] = 6\nConfig(**kw)\n", 6),
        ("MORE = {'n': 4}\nkw = dict(n=2, m=3)\nConfig(**kw)\nkw.update(MORE)\n", 2),
        ("MORE = {'n': 4}\nMORE['n'] = given()\nkw = dict(n=2, m=3)\nkw.update(MORE)\nConfig(**kw)\n", None),
        (_FLAT + "CFG = load('sizes.yaml')\nConfig(n=CFG['train.deep.steps'])\n", 12),
        (_FLAT + "Config(n=load('sizes.yaml')['train.batch'])\n", 4),
        (
            _MERGED
            + "CFG = merged({'a': {'n': 2, 'm': 3}}, {'a': {'n': 4}})\nConfig(n=CFG['a']['n'], m=CFG['a']['m'])\n",
            4,
        ),
        (
            _MERGED
            + "CFG = merged({'b': {'m': 1}, 'a': {'n': 2}}, {'b': {'m': 3}, 'a': {'n': 4}})\nConfig(n=CFG['a']['n'])\n",
            4,
        ),
    ],
)
def test_operations_on_plain_values_are_python_s_own(tmp_path: Path, text: str, value: object) -> None:
    assert found(tmp_path, text) == value


def test_pairs_that_only_the_run_adds_hide_what_a_mapping_holds(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "MORE = {'n': 4}\nkw = dict(n=2)\nif given():\n    kw.update(MORE)\nConfig(**kw)\n"
    )
    assert "Config" in read_calls(tmp_path / "train.py").opened


def test_a_function_of_the_file_s_own_is_meant_before_a_builtin(tmp_path: Path) -> None:
    assert found(tmp_path, "def sum(numbers):\n    return 7\nConfig(n=sum([2, 3]))\n") == 7


@pytest.mark.parametrize(
    "body",
    [
        "    for part in sizes.values():\n        part['n'] = 8\n    return sizes\n",  # the parts are changed in the whole
        "    inner = {'n': 2}\n    out = {}\n    out['a'] = inner\n    inner['n'] = 8\n    return out\n",
        "    inner = {'n': 2}\n    out = {}\n    out['a'] = inner\n    inner.update({'n': 8})\n    return out\n",
        "    out = {'a': {'n': 2}}\n    out['a']['n'] = unknown()\n    return out\n",
    ],
)
def test_a_part_that_has_another_name_too_is_not_known_after_a_change(tmp_path: Path, body: str) -> None:
    text = f"def pick(sizes):\n    if not sizes:\n        return sizes\n{body}Config(n=pick({{'a': {{'n': 4}}}})['a']['n'])\n"
    assert found(tmp_path, text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("for seed in [1, 2]:\n    size = 4\n    Config(n=size, seed=seed)\n", 4),
        ("if flag():\n    size = 4\n    Config(n=size)\n", 4),
        ("for seed in [1, 2]:\n    Config(n=size)\n    size = 4\n", None),
        ("if flag():\n    size = 4\nConfig(n=size)\n", None),
        (
            _IN_A_LOOP,
            4,
        ),
    ],
)
def test_a_name_of_a_block_is_what_was_assigned_earlier_in_it(tmp_path: Path, text: str, value: object) -> None:
    assert found(tmp_path, "def flag():\n    return unknown()\n" + text) == value


PROGRAM = (
    _FLAT.replace("out[name] = value", "out[name] = str(value)")
    + """
import subprocess, sys
def command(base, own):
    whole = {**base, **own}
    words = [f"{key}={value}" for key, value in whole.items()]
    return [sys.executable, "-m", "verl.trainer.main_ppo"] + words
def main():
    base = load("verl.yaml")
    for name in ["a", "b"]:
        own = {"trainer.experiment_name": f"run_{name}", "data.train_batch_size": 32}
        subprocess.run(command(base, own))
main()
"""
)


def test_a_program_that_makes_verl_s_command_of_a_flattened_file_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "start.py").write_text(PROGRAM)
    (tmp_path / "verl.yaml").write_text(
        "algorithm: {adv_estimator: grpo}\ndata: {train_batch_size: 64}\n"
        "actor_rollout_ref: {rollout: {n: 4}, actor: {ppo_mini_batch_size: 16, ppo_micro_batch_size_per_gpu: 4}}\n"
        "trainer: {n_gpus_per_node: 2, total_training_steps: 5}\n"
    )
    schedule = plan_launch(["python", "start.py"], Options(rows=1000)).schedule
    assert schedule is not None
    # The own setting of 32 prompts comes behind that of the file: 128 samples, two updates of 16 prompts x 4 samples.
    assert (schedule.samples_per_rollout, schedule.samples_per_update, schedule.rollouts) == (128, 64, 5)


_TWO = """
import inspect
def one():
    kw = dict(n=4, m=2)
    taken = inspect.signature(Config.__init__).parameters
    {first}
    Config(**kw)
def other():
    kw = dict(n=8)
    {second}
    Other(**kw)
one()
"""


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [
        ("pass", "kw['n'] = given()", 4),  # a name of another function
        ("kw['n'] = given()", "pass", None),
        ("def later():\n        kw['n'] = given()", "pass", None),  # a function within it has the same one
        ("if 'n' in taken:\n        kw['n'] = 6", "pass", 6),  # left out where the class does not take it
        ("if 'm' in taken:\n        kw['n'] = 6", "pass", None),
        ("if 'n' in taken:\n        kw['n'] = 6\n    else:\n        kw['m'] = 1", "pass", None),
    ],
)
def test_what_a_function_changes_of_its_own_mapping_alone_counts(
    tmp_path: Path, first: str, second: str, value: object
) -> None:
    assert found(tmp_path, _TWO.format(first=first, second=second)) == value
