"""Python files as launches: assignments, conditions, helpers, classes of other packages; what cannot be known is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.python_file import read_calls
from rlstep_hooks.launch.text import LaunchError, UnknownValueError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.schedule import Schedule

TRL = "from trl import GRPOConfig, GRPOTrainer\n"
PARSED = (
    "from trl import GRPOConfig, GRPOTrainer, TrlParser\n"
    "script_args, training_args, model_args = TrlParser((A, GRPOConfig, M)).parse_args_and_config()\n"
)


def planned(folder: Path, text: str, more: str = "") -> Plan:
    path = folder / "train.py"
    path.write_text(text)
    return plan_launch(["python", str(path), *more.split()], Options(rows=1_000))


def schedule(folder: Path, text: str, more: str = "") -> Schedule:
    plan = planned(folder, text, more)
    assert plan.schedule is not None, plan.findings
    return plan.schedule


# What is known.


def test_what_is_assigned_holds_over_the_call(tmp_path: Path) -> None:
    text = TRL + (
        "args = GRPOConfig(output_dir='o', num_generations=8, per_device_train_batch_size=8)\n"
        "args.num_generations = 4\nargs.max_steps = 20\nargs.max_steps = 40\n"
        "setattr(args, 'num_iterations', 2)\nGRPOTrainer(args=args)\n"
    )
    found = schedule(tmp_path, text)
    assert (found.samples_per_prompt, found.updates, found.reuse_epochs) == (4, 40, 2)


def test_what_is_assigned_holds_over_the_flags(tmp_path: Path) -> None:
    text = PARSED + "training_args.num_generations = 4\nscript_args.name = 'x'\nGRPOTrainer(args=training_args)\n"
    found = schedule(tmp_path, text, "--num_generations 8 --max_steps 10")
    assert (found.samples_per_prompt, found.updates) == (4, 10)


def test_a_function_of_the_file_makes_the_configuration(tmp_path: Path) -> None:
    text = TRL + (
        "def configuration(name):\n    return GRPOConfig(output_dir=name, num_generations=8)\n"
        "def main():\n    args = configuration('o')\n    args.num_generations = 4\n    GRPOTrainer(args=args)\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    assert schedule(tmp_path, text).samples_per_prompt == 4


@pytest.mark.parametrize(
    ("value", "generations"),
    [
        ("2 if DEBUG else 4", 4),
        ("4 if not DEBUG else 2", 4),
        ("4 if SIZE == 'small' else 8", 4),
        ("4 if SIZE in ('small', 'tiny') and not DEBUG else 8", 4),
        ("N * 2 if N > 1 else 8", 4),
        ("max(N, 4)", 4),
        ("min(16, 8) % 6 + N", 4),
    ],
)
def test_conditions_on_known_names(value: str, generations: int, tmp_path: Path) -> None:
    text = (
        TRL
        + f"DEBUG = False\nSIZE = 'small'\nN = 2\nargs = GRPOConfig(num_generations={value})\nGRPOTrainer(args=args)\n"
    )
    assert schedule(tmp_path, text).samples_per_prompt == generations


# What is not.


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("args = GRPOConfig(num_generations=4 if DEBUG else 8)\n", "num_generations cannot be known"),
        ("if flag:\n    N = 4\nargs = GRPOConfig(num_generations=N)\n", "num_generations cannot be known"),
        (
            "def f(N):\n    return GRPOConfig(num_generations=N)\nN = 4\nargs = f(8)\nother = f(4)\n",
            "num_generations cannot be known",
        ),
        ("N, M = 4, 8\nN2 = 4\nfor N in (1, 2):\n    pass\nargs = GRPOConfig(num_generations=N)\n", "cannot be known"),
        ("args = GRPOConfig()\nif flag:\n    args.num_generations = 4\n", "assigned only in some runs"),
        ("args = GRPOConfig()\nargs.num_generations *= 2\n", "changed in place"),
        ("args = GRPOConfig()\nargs.num_generations = len(rewards)\n", "it is written as len"),
        (
            "if flag:\n    args = GRPOConfig(num_generations=4)\nelse:\n    args = GRPOConfig(num_generations=8)\n",
            "it is written as 4 in line 3 too",
        ),
        (
            "a = GRPOConfig(output_dir='o')\nb = GRPOConfig(output_dir='o', num_generations=4)\n",
            "is called 2 times, and only some give it",
        ),
        ("args = GRPOConfig(**settings)\n", r"GRPOConfig is given \*\*settings"),
    ],
)
def test_what_only_the_run_decides_is_not_planned(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=reason):
        planned(tmp_path, TRL + text + "GRPOTrainer(args=args)\n")


@pytest.mark.parametrize(
    "text",
    [
        "import mine as m\nargs = m.grpo_defaults(run_name='x')\nargs.num_generations = 4\nm.GRPOTrainer(args=args)\n",
        "from mine import GRPOTrainer\ntrainer = GRPOTrainer(args=None)\n",
        "from .trainer import GRPOTrainer\ntrainer = GRPOTrainer(args=None)\n",
    ],
)
def test_a_trainer_of_another_package_is_not_trl(text: str, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"GRPOTrainer of (mine|a file beside it): a trainer that is not known"):
        planned(tmp_path, text)


@pytest.mark.parametrize("trainer", ["OnlineDPO", "NashMD", "XPO", "SFT", "DPO"])
def test_trls_trainers_that_are_not_planned_are_named(trainer: str, tmp_path: Path) -> None:
    text = (
        f"from trl import {trainer}Config, {trainer}Trainer\n{trainer}Trainer(args={trainer}Config(output_dir='o'))\n"
    )
    with pytest.raises(LaunchError, match=f"{trainer}Trainer of trl: a trainer that is not known here"):
        planned(tmp_path, text)


# trlX.


def test_the_configuration_that_trlx_makes(tmp_path: Path) -> None:
    text = (
        "import trlx\nfrom trlx.data.default_configs import TRLConfig, default_ppo_config\n"
        "config = default_ppo_config()\nconfig.method.num_rollouts = 256\ntrlx.train(config=config)\n"
    )
    found = schedule(tmp_path, text)
    # trlx/data/default_configs.py 3340c2f: chunks of 128, 4 passes in batches of 32, 100 rollouts or 10 000 updates.
    assert (found.samples_per_rollout, found.updates_per_rollout, found.updates) == (256, 32, 3_200)


def test_a_part_of_the_configuration_is_changed(tmp_path: Path) -> None:
    text = (
        "import trlx\nfrom trlx.data.default_configs import default_ppo_config\n"
        "config = default_ppo_config().evolve(train=dict(batch_size=64, total_steps=40), method={'ppo_epochs': 2})\n"
        "trlx.train(config=config)\n"
    )
    found = schedule(tmp_path, text)
    assert (found.samples_per_update, found.updates_per_rollout, found.updates) == (64, 4, 40)
    other = text.replace("batch_size=64", "trainer='NeMoPPOTrainer'")
    with pytest.raises(LaunchError, match="only AcceleratePPOTrainer is read"):
        planned(tmp_path, other)


def test_hyperparameters_that_are_merged(tmp_path: Path) -> None:
    text = (
        "import trlx\nfrom trlx.data.default_configs import TRLConfig, default_ppo_config\n"
        "def main(hparams={}):\n    config = TRLConfig.update(default_ppo_config().to_dict(), hparams)\n"
        "    trlx.train(config=config)\nmain(given())\n"
    )
    plan = planned(tmp_path, text)
    assert plan.schedule is not None
    assert plan.schedule.updates_per_rollout == 16
    assert any(note.kind == "assumes" and note.text.startswith("given()") for note in plan.notes)
    known = schedule(tmp_path, text.replace(", hparams)", ", {'train.batch_size': 64})"))
    assert known.updates_per_rollout == 8


OWN_OPTIONS = """
import argparse
from trl import GRPOConfig, GRPOTrainer
def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", "-b", type=int, default=8)
    parser.add_argument("--num-generations", type=int, default=4)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--lots", "--accumulated", type=int, dest="parts", default=1)
    parser.add_argument("--rate", type=as_rate, default=1e-6)
    parser.add_argument("--twice", action="store_true")
    return parser.parse_args()
