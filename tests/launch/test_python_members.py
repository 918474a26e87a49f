"""Sizes that a Python file keeps in its own dicts, classes and objects, or in a file beside it."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError, UnknownValueError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.schedule import Schedule

TRL = "from trl import GRPOConfig, GRPOTrainer\n"
MADE = "args = GRPOConfig(per_device_train_batch_size=8, num_generations={size})\nGRPOTrainer(args=args)\n"
DATACLASS = "from dataclasses import dataclass, field\n@dataclass\nclass Sizes:\n    own: int = field(default=4)\n    other: int = 2\n"
PLAIN = "class Sizes:\n    own = 4\n    other = own * 2\n"
MADE_BY_INIT = "class Sizes:\n    def __init__(self):\n        self.own = 4\n        self.device = find()\n"


def planned(folder: Path, text: str, *, more: str = "", **files: str) -> Plan:
    (folder / ".git").mkdir(exist_ok=True)
    for name, content in {**files, "train": text}.items():
        (folder / f"{name}.py").write_text(content)
    return plan_launch(["python", str(folder / "train.py"), *more.split()], Options(rows=1_000))


def schedule(folder: Path, text: str, *, more: str = "", **files: str) -> Schedule:
    plan = planned(folder, text, more=more, **files)
    assert plan.schedule is not None, plan.findings
    return plan.schedule


@pytest.mark.parametrize(
    ("before", "size"),
    [
        ("sizes = {'own': 4, 'rate': rate(), 'rate': 1}\n", "sizes['own']"),
        ("sizes = dict(own=4, rate=rate())\n", "sizes['own']"),
        ("sizes = {'own': 8}\nsizes['own'] = 4\n", "sizes['own']"),
        ("sizes = {'own': 8}\nsizes.update(own=4)\n", "sizes.get('own', 2)"),
        ("sizes = {'other': 8}\n", "sizes.get('own', 4)"),
        (PLAIN, "Sizes.own"),
        (PLAIN, "Sizes.other // 2"),
        (PLAIN, "Sizes().own"),
        (PLAIN + "class More(Sizes):\n    rate = 1\nsizes = More()\n", "sizes.own"),
        (DATACLASS, "Sizes.other * 2"),
        (DATACLASS + "sizes = Sizes()\n", "sizes.own"),
        (DATACLASS + "sizes = Sizes(own=8, other=4)\n", "sizes.other"),
        (MADE_BY_INIT + "sizes = Sizes()\n", "sizes.own"),
        ("cfg = {'train': {'own': 4}, 'rate': rate()}\n", "cfg['train']['own']"),
        ("cfg = {'train': dict(own=4)}\n", "cfg.get('train', {}).get('own', 8)"),
        (
            DATACLASS + "@dataclass\nclass Run:\n    sizes: Sizes = field(default_factory=Sizes)\nrun = Run()\n",
            "run.sizes.own",
        ),
        (DATACLASS + "class Run:\n    sizes = Sizes(other=4)\n", "Run.sizes.other"),
        (PLAIN + "sizes = Sizes()\nprint(sizes)\nlog.info(sizes.own)\n", "sizes.own"),
    ],
)
def test_members_that_are_written_out_are_read(tmp_path: Path, before: str, size: str) -> None:
    assert schedule(tmp_path, TRL + before + MADE.format(size=size)).samples_per_prompt == 4


def test_an_object_that_the_only_call_hands_in_is_read(tmp_path: Path) -> None:
    train = "def train(cfg):\n" + textwrap.indent(MADE.format(size="cfg.own"), "    ")
    assert schedule(tmp_path, TRL + DATACLASS + train + "train(Sizes())\n").samples_per_prompt == 4


@pytest.mark.parametrize(
    ("before", "size"),
    [
        ("sizes = {'own': size()}\n", "sizes['own']"),
        ("sizes = {'own': 4}\nif given():\n    sizes['own'] = 8\n", "sizes['own']"),
        ("sizes = {'own': 4}\nsizes.update(base())\n", "sizes['own']"),
        ("sizes = {'other': 4}\n", "sizes['own']"),
        ("cfg = {'train': {'own': 4}}\ncfg['train']['own'] = given()\n", "cfg['train']['own']"),
        (DATACLASS + "class Run:\n    sizes = Sizes()\nRun.sizes.own = 8\n", "Run.sizes.own"),
        (DATACLASS + "class Run:\n    sizes = Sizes()\nRun.sizes = given()\n", "Run.sizes.own"),
        (PLAIN + "Sizes.own = given()\n", "Sizes.own"),
        (PLAIN + "sizes = Sizes()\nsizes.own = given()\n", "sizes.own"),
        (PLAIN + "sizes = Sizes()\nrun.sizes = sizes\nrun.sizes.own = 8\n", "sizes.own"),
        (PLAIN + "sizes = Sizes()\nsetattr(sizes, name(), 8)\n", "sizes.own"),
        (PLAIN + "sizes = Sizes()\nsizes.__dict__.update(given())\n", "sizes.own"),
        (PLAIN + "sizes = Sizes()\nsizes.load('sizes.json')\n", "sizes.own"),
        (PLAIN + "from other import fill\nsizes = Sizes()\nfill(sizes)\n", "sizes.own"),
        (PLAIN + "sizes = Sizes(**given())\n", "sizes.own"),
        (PLAIN.replace("Sizes:", "Sizes(BaseSettings):"), "Sizes().own"),
        (PLAIN.replace("Sizes:", "Sizes(settings.Base):"), "Sizes.own"),
        ("@reads_flags\n" + PLAIN, "Sizes().own"),
        ("class Sizes:\n    own = 4\n    if given():\n        own = 8\n", "Sizes.own"),
        (DATACLASS + "    def __post_init__(self):\n        self.own = given()\n", "Sizes().own"),
        (MADE_BY_INIT + "    def grow(self):\n        self.own = 8\n", "Sizes().own"),
        ("class Sizes:\n    own = 4\n    def __init__(self):\n        vars(self).update(given())\n", "Sizes().own"),
        ("class Sizes:\n    def __init__(self, own=4):\n        self.own = own\n", "Sizes(given()).own"),
    ],
)
def test_members_that_only_the_run_knows_are_asked_about(tmp_path: Path, before: str, size: str) -> None:
    with pytest.raises(UnknownValueError, match="num_generations cannot be known"):
        planned(tmp_path, TRL + before + MADE.format(size=size))


@pytest.mark.parametrize(
    ("config", "imports", "size"),
    [
        ("SIZE = 4\n", "from config import SIZE\n", "SIZE"),
        ("SIZE: int = 2 * 2\n", "from config import SIZE as own\n", "own"),
        ("SIZE = 4\n", "import config\n", "config.SIZE"),
        ("SIZE = 4\n", "import config as c\n", "c.SIZE"),
        ("SIZES = {'own': 4, 'rate': rate()}\n", "from config import SIZES\n", "SIZES['own']"),
        ("SIZES = {'own': 8}\nSIZES['own'] = 4\n", "from config import SIZES\n", "SIZES['own']"),
        ("SIZES = {'own': 4}\n", "import config\n", "config.SIZES['own']"),
        (PLAIN, "from config import Sizes\n", "Sizes.own"),
        (DATACLASS, "from config import Sizes\nsizes = Sizes()\n", "Sizes().own"),
        (DATACLASS + "sizes = Sizes()\n", "from config import sizes\n", "sizes.own"),
        ("from further import SIZE\n", "from config import SIZE\n", "SIZE"),
        ("from further import (\n    OTHER,\n    SIZE,\n)\n", "from config import SIZE\n", "SIZE"),
        ("import os\nSIZE = int(os.environ.get('SIZE', '4'))\n", "from config import SIZE\n", "SIZE"),
    ],
)
def test_values_of_a_file_beside_it_are_read(tmp_path: Path, config: str, imports: str, size: str) -> None:
    text = TRL + imports + MADE.format(size=size)
    assert schedule(tmp_path, text, config=config, further="SIZE = 4\n").samples_per_prompt == 4


def test_a_mapping_of_a_file_beside_it_is_given_to_a_call(tmp_path: Path) -> None:
    config = "KW = {'num_generations': 4, 'per_device_train_batch_size': 8, 'output_dir': place()}\n"
    text = TRL + "from config import KW\nargs = GRPOConfig(**KW)\nGRPOTrainer(args=args)\n"
    assert schedule(tmp_path, text, config=config).samples_per_prompt == 4
    with pytest.raises(UnknownValueError, match=r"num_generations cannot be known: .* config.py:1, which"):
        planned(tmp_path, text, config=config.replace("4", "size()"))


@pytest.mark.parametrize(
    ("config", "more"),
    [
        ("SIZE = size()\n", ""),
        ("if given():\n    SIZE = 4\n", ""),
        ("SIZE = 4\nSIZE += 8\n", ""),
        ("def SIZE():\n    return 4\n", ""),
        ("SIZE = 4\n", "SIZE = given()\n"),
        ("", ""),
    ],
)
def test_values_that_the_other_file_does_not_say_are_asked_about(tmp_path: Path, config: str, more: str) -> None:
    with pytest.raises(UnknownValueError, match="num_generations cannot be known"):
        planned(tmp_path, TRL + "from config import SIZE\n" + more + MADE.format(size="SIZE"), config=config)


def test_a_file_beside_it_that_this_one_changes_is_asked_about(tmp_path: Path) -> None:
    text = TRL + "import config\nconfig.SIZE = given()\n" + MADE.format(size="config.SIZE")
    with pytest.raises(UnknownValueError, match="num_generations cannot be known"):
        planned(tmp_path, text, config="SIZE = 4\n")


def test_flags_reach_the_parser_of_a_file_beside_it(tmp_path: Path) -> None:
    config = (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--size', type=int, default=8)\n"
        "args = parser.parse_args()\nSIZE = args.size\n"
    )
    text = TRL + "from config import SIZE\n" + MADE.format(size="SIZE")
    assert schedule(tmp_path, text, config=config, more="--size 4").samples_per_prompt == 4


@pytest.mark.parametrize(
    ("given", "samples"),
    [
        ("{'num_generations': 4} if True else {}", 4),
        ("{'bf16': True, 'num_generations': 4} if given() else {'num_generations': 4}", 4),
        ("{'bf16': True} if given() else {}", 8),
    ],
)
def test_a_mapping_that_a_condition_chooses(tmp_path: Path, given: str, samples: int) -> None:
    text = TRL + f"args = GRPOConfig(per_device_train_batch_size=8, **({given}))\nGRPOTrainer(args=args)\n"
    assert schedule(tmp_path, text).samples_per_prompt == samples


@pytest.mark.parametrize("other", ["{}", "{'num_generations': 8}", "base()"])
def test_a_mapping_that_only_the_run_chooses_is_asked_about(tmp_path: Path, other: str) -> None:
    text = TRL + f"args = GRPOConfig(**({{'num_generations': 4}} if given() else {other}))\nGRPOTrainer(args=args)\n"
    with pytest.raises(LaunchError, match=r"given\(\) decides in the run|which is known only in the run"):
        planned(tmp_path, text)


FIRED = (
    "import {library}\n{trl}def main(size={default}, other: int = 3):\n"
    "    args = GRPOConfig(per_device_train_batch_size=8, num_generations=size)\n    GRPOTrainer(args=args)\n"
    'if __name__ == "__main__":\n    {runs}(main)\n'
)


@pytest.mark.parametrize(
    ("runs", "default", "more", "samples"),
    [
        ("fire.Fire", "4", "", 4),
        ("fire.Fire", "8", "--size 4", 4),
        ("fire.Fire", "8", "--size=4 --other=5", 4),
        ("tyro.cli", "8", "--size 4", 4),
        ("typer.run", "typer.Option(4, help='x')", "", 4),
    ],
)
def test_parameters_of_a_function_that_a_library_calls_are_flags(
    tmp_path: Path, runs: str, default: str, more: str, samples: int
) -> None:
    text = FIRED.format(library=runs.partition(".")[0], trl=TRL, default=default, runs=runs)
    assert schedule(tmp_path, text, more=more).samples_per_prompt == samples


@pytest.mark.parametrize(
    ("runs", "default", "more"),
    [("fire.Fire", "size()", ""), ("ray.remote", "4", ""), ("fire.Fire", "8", "4"), ("fire.Fire", "8", "-s 4")],
)
def test_parameters_that_something_else_may_give_are_asked_about(
    tmp_path: Path, runs: str, default: str, more: str
) -> None:
    text = FIRED.format(library=runs.partition(".")[0], trl=TRL, default=default, runs=runs)
    with pytest.raises(UnknownValueError, match="num_generations cannot be known"):
        planned(tmp_path, text, more=more)


def test_of_two_files_of_one_name_none_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (tmp_path / "config.py").write_text("SIZE = 8\n")
    text = TRL + "from config import SIZE\n" + MADE.format(size="SIZE")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownValueError, match="num_generations cannot be known"):
        planned(folder, text, config="SIZE = 4\n")
    monkeypatch.chdir(folder)
    assert schedule(folder, text, config="SIZE = 4\n").samples_per_prompt == 4


LOADS = """
import os
import yaml
def load(path):
    found = {'own': 4, 'rate': rate()}
    if path and os.path.exists(path):
        found.update(yaml.safe_load(open(path)))
    return found
