"""A program of somebody's own with `TrlParser`: the fields of its own dataclasses are its own, and any other name is one of TRL's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.own_parser import parser_of
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

CONFIGS = """
from dataclasses import dataclass
import trl

@dataclass
class GRPOConfig(trl.GRPOConfig):
    system_prompt: str = ""
"""
PROGRAM = """
from dataclasses import dataclass
from open_r1.configs import GRPOConfig
from trl import GRPOTrainer, ModelConfig, ScriptArguments, TrlParser
{more}
@dataclass
class GRPOScriptArguments(ScriptArguments):
    reward_funcs: list[str] = ()

parser = TrlParser((GRPOScriptArguments, GRPOConfig, {model}))
script_args, training_args, model_args = parser.parse_args_and_config({how})
GRPOTrainer(model=model_args.model_name_or_path, reward_funcs=[], args=training_args).train()
"""
SIZES = "per_device_train_batch_size: 4\ngradient_accumulation_steps: 2\nnum_generations: 8\nnum_train_epochs: 1\n"
OWN = "system_prompt: think\nreward_funcs: [accuracy]\n"


def planned(
    folder: Path,
    *,
    yaml: str = "",
    flags: str = "",
    how: str = "",
    model: str = "ModelConfig",
    more: str = "",
    pin: str = "",
    alone: bool = False,
) -> Plan:
    """The plan of a run of open-r1's program on 8 processes, with its own dataclasses, for 100 rows."""
    source = folder / "src/open_r1"
    source.mkdir(parents=True)
    (folder / ".git").mkdir()
    (source / "configs.py").write_text(CONFIGS)
    (source / "grpo.py").write_text(PROGRAM.format(how=how, model=model, more=more))
    (folder / "recipe.yaml").write_text(SIZES + OWN + yaml)
    (folder / "requirements.txt").write_text(f"{pin}\n")
    script = folder / "run.sh"
    script.write_text(f"accelerate launch --num_processes 8 src/open_r1/grpo.py --config recipe.yaml {flags}\n")
    words = [str(folder / "recipe.yaml" if alone else script)]
    return plan_launch(words, Options(rows=100, world_size=8))


def found(plan: Plan) -> list[tuple[str, str]]:
    codes = {"RLS110", "RLS116", "RLS117", "RLS118"}
    return [(finding.severity, finding.observed) for finding in plan.findings if finding.code in codes]


@pytest.mark.parametrize("alone", [False, True])
def test_fields_of_its_own_say_nothing_of_the_release(tmp_path: Path, *, alone: bool) -> None:
    """TRL 0.16 has no reward_funcs, and 0.18 no vllm_device."""
    plan = planned(tmp_path, yaml="vllm_device: auto\n", alone=alone)
    assert (plan.version, found(plan)) == ("0.17.0", [])
    assert alone is any(
        note.text == "src/open_r1/grpo.py reads this file, which names no program" for note in plan.notes
    )


@pytest.mark.parametrize(
    ("pin", "how", "severity", "words"),
    [
        ("trl==0.18.0", "", "warning", "vllm_device"),
        ("trl==0.20.0", "", "error", "Unknown arguments from config file: ['--vllm_device', 'auto']"),
        ("trl==0.20.0", "fail_with_unknown_args=False", "warning", "vllm_device"),
        ("trl==0.20.0", "return_remaining_strings=True", "warning", "vllm_device"),
    ],
)
def test_what_no_dataclass_has_is_judged_as_its_parser_does(
    tmp_path: Path, pin: str, how: str, severity: str, words: str
) -> None:
    plan = planned(tmp_path, yaml="vllm_device: auto\n", how=how, pin=pin)
    assert plan.schedule is not None
    assert [(each, words in said) for each, said in found(plan)] == [(severity, True)]


def test_a_flag_that_no_dataclass_has_is_refused(tmp_path: Path) -> None:
    plan = planned(tmp_path, flags="--thinks 4", pin="trl==0.18.0")
    assert [severity for severity, _ in found(plan)] == ["error"]


def test_the_beginning_of_a_field_of_its_own_stands_for_it(tmp_path: Path) -> None:
    plan = planned(tmp_path, flags="--system_pro think", pin="trl==0.18.0")
    assert found(plan) == []
    assert any("--system_pro is system_prompt" in note.text for note in plan.notes)


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("Elsewhere", "from somewhere import Elsewhere\n"),
        ("Elsewhere", ""),
        ("ModelConfig", "other = TrlParser((ModelConfig,))\n"),
    ],
)
def test_a_parser_that_is_not_read_whole_says_nothing(tmp_path: Path, model: str, more: str) -> None:
    plan = planned(tmp_path, flags="--thinks 4", yaml="whatever: 1\n", model=model, more=more)
    assert plan.schedule is not None
    assert found(plan) == []


def test_dataclasses_are_followed_through_imports(tmp_path: Path) -> None:
    planned(tmp_path)
    parser = parser_of(tmp_path / "src/open_r1/grpo.py", str(tmp_path), frozenset({"trl"}))
    assert parser is not None
    assert parser.fields == {"system_prompt", "reward_funcs"}
    assert parser.outside == {"trl.ScriptArguments", "trl.GRPOConfig", "trl.ModelConfig"}


def test_fields_that_are_not_read_are_named_in_the_order_of_their_file(tmp_path: Path) -> None:
    names = ["zeta", "alpha", "omega", "beta_two", "kappa", "delta"]
    planned(tmp_path)
    configs = tmp_path / "src/open_r1/configs.py"
    configs.write_text(CONFIGS + "".join(f"    {name}: int = 1\n" for name in names))
    plan = plan_launch([str(tmp_path / "run.sh")], Options(rows=100))
    assert [
        setting.name.rpartition(".")[2] for setting in plan.unused if setting.name.rpartition(".")[2] in names
    ] == names