args = parse_args()
config = GRPOConfig(
    per_device_train_batch_size=args.batch, num_generations=args.num_generations * 2,
    gradient_accumulation_steps=2 if args.twice else args.parts, max_steps=args.steps, learning_rate=args.rate,
)
GRPOTrainer(args=config).train()
"""


@pytest.mark.parametrize(
    ("flags", "prompts", "samples", "updates"),
    [
        ("--steps 10", 1, 8, 10),
        ("--steps=20 --batch 32", 4, 8, 20),
        ("--steps 10 --num-generations 2", 2, 4, 10),  # it reaches TRL doubled
        ("--steps 10 --twice", 2, 8, 10),
        ("--steps 10 --accumulated 3", 3, 8, 10),
        ("--steps 10 --lots 3", 3, 8, 10),
    ],
)
def test_options_of_the_files_own(tmp_path: Path, flags: str, prompts: int, samples: int, updates: int) -> None:
    (tmp_path / "train.py").write_text(OWN_OPTIONS)
    found = plan_launch(["python", str(tmp_path / "train.py"), *flags.split()], Options()).schedule
    assert found is not None
    assert (found.prompts_per_rollout, found.samples_per_prompt, found.updates) == (prompts, samples, updates)


@pytest.mark.parametrize(
    ("old", "new", "flags"),
    [
        ("", "", ""),  # required, and not given
        ("", "", "--steps ten"),
        ("", "", "--steps $N"),
        ("", "", "--steps 10 --lots 3 --accumulated 2"),
        ("type=int, required", "type=as_steps, required", "--steps 10"),
        ("args = parse_args()", "args = parse_args()\nargs.steps = count()", "--steps 10"),
        (
            'add_argument("--twice"',
            'add_argument("--steps", type=int)\n    parser.add_argument("--twice"',
            "--steps 10",
        ),
        ("args = parse_args()", "args = read()", "--steps 10"),
    ],
)
def test_options_that_cannot_be_known(tmp_path: Path, old: str, new: str, flags: str) -> None:
    (tmp_path / "train.py").write_text(OWN_OPTIONS.replace(old, new) if old else OWN_OPTIONS)
    with pytest.raises(UnknownValueError, match=r"cannot be known"):
        plan_launch([f"python {tmp_path / 'train.py'} {flags}"], Options())


# The reading itself.


def test_imports_tell_where_a_callee_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import a.b as c\nimport d.e\nfrom f.g import H as I\nc.X()\nd.e.Y()\nI()\nz.W()\n")
    calls = read_calls(path)
    assert calls.packages == {"I": "f", "X": "a", "Y": "d"}
    assert calls.callees == {"X", "Y", "I", "W"}


# What a mapping contains where a call is given it.

MADE = "args = GRPOConfig(**kw)\nGRPOTrainer(args=args)\n"


@pytest.mark.parametrize(
    "change",
    [
        "kw['num_generations'] = 4\n",
        "kw.update({'num_generations': 4})\n",
        "kw.update(num_generations=4)\n",
        "kw.pop('num_generations')\nkw.setdefault('num_generations', 4)\n",
        "kw.setdefault('num_generations', 2)\nkw['num_generations'] = 4\n",
        "if given():\n    kw['num_generations'] = 2\nkw['num_generations'] = 4\n",
        "kw['num_generations'] = 4\nprint(kw, kw.get('num_generations'), len(kw))\nlog.info(kw)\n",
        "def shown(values):\n    return values['num_generations']\nkw['num_generations'] = 4\nshown(kw)\n",
        "if given():\n    kw['bf16'] = True\nkw['num_generations'] = 4\n",
    ],
)
def test_changes_of_a_mapping_are_followed(change: str, tmp_path: Path) -> None:
    text = TRL + "kw = {'num_generations': 8, 'per_device_train_batch_size': 8}\n" + change + MADE
    assert schedule(tmp_path, text).samples_per_prompt == 4


def test_what_is_changed_after_the_call_changes_nothing(tmp_path: Path) -> None:
    text = TRL + "kw = {'num_generations': 4}\n" + MADE + "kw['num_generations'] = 8\n"
    assert schedule(tmp_path, text).samples_per_prompt == 4


def test_what_the_top_of_a_file_changes_holds_in_the_functions_below(tmp_path: Path) -> None:
    call = "def main():\n    args = GRPOConfig(**kw)\n    GRPOTrainer(args=args)\nmain()\n"
    before = TRL + "kw = {'num_generations': 8}\nkw['num_generations'] = 4\n" + call
    assert schedule(tmp_path, before).samples_per_prompt == 4
    after = TRL + "kw = {'num_generations': 8}\n" + call + "kw['num_generations'] = 4\n"
    with pytest.raises(UnknownValueError, match="kw is changed in line 7, with what only the run knows"):
        planned(tmp_path, after)


@pytest.mark.parametrize(
    "change",
    [
        "if given():\n    kw['num_generations'] = 4\n",
        "kw['num_generations'] += 4\n",
        "for size in sizes():\n    kw.update(num_generations=size)\n",
        "given() and kw.update(num_generations=4)\n",
        "def change():\n    kw['num_generations'] = 4\nchange()\n",
        "if given():\n    kw.pop('num_generations')\n",
        "def fill(values):\n    values['num_generations'] = 4\nfill(kw)\n",
        "other = kw\nother['num_generations'] = 4\n",
        "def fill(values):\n    deeper(values)\ndef deeper(given):\n    given['num_generations'] = 4\nfill(kw)\n",
    ],
)
def test_a_key_that_only_the_run_sets_is_asked_about(change: str, tmp_path: Path) -> None:
    text = TRL + "kw = {'num_generations': 8}\n" + change + MADE
    with pytest.raises(UnknownValueError, match=r"num_generations cannot be known: kw is changed in line \d"):
        planned(tmp_path, text)


@pytest.mark.parametrize(
    "change",
    [
        "for key, value in base().items():\n    kw[key] = value\n",
        "kw.update(base())\n",
        "kw.update(**base())\n",
        "kw.clear()\n",
        "from sizes import fill\nfill(kw)\n",
        "def fill(more, values):\n    values.update(more)\nfill(values=kw, more={})\n",
    ],
)
def test_a_mapping_that_the_run_fills_is_asked_about(change: str, tmp_path: Path) -> None:
    text = TRL + "kw = {}\n" + change + MADE
    with pytest.raises(LaunchError, match=r"GRPOConfig is given \*\*kw, whose contents are changed in line \d"):
        planned(tmp_path, text)


def test_a_function_that_changes_another_key_leaves_this_one(tmp_path: Path) -> None:
    text = TRL + "kw = {'num_generations': 4}\ndef note(values):\n    values['seed'] = now()\nnote(kw)\n" + MADE
    assert schedule(tmp_path, text).samples_per_prompt == 4


def test_a_list_that_changes_is_no_literal(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("sizes = [1, 2]\nsizes.append(3)\nlearn(sizes, fixed)\n")
    assert read_calls(path).settings["learn.0"].unknown
    path.write_text("sizes = [1, 2]\nlearn(sizes)\n")
    assert read_calls(path).settings["learn.0"].value == [1, 2]


def test_what_is_filled_in_where_it_is_none_leaves_what_the_launch_gives(tmp_path: Path) -> None:
    text = (
        PARSED
        + "if training_args.max_steps is None:\n    training_args.max_steps = steps()\nGRPOTrainer(args=training_args)\n"
    )
    assert schedule(tmp_path, text, "--max_steps 30").updates == 30
    with pytest.raises(UnknownValueError, match="assigned only in some runs"):
        planned(tmp_path, text)
    other = text.replace("is None", "is not None")
    with pytest.raises(UnknownValueError, match="assigned only in some runs"):
        planned(tmp_path, other, "--max_steps 30")


@pytest.mark.parametrize("place", ["pk/train.py", "src/pk/train.py"])
def test_a_module_of_the_users_own_is_read_as_its_file(place: str, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(
        TRL + "args = GRPOConfig(num_generations=4, per_device_train_batch_size=16)\nGRPOTrainer(args=args).train()\n"
    )
    (tmp_path / "run.sh").write_text("python -m pk.train --verbose\n")
    plan = plan_launch([str(tmp_path / "run.sh")], Options(rows=1_000))
    assert plan.schedule is not None
    assert (plan.schedule.samples_per_rollout, plan.schedule.samples_per_prompt) == (16, 4)


PARSER = "parser = argparse.ArgumentParser()\n    parser.add_argument('--n', type=int, default={default})\n    "
CALLED = "args = parse()\n{more}GRPOTrainer(args=GRPOConfig(num_generations=args.n, per_device_train_batch_size=8))\n"


@pytest.mark.parametrize("ends", ["return parser.parse_args()", "found = parser.parse_args()\n    return found"])
def test_a_function_that_parses_is_followed(ends: str, tmp_path: Path) -> None:
    function = f"def parse() -> argparse.Namespace:\n    {PARSER.format(default=4)}{ends}\n"
    text = TRL + function + CALLED.format(more="")
    assert schedule(tmp_path, text).samples_per_prompt == 4
    assert schedule(tmp_path, text, "--n 2").samples_per_prompt == 2


def test_an_option_that_is_worked_out_where_it_is_not_given(tmp_path: Path) -> None:
    function = f"def parse():\n    {PARSER.format(default=None)}return parser.parse_args()\n"
    text = TRL + function + CALLED.format(more="if args.n is None:\n    args.n = processes()\n")
    assert schedule(tmp_path, text, "--n 2").samples_per_prompt == 2
    with pytest.raises(UnknownValueError, match="num_generations cannot be known"):
        planned(tmp_path, text)


# YAML files that a program opens itself.

CONFIG = """
size: 8
num_generations: 2
train:
  generations: 4
  steps: 10