def prepare(config):
    return config['rate']
"""
READS = """
def main():
    args = parser.parse_args()
    config = load(args.sizes)
    if args.rate:
        config['rate'] = args.rate
    prepare(config)
    GRPOTrainer(args=GRPOConfig(per_device_train_batch_size=8, num_generations=config['own']))
main()
"""
PARSER = (
    "import argparse\nparser = argparse.ArgumentParser()\n"
    "parser.add_argument('--sizes', default=None)\nparser.add_argument('--rate', default=None)\n"
)


def test_a_mapping_that_a_function_of_the_file_gives_back(tmp_path: Path) -> None:
    assert schedule(tmp_path, TRL + PARSER + LOADS + READS).samples_per_prompt == 4


@pytest.mark.parametrize(
    ("old", "new", "more"),
    [
        ("def load", "def load", "--sizes some"),
        ("    return found", "    fill(found)\n    return found", ""),
        ("    return config['rate']", "    config['own'] = 2", ""),
        ("    return found", "    if given():\n        return {}\n    return found", ""),
    ],
)
def test_what_a_function_gives_back_only_in_the_run_is_asked_about(
    tmp_path: Path, old: str, new: str, more: str
) -> None:
    text = TRL + PARSER + LOADS.replace(old, new) + READS
    with pytest.raises(UnknownValueError, match="num_generations cannot be known"):
        schedule(tmp_path, text, more=more)


COPIES = (
    "import argparse\n"
    + TRL
    + DATACLASS
    + """
