"""The import says whose trainer a Python file uses; a class of the checkout is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.classes import class_named
from rlstep_hooks.launch.modules import find_module
from rlstep_hooks.launch.text import LaunchError, NoLaunchError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

SIZES = "per_device_train_batch_size=8, num_generations=8, max_steps=10, output_dir='o'"
MINE = f"from trl import GRPOConfig\nfrom mine.loops.grpo_trainer import GRPOTrainer\nGRPOTrainer(args=GRPOConfig({SIZES}))\n"
DERIVED = "from trl import GRPOTrainer as TRLTrainer\nclass Base(TRLTrainer):\n    pass\n"


def checkout(folder: Path, **files: str) -> None:
    """A repository with some files; two underscores in a name stand for a slash, `_init` for `__init__`."""
    (folder / "pyproject.toml").write_text("")
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/').replace('/_init', '/__init__')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def planned(folder: Path, script: str = "scripts/train.py", **options: object) -> Plan:
    return plan_launch([str(folder / script)], Options(rows=1000, world_size=1, **options))  # type: ignore[arg-type]


def assumed(plan: Plan) -> str:
    return "\n".join(note.text for note in plan.notes if note.kind == "assumes")


def test_a_trainer_of_the_checkout_is_not_trls_although_it_has_its_name(tmp_path: Path) -> None:
    own = "from transformers import Trainer\nclass GRPOTrainer(Trainer):\n    pass\n"
    checkout(tmp_path, scripts__train=MINE, mine__loops__grpo_trainer=own)
    with pytest.raises(
        NoLaunchError, match=r"GRPOTrainer of mine .* not a trainer of TRL.*derives from transformers.Trainer"
    ):
        planned(tmp_path)
    assert planned(tmp_path, framework="trl").schedule is not None


def test_a_trainer_whose_file_is_not_here_is_not_taken_for_trls(tmp_path: Path) -> None:
    checkout(tmp_path, scripts__train=MINE)
    with pytest.raises(
        NoLaunchError, match=r"GRPOTrainer of mine \(line 3\) is not a trainer of TRL: its code is not here"
    ):
        planned(tmp_path)


@pytest.mark.parametrize(
    ("base", "says"),
    [
        ("Trainer", r"neither AGRPOTrainer of .* nor BGRPOTrainer of .* is a trainer of TRL; --framework trl plans it"),
        ("GRPOTrainer", r"there are 2 trainers: AGRPOTrainer .*, BGRPOTrainer .*; --framework trl plans it"),
    ],
)
def test_two_trainers_of_one_line_cannot_be_chosen_by_their_line(tmp_path: Path, base: str, says: str) -> None:
    package = "trl" if base == "GRPOTrainer" else "transformers"
    own = f"from {package} import {base}\nclass AGRPOTrainer({base}): ...\nclass BGRPOTrainer({base}): ...\n"
    chosen = f"from trl import GRPOConfig\nfrom mine import AGRPOTrainer, BGRPOTrainer\nc = GRPOConfig({SIZES})\n"
    chosen += "kind = AGRPOTrainer if c.use_vllm else BGRPOTrainer\nkind(args=c)\n"
    checkout(tmp_path, scripts__train=chosen, mine=own)
    with pytest.raises(NoLaunchError, match=says):
        planned(tmp_path)


def test_a_class_that_makes_its_own_rollouts_is_not_said_to_override_nothing(tmp_path: Path) -> None:
    own = f"{DERIVED}class GRPOTrainer(Base):\n    def _generate_and_score_completions(self, inputs): ...\n"
    checkout(tmp_path, scripts__train=MINE, src__mine__loops__grpo_trainer=own)
    said = assumed(planned(tmp_path))
    assert "overrides _generate_and_score_completions: it is taken to make as many samples as TRL's" in said
    assert "overrides nothing" not in said


def test_flags_of_a_program_that_is_not_here_are_its_own(tmp_path: Path) -> None:
    launch = "python train_grpo.py --num_generations 8 --max_steps 10"
    script = tmp_path / "run.sh"
    script.write_text(f"{launch}\n")
    assert "train_grpo.py, which is not here, hands its flags to TRL as they are named" in assumed(
        planned(tmp_path, "run.sh")
    )
    script.write_text(f"{launch} --batch_size 4 --epochs 3\n")
    with pytest.raises(NoLaunchError, match=r"train_grpo.py is not here, and --batch_size, --epochs, .* none of TRL's"):
        planned(tmp_path, "run.sh")
    assert planned(tmp_path, "run.sh", framework="trl").schedule is not None


OPTIONS = (
    "import argparse\nfrom trl import GRPOConfig, GRPOTrainer\np = argparse.ArgumentParser()\n"
    "p.add_argument('--size', type=int)\np.add_argument('--dataset_path')\np.add_argument('--lora_r', type=int)\n"
    "args = p.parse_args()\nGRPOTrainer(args=GRPOConfig(num_generations=args.size, max_steps=10))\n"
)


@pytest.mark.parametrize(
    ("path", "flags", "found"),
    [
        ("/home/somebody/project/tools/train_grpo.py", "--size 4", "../tools/train_grpo.py"),
        ("/home/somebody/mine.py", "--size 4 --dataset_path d --lora_r 8", "mine.py"),
        ("/home/somebody/mine.py", "--size 4 --epochs 3 --lora_r 8", ""),  # anybody's file may have that name
        ("/home/somebody/train_grpo.py", "--size 4 --dataset_path d --lora_r 8", ""),
    ],
)
def test_a_program_at_its_place_on_another_machine_is_found_in_the_repository(
    tmp_path: Path, path: str, flags: str, found: str
) -> None:
    checkout(tmp_path, tools__train_grpo=OPTIONS, scripts__mine=OPTIONS)
    (tmp_path / "scripts/run.sh").write_text(f"python {path} {flags}\n")
    if not found:
        with pytest.raises(NoLaunchError, match=r"starts a known trainer: \S*(?:train_grpo|mine).py \(not here\)"):
            planned(tmp_path, "scripts/run.sh")
        return
    plan = planned(tmp_path, "scripts/run.sh")
    assert plan.schedule is not None
    assert plan.schedule.samples_per_prompt == 4
    assert f"{path}, which is not on this machine, is {found} here" in assumed(plan)


def test_a_class_that_derives_from_trls_and_changes_nothing_that_decides_is_planned(tmp_path: Path) -> None:
    own = f"{DERIVED}class GRPOTrainer(Base):\n    def compute_loss(self): ...\n"
    checkout(tmp_path, scripts__train=MINE, src__mine__loops__grpo_trainer=own)
    plan = planned(tmp_path)
    assert plan.schedule is not None
    assert plan.schedule.samples_per_rollout == 8
    assert (
        "grpo_trainer.py:4:1) derives from trl.GRPOTrainer and overrides nothing that decides its schedule"
        in assumed(plan)
    )


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("    def _get_train_sampler(self): ...\n", "overrides _get_train_sampler"),
        (
            "    def __init__(self, args):\n        super().__init__(args)\n        self.num_generations = 16\n",
            "assigns num_generations",
        ),
    ],
)
@pytest.mark.parametrize("where", ["class", "base"])
def test_a_class_that_changes_what_decides_the_schedule_is_another_trainer(
    tmp_path: Path, body: str, says: str, where: str
) -> None:
    if where == "class":
        own = f"{DERIVED}class GRPOTrainer(Base):\n{body}"
    else:
        own = f"{DERIVED[:-9]}{body}class GRPOTrainer(Base):\n    def compute_loss(self): ...\n"
    checkout(tmp_path, scripts__train=MINE, mine__loops__grpo_trainer=own)
    with pytest.raises(NoLaunchError, match=f"derives from trl.GRPOTrainer and {says}, which decides the schedule"):
        planned(tmp_path)


def test_a_class_of_the_script_itself_is_read(tmp_path: Path) -> None:
    text = (
        "from trl import GRPOConfig, GRPOTrainer\nclass Mine(GRPOTrainer):\n    def get_train_dataloader(self): ...\n"
        f"Mine(args=GRPOConfig({SIZES}))\n"
    )
    checkout(tmp_path, scripts__train=text)
    with pytest.raises(NoLaunchError, match="overrides get_train_dataloader"):
        planned(tmp_path)


TWO = (
    "from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer\n"
    f"GRPOTrainer(args=GRPOConfig({SIZES}))\n"
    "RLOOTrainer(args=RLOOConfig(per_device_train_batch_size=8, num_generations=4, max_steps=10))\n"
)


def test_two_trainers_are_named_and_one_is_asked_for(tmp_path: Path) -> None:
    checkout(tmp_path, scripts__train=TWO)
    with pytest.raises(
        LaunchError,
        match=r"2 trainers: GRPOTrainer of trl \(line 2\), RLOOTrainer of trl \(line 3\); choose one with --line N",
    ):
        planned(tmp_path)
    first, second = (planned(tmp_path, line=line).schedule for line in (2, 3))
    assert first is not None
    assert second is not None
    assert (first.algorithm, first.prompts_per_rollout) == ("GRPO", 1)
    assert (second.algorithm, second.prompts_per_rollout) == ("RLOO", 2)


def test_a_trainer_that_learns_from_examples_is_no_second_one(tmp_path: Path) -> None:
    text = f"from trl import GRPOConfig, GRPOTrainer, SFTTrainer\nSFTTrainer()\nGRPOTrainer(args=GRPOConfig({SIZES}))\n"
    checkout(tmp_path, scripts__train=text)
    assert planned(tmp_path).schedule is not None


def test_a_module_that_is_run_is_followed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "from transformers import Trainer\nclass GRPOTrainer(Trainer):\n    pass\n"
    checkout(tmp_path, mine__train=MINE, mine__loops__grpo_trainer=own)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoLaunchError, match="not a trainer of TRL"):
        plan_launch(["python", "-m", "mine.train", "--num_generations", "8", "--max_steps", "3"], Options(rows=100))


# Modules and classes.


def test_files_of_modules(tmp_path: Path) -> None:
    checkout(tmp_path, a__b="", a__c___init="", src__d="", a__e__f="")
    found = {name: find_module(name, tmp_path / "a" / "e") for name in ("a.b", "a.c", "d", "g")}
    assert found == {
        "a.b": tmp_path / "a/b.py",
        "a.c": tmp_path / "a/c/__init__.py",
        "d": tmp_path / "src/d.py",
        "g": None,
    }
    assert find_module("b", tmp_path / "a" / "e", level=2) == (tmp_path / "a").resolve() / "b.py"
    assert find_module("b", tmp_path / "a" / "e", level=1) is None


def test_a_class_is_followed_through_files_that_export_it_again(tmp_path: Path) -> None:
    checkout(
        tmp_path,
        train="from mine import Own as Trainer\n",
        mine___init="from .own import Own\n",
        mine__own="import trl as t\nclass Own(t.GRPOTrainer, object):\n    def step(self):\n        self.args.max_steps = 3\n",
    )
    found = class_named("Trainer", tmp_path / "train.py", None, frozenset(("trl",)))
    assert found is not None
    assert (found.name, found.package, found.outside) == ("Trainer", "mine", {"trl.GRPOTrainer", "object"})
    assert (found.methods, found.assigned, found.line) == ({"step"}, {"max_steps"}, 2)


def test_files_that_import_each_other_end(tmp_path: Path) -> None:
    checkout(tmp_path, train="from .a import T\n", a="from .b import T\n", b="from .a import T\n")
    found = class_named("T", tmp_path / "train.py", None, frozenset())
    assert found is not None
    assert not found.is_here


CALL = "super().training_step(model, inputs, num_items_in_batch)"
STEP = "    def training_step(self, model, inputs, num_items_in_batch=None):\n"


@pytest.mark.parametrize(
    ("body", "decides"),
    [
        (f"{STEP}        return {CALL}\n", False),
        (f"{STEP}        return super().training_step(model, inputs, num_items_in_batch=num_items_in_batch)\n", False),
        (
            f"{STEP}        self.timed()\n        loss = {CALL}\n"
            "        if self.accelerator.sync_gradients:\n            self.done += 1\n        return loss\n",
            False,
        ),
        (
            "    def train(self, *args, **kwargs):\n        result = super().train(*args, **kwargs)\n"
            "        self.save()\n        return result\n",
            False,
        ),
        # What the class above is given, or gives, is not what it would be.
        (f"{STEP}        return super().training_step(model, self.cut(inputs), num_items_in_batch)\n", True),
        (
            f"{STEP}        inputs.pop()\n        return {CALL}\n",
            True,
        ),
        (f"{STEP}        return super().training_step(model, inputs)\n", True),
        (f"{STEP}        return 2 * {CALL}\n", True),
        (
            "    def get_train_dataloader(self):\n        loader = super().get_train_dataloader()\n"
            "        loader.x = 1\n        return loader\n",
            True,
        ),
        # It may not come to the call, or to it twice, or to another one.
        (
            f"{STEP}        if self.skips:\n            return 0\n        return {CALL}\n",
            True,
        ),
        (
            f"{STEP}        for _ in range(2):\n            loss = {CALL}\n        return loss\n",
            True,
        ),
        (f"{STEP}        return super().other_step(model, inputs, num_items_in_batch)\n", True),
        (
            "    def train(self, *args, **kwargs):\n        super().train(*args, **kwargs)\n"
            "        return super().train(*args, **kwargs)\n",
            True,
        ),
        ("    def train(self, resume=None):\n        super().train(resume)\n", True),
        (f"    @twice\n{STEP}        return {CALL}\n", True),
        # What it does beside the call is looked at as in any method.
        (
            f"{STEP}        self.num_iterations = 3\n        return {CALL}\n",
            True,
        ),
    ],
)
def test_a_method_that_only_passes_on_decides_nothing(tmp_path: Path, body: str, decides: bool) -> None:
    text = f"from trl import GRPOConfig, GRPOTrainer\nclass Mine(GRPOTrainer):\n{body}Mine(args=GRPOConfig({SIZES}))\n"
    checkout(tmp_path, scripts__train=text)
    if decides:
        with pytest.raises(NoLaunchError, match="which decides the schedule"):
            planned(tmp_path)
        return
    plan = planned(tmp_path)
    assert plan.schedule is not None
    assert plan.schedule.samples_per_rollout == 8
    assert "overrides nothing that decides its schedule" in assumed(plan)