"""
OPENS = "parser = argparse.ArgumentParser()\nparser.add_argument('--config')\nargs = parser.parse_args()\n"
LOADERS = (
    "cfg = yaml.safe_load(open(args.config))\n",
    "with open(args.config) as file:\n    cfg = yaml.safe_load(file)\n",
    "cfg = yaml.load(Path(args.config).read_text(), Loader=yaml.SafeLoader) or {}\n",
    "def load(path):\n    with open(path) as f:\n        return yaml.safe_load(f)\ncfg = load(args.config)\n",
    "def load(path):\n    with Path(path).open() as f:\n        return yaml.safe_load(f) or {}\ncfg = load(args.config)\n",
    "def load(path='c.yaml'):\n    return OmegaConf.load(path)\ncfg = load()\n",
)


def opened(folder: Path, text: str, flags: str = "--config c.yaml") -> Plan:
    (folder / ".git").mkdir(exist_ok=True)
    (folder / "c.yaml").write_text(CONFIG)
    (folder / "train.py").write_text(TRL + OPENS + text)
    (folder / "run.sh").write_text(f"python train.py {flags}\n")
    return plan_launch([str(folder / "run.sh")], Options(rows=1_000))


@pytest.mark.parametrize("loads", LOADERS)
@pytest.mark.parametrize(
    "size",
    [
        "cfg['train']['generations']",
        "int(cfg['train'].get('generations', 8))",
        "cfg.get('other', 4)",
        "cfg.get('train', {}).get('generations')",
        "cfg['size'] // 2",
        "int(cfg['size']) // int(float(cfg['num_generations']))",
    ],
)
def test_a_configuration_that_the_program_opens_is_read(loads: str, size: str, tmp_path: Path) -> None:
    text = f"{loads}GRPOTrainer(args=GRPOConfig(num_generations={size}, per_device_train_batch_size=cfg['size']))\n"
    plan = opened(tmp_path, text)
    assert plan.schedule is not None
    assert (plan.schedule.samples_per_prompt, plan.schedule.samples_per_rollout) == (4, 8)


def test_keys_of_omegaconf_are_attributes(tmp_path: Path) -> None:
    made = "GRPOTrainer(args=GRPOConfig(num_generations=cfg.train.generations, per_device_train_batch_size=8))\n"
    assert opened(tmp_path, LOADERS[-1] + made).schedule is not None
    with pytest.raises(UnknownValueError, match=r"cfg\.train\.generations, which is not a literal"):
        opened(tmp_path, LOADERS[0] + made)


def test_a_whole_section_may_be_given(tmp_path: Path) -> None:
    text = LOADERS[0] + "GRPOTrainer(args=GRPOConfig(**cfg['settings'], per_device_train_batch_size=8))\n"
    with pytest.raises(LaunchError, match="settings"):
        opened(tmp_path, text)
    whole = LOADERS[0] + "GRPOTrainer(args=GRPOConfig(**cfg, per_device_train_batch_size=8))\n"
    plan = opened(tmp_path, whole)
    assert plan.schedule is not None
    assert plan.schedule.samples_per_prompt == 2


def test_a_key_of_the_file_that_the_program_does_not_read_sets_nothing(tmp_path: Path) -> None:
    text = LOADERS[0] + "GRPOTrainer(args=GRPOConfig(num_generations=8, per_device_train_batch_size=8))\n"
    plan = opened(tmp_path, text)
    assert plan.schedule is not None
    assert plan.schedule.samples_per_prompt == 8


NESTED = """
def first(values):
    second(values)