def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument('--own', type=int, default=8)
    parser.add_argument('--other', type=int, default=2)
    {returns}
sizes = parse()
"""
)


@pytest.mark.parametrize(("more", "size"), [("", 8), ("--own 4", 4)])
def test_an_object_that_is_made_of_the_parsed_arguments(tmp_path: Path, more: str, size: int) -> None:
    text = COPIES.format(returns="return Sizes(**vars(parser.parse_args()))") + MADE.format(size="sizes.own")
    assert schedule(tmp_path, text, more=more).samples_per_prompt == size


@pytest.mark.parametrize(
    ("returns", "changed"),
    [
        ("args = parser.parse_args()\n    args.own = count()\n    return Sizes(**vars(args))", ""),
        (
            "return Sizes(**vars(parser.parse_args()))",
            "    other: int = 2\n    def __post_init__(self):\n        self.own = 2\n",
        ),
    ],
)
def test_an_object_that_may_change_the_parsed_arguments_is_asked_about(
    tmp_path: Path, returns: str, changed: str
) -> None:
    text = COPIES.format(returns=returns).replace("    other: int = 2\n", changed or "    other: int = 2\n")
    with pytest.raises(UnknownValueError, match="num_generations cannot be known"):
        schedule(tmp_path, text + MADE.format(size="sizes.own"))