def second(values):
    print(values)
    third(values)
def third(values):
    fourth(values)
def fourth(values):
    fifth(values)
def fifth(values):
    {does}
first(cfg)
"""


def test_a_file_that_is_handed_from_function_to_function_is_followed(tmp_path: Path) -> None:
    made = "GRPOTrainer(args=GRPOConfig(num_generations=cfg['train']['generations'], per_device_train_batch_size=8))\n"
    plan = opened(tmp_path, LOADERS[0] + NESTED.format(does="values['seen'] = values['size']") + made)
    assert plan.schedule is not None
    assert plan.schedule.samples_per_prompt == 4
    with pytest.raises(UnknownValueError, match="num_generations cannot be known"):
        opened(tmp_path, LOADERS[0] + NESTED.format(does="values['train'] = {}") + made)


@pytest.mark.parametrize(
    "change",
    [
        "cfg['train']['generations'] = given()\n",
        "if given():\n    cfg['train']['generations'] = 2\n",
        "cfg['train']['generations'] += 2\n",
        "del cfg['train']['generations']\n",
        "cfg['train'] = section()\n",
        "cfg.update(more())\n",
        "train = cfg['train']\ntrain['generations'] = 2\n",
        "train = cfg.get('train')\ntrain.update(generations=2)\n",
        "override(cfg)\n",
        "override(cfg['train'])\n",
        "override(values=cfg)\n",
        "cfg.train.generations = given()\n",
        "OmegaConf.update(cfg, 'train.generations', 2)\n",
        "other = cfg\nother['train'] = section()\n",
        "class Run:\n    def fill(self, values):\n        values['train'] = {}\nRun().fill(cfg)\n",
    ],
)
def test_what_the_program_changes_of_the_file_is_asked_about(change: str, tmp_path: Path) -> None:
    made = "GRPOTrainer(args=GRPOConfig(num_generations=cfg['train']['generations'], per_device_train_batch_size=8))\n"
    for loads in (LOADERS[0], LOADERS[-1]):
        with pytest.raises(UnknownValueError, match="num_generations cannot be known"):
            opened(tmp_path, loads + change + made)


def test_a_file_that_is_not_here_or_has_no_such_key_is_asked_about(tmp_path: Path) -> None:
    made = "GRPOTrainer(args=GRPOConfig(num_generations=cfg['{}'], per_device_train_batch_size=8))\n"
    with pytest.raises(UnknownValueError, match="num_generations cannot be known"):
        opened(tmp_path, LOADERS[0] + made.format("nothing"))
    with pytest.raises(LaunchError, match="away"):
        opened(tmp_path, LOADERS[0] + made.format("size"), "--config away.yaml")


ENVIRONMENT = (
    "import os\nargs = GRPOConfig(num_generations=int(os.environ.get('{name}', '4')), per_device_train_batch_size=16)\n"
)


@pytest.mark.parametrize(("before", "generations"), [("", 4), ("GROUP=8", 8), ("export GROUP=2;", 2), ("OTHER=8", 4)])
def test_a_variable_of_the_environment_has_the_files_default(before: str, generations: int, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRL + ENVIRONMENT.format(name="GROUP") + "GRPOTrainer(args=args).train()\n")
    found = plan_launch([f"{before} python {path}"], Options(rows=100)).schedule
    assert found is not None
    assert found.samples_per_prompt == generations


@pytest.mark.parametrize(("name", "before"), [("WORLD_SIZE", ""), ("SLURM_NTASKS", ""), ("GROUP", "GROUP=$(count)")])
def test_a_variable_that_the_run_sets_is_not_known(name: str, before: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRL + ENVIRONMENT.format(name=name) + "GRPOTrainer(args=args).train()\n")
    with pytest.raises(UnknownValueError, match="num_generations cannot be known"):
        plan_launch([f"{before} python {path}"], Options(rows=100))


READ = "import os\nargs = GRPOConfig(num_generations=int({read}), per_device_train_batch_size=16)\n"


@pytest.mark.parametrize("read", ["os.environ['GROUP']", "os.getenv('GROUP')", "os.getenv('GROUP').strip()"])
def test_a_variable_without_a_default_is_asked_for_by_its_name(read: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRL + READ.format(read=read) + "GRPOTrainer(args=args).train()\n")
    with pytest.raises(UnknownValueError, match=r"nothing here sets that variable; give it with --set GROUP=VALUE"):
        plan_launch([str(path)], Options(rows=100))
    for found in (
        plan_launch([f"GROUP=8 python {path}"], Options(rows=100)),
        plan_launch([str(path)], Options(rows=100, variables={"GROUP": "8"})),
        plan_launch([f"python {path}"], Options(rows=100, variables={"GROUP": "8"})),
    ):
        assert found.schedule is not None
        assert found.schedule.samples_per_prompt == 8


@pytest.mark.parametrize("line", ["os.environ['GROUP'] = count()\n", "os.environ.setdefault('GROUP', '8')\n"])
def test_a_variable_that_the_file_sets_itself_is_not_its_default(line: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    text = READ.format(read="os.getenv('GROUP', '4')").replace("import os\n", f"import os\n{line}")
    path.write_text(TRL + text + "GRPOTrainer(args=args).train()\n")
    with pytest.raises(UnknownValueError, match="num_generations cannot be known"):
        plan_launch([str(path)], Options(rows=100))


@pytest.mark.parametrize(("value", "generations"), [("true", 8), (" TRUE", 8), ("no", 4)])
def test_words_of_a_variable_are_compared_as_the_file_writes_them(value: str, generations: int, tmp_path: Path) -> None:
    read = "8 if os.getenv('LARGE', 'no').strip().lower() in ('1', 'true') else 4"
    path = tmp_path / "train.py"
    path.write_text(TRL + READ.format(read=read) + "GRPOTrainer(args=args).train()\n")
    found = plan_launch([str(path)], Options(rows=100, variables={"LARGE": value})).schedule
    assert found is not None
    assert found.samples_per_prompt == generations


OWN_FIELDS = """
from dataclasses import dataclass, field
from typing import Optional
@dataclass
class Own:
    model: str = field(metadata={{"help": "which"}})
    batch: int = field(default=16, metadata={{"help": "how many"}})
    group: Optional[int] = 4
    steps: int = field(default_factory=count)
{more}
parser = {parser}((Own, {second}))
own, other = parser.{parse}()
args = GRPOConfig(per_device_train_batch_size=own.batch, num_generations=own.{used})
GRPOTrainer(args=args).train()
"""


def of_own_fields(folder: Path, flags: str, **parts: str) -> Schedule:
    named = {
        "more": "",
        "parser": "HfArgumentParser",
        "second": "Other",
        "parse": "parse_args_into_dataclasses",
        "used": "group",
    }
    path = folder / "train.py"
    path.write_text(TRL + OWN_FIELDS.format(**{**named, **parts}))
    found = plan_launch([f"python {path} {flags}"], Options(rows=1_000)).schedule
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("flags", "samples", "generations"),
    [
        ("--model m", 16, 4),
        ("--model m --batch 32", 32, 4),
        ("--model m --batch=8 --model n", 8, 4),
        ("--batch 64", 64, 4),
    ],
)
def test_fields_of_a_dataclass_of_its_own_are_options(
    tmp_path: Path, flags: str, samples: int, generations: int
) -> None:
    for parser, parse in (("HfArgumentParser", "parse_args_into_dataclasses"), ("TrlParser", "parse_args_and_config")):
        found = of_own_fields(tmp_path, flags, parser=parser, parse=parse)
        assert (found.samples_per_rollout, found.samples_per_prompt) == (samples, generations)


def test_an_optional_field_is_given_as_what_it_may_be(tmp_path: Path) -> None:
    assert of_own_fields(tmp_path, "--model m --group 8").samples_per_prompt == 8


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ("--model m", {"used": "steps"}),
        ("--model m --group $N", {}),
        ("--model m", {"more": "if flag:\n    own, other = parser.parse_yaml_file('c.yaml')"}),
        ("--model m --config c.yaml", {"parser": "TrlParser", "parse": "parse_args_and_config"}),
        ("--model m", {"more": "other_parser = HfArgumentParser((Own,))"}),
        ("--model m", {"second": "Second", "more": "@dataclass\nclass Second:\n    group: int = 8"}),
        ("--model m", {"more": "class Derived(Own):\n    pass", "second": "Derived", "used": "derived"}),
    ],
)
def test_fields_that_something_else_may_set_are_not_known(tmp_path: Path, flags: str, parts: dict[str, str]) -> None:
    with pytest.raises(LaunchError, match=r"cannot be known|is not here|there is no such file"):
        of_own_fields(tmp_path, flags, **parts)


@pytest.mark.parametrize(
    ("imported", "generations"),
    [("from own import Second", 8), ("from .own import Second", 8), ("from own import Other as Second", 2)],
)
def test_fields_of_a_dataclass_that_is_imported_are_options(tmp_path: Path, imported: str, generations: int) -> None:
    (tmp_path / "own.py").write_text(
        "from dataclasses import dataclass\nN = 4\n@dataclass\nclass Second:\n    size: int = 8\n    named: int = N\n"
        "@dataclass\nclass Other:\n    size: int = 2\n    named: int = N\n"
    )
    text = OWN_FIELDS.replace("num_generations=own.", "num_generations=other.")
    path = tmp_path / "train.py"
    parts = {"more": imported, "parser": "HfArgumentParser", "second": "Second", "parse": "parse_args_into_dataclasses"}
    for used, known in (("size", True), ("named", False)):
        path.write_text(TRL + "N = 8\n" + text.format(used=used, **parts))
        if known:
            found = plan_launch([f"python {path}"], Options(rows=1_000)).schedule
            assert found is not None
            assert found.samples_per_prompt == generations
        else:
            with pytest.raises(UnknownValueError, match="num_generations cannot be known"):
                plan_launch([f"python {path}"], Options(rows=1_000))


OPTIONS = (
    "import argparse\n" + TRL + "parser = argparse.ArgumentParser()\n"
    "parser.add_argument('--size', type=int, default=4)\n"
    "parser.add_argument('--stable', action='store_true')\nargs = parser.parse_args()\n"
)
SIZED = "made = GRPOConfig(per_device_train_batch_size=8, num_generations={size}, max_steps={steps})\n"


@pytest.mark.parametrize(
    ("change", "more", "size"),
    [
        ("if args.stable:\n    args.size = count()\n", "", 4),
        ("if args.stable and rich():\n    args.size = 2\n", "", 4),
    ],
)
def test_a_branch_that_the_launch_does_not_come_to_changes_nothing(
    tmp_path: Path, change: str, more: str, size: int
) -> None:
    text = OPTIONS + change + SIZED.format(size="args.size", steps=5) + "GRPOTrainer(args=made)\n"
    assert schedule(tmp_path, text, more).samples_per_prompt == size


@pytest.mark.parametrize("change", ["if args.stable:\n    args.size = 2\n", "if args.size > 2:\n    args.size = 2\n"])
def test_a_branch_that_it_may_come_to_is_asked_about(tmp_path: Path, change: str) -> None:
    text = OPTIONS + change + SIZED.format(size="args.size", steps=5) + "GRPOTrainer(args=made)\n"
    with pytest.raises(UnknownValueError, match="num_generations cannot be known"):
        planned(tmp_path, text.replace("args.stable:", "rich():"))


def test_a_trainer_in_a_branch_that_the_launch_does_not_come_to_is_none(tmp_path: Path) -> None:
    text = (
        OPTIONS
        + "if args.stable:\n    made = GRPOConfig(per_device_train_batch_size=8, num_generations=2, max_steps=9)\n"
        + "    GRPOTrainer(args=made)\nelse:\n    made = GRPOConfig(per_device_train_batch_size=8, num_generations=4, max_steps=5)\n"
        + "    GRPOTrainer(args=made)\n"
    )
    assert (schedule(tmp_path, text).samples_per_prompt, schedule(tmp_path, text, "--stable").samples_per_prompt) == (
        4,
        2,
    )


def test_what_is_assigned_to_a_trainers_arguments_is_assigned_to_the_configuration(tmp_path: Path) -> None:
    text = TRL + SIZED.format(size=4, steps=500) + "trainer = GRPOTrainer(args=made)\ntrainer.args.max_steps = 7\n"
    assert schedule(tmp_path, text).updates == 7


def test_an_attribute_that_is_assigned_where_there_is_one(tmp_path: Path) -> None:
    guarded = "if hasattr(made, 'max_steps'):\n    made.max_steps = 7\n"
    text = TRL + SIZED.format(size=4, steps=500) + guarded + "GRPOTrainer(args=made)\n"
    assert schedule(tmp_path, text).updates == 7


@pytest.mark.parametrize(("limit", "updates"), [(2_000, 62), (500, 1_500)])
def test_the_length_of_the_training_set_is_what_the_user_says(tmp_path: Path, limit: int, updates: int) -> None:
    """1000 rows: a whole pass of 16 rows a step, or three epochs of 2 prompts an update."""
    steps = f"len(rows) // 16 if len(rows) < {limit} else -1"
    text = TRL + "rows = load()\n" + SIZED.format(size=4, steps=steps) + "GRPOTrainer(args=made, train_dataset=rows)\n"
    assert schedule(tmp_path, text).updates == updates


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pyproject.toml", '[project.scripts]\nown-train = "mine.train:main"\n'),
        ("setup.cfg", "[options.entry_points]\nconsole_scripts =\n    own-train = mine.train:main\n"),
        ("setup.py", "setup(entry_points={'console_scripts': ['own-train=mine.train:main']})\n"),
    ],
)
def test_a_command_that_the_checkout_installs_is_its_module(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / file).write_text(text)
    (tmp_path / "src/mine").mkdir(parents=True)
    trains = OPTIONS + SIZED.format(size="args.size", steps=5) + "GRPOTrainer(args=made)\n"
    (tmp_path / "src/mine/train.py").write_text(trains)
    (tmp_path / "train.sh").write_text("uv run own-train --size 2\n")
    plan = plan_launch([str(tmp_path / "train.sh")], Options(rows=1_000))
    assert plan.schedule is not None
    assert plan.schedule.samples_per_prompt == 2


@pytest.mark.parametrize(
    ("made", "rows"),
    [
        ("rows = load_dataset('some', split='train').shuffle(seed=1).select(range(800))\n", 800),
        (
            "COUNT = 800\nrows = load_dataset('some')\nrows = rows.select(range(COUNT))\nrows = rows.map(lambda row: row)\n",
            800,
        ),
        (
            "def load():\n    found = load_dataset('some')\n    return found.select(range(800)).remove_columns('x')\nrows = load()\n",
            800,
        ),
        # How many are left, only the run knows.
        ("rows = Dataset.from_dict({'prompt': ['begin'] * 800, 'seed': seeds})\n", 800),
        ("N = 800\nrows = Dataset.from_dict({'seed': seeds, 'prompt': [make(i) for i in range(N)]}).map(ask)\n", 800),
        ("rows = datasets.Dataset.from_list([{'prompt': 'begin'}] * 800)\n", 800),
        ("rows = Dataset.from_dict({'prompt': prompts})\n", None),
        ("rows = Dataset.from_list([{'prompt': each} for each in range(800) if each % 2])\n", None),
        ("rows = load_dataset('some').select(range(800)).filter(short)\n", None),
        ("rows = load_dataset('some').select(range(800)).map(split, batched=True)\n", None),
        ("rows = load_dataset('some')\nif small():\n    rows = rows.select(range(800))\n", None),
        ("rows = load_dataset('some')\nrows = rows.select(range(min(800, len(rows))))\n", None),
    ],
)
def test_the_rows_that_a_file_selects(tmp_path: Path, made: str, rows: int | None) -> None:
    path = tmp_path / "train.py"
    config = "made = GRPOConfig(per_device_train_batch_size=8, num_generations=4, num_train_epochs=1)\n"
    path.write_text(TRL + made + config + "GRPOTrainer(args=made, train_dataset=rows)\n")
    planned_alone = plan_launch(["python", str(path)], Options()).schedule
    assert planned_alone is not None
    assert planned_alone.rows == rows
    assert planned_alone.updates == (400 if rows else None)
    said_otherwise = plan_launch(["python", str(path)], Options(rows=100)).schedule
    assert said_otherwise is not None
    assert said_otherwise.rows == 100
