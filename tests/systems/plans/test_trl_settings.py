"""Settings that a release of TRL does not have, in arguments, YAML and Python: what TRL's own parser of that release makes of them.

The words and the behaviour were read in the wheels 0.14.0 to 1.16.0 (trl/scripts/grpo.py, trl/scripts/utils.py, trl/cli) and seen with
1.16.0 (`tests/systems/trl/test_unknown_settings.py` asks the installed release).
"""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import Place
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.abbreviations import meant_by
from rlstep_hooks.systems.engine.keys import key_list
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "accelerate launch --num_processes 8 -m trl.scripts.grpo --num_generations 8"
PROGRAM = "trl grpo --num_generations 8 --num_processes 8"


def planned(command: str, version: str | None = None) -> Plan:
    return plan_launch(shlex.split(command), Options(rows=10_000, version=version))


def named(plan: Plan) -> list[tuple[str, str]]:
    return [(f.code, f.severity) for f in plan.findings if f.code in ("RLS110", "RLS116", "RLS118")]


def test_an_argument_that_no_release_has_is_refused_by_the_script() -> None:
    plan = planned(f"{MODULE} --made_up 3", "1.16.0")
    assert named(plan) == [("RLS116", "warning")]
    (finding,) = (f for f in plan.findings if f.code == "RLS116")
    assert "Some specified arguments are not used by the HfArgumentParser: ['--made_up', ...]" in finding.why


def test_trl_hands_what_it_does_not_know_to_accelerate() -> None:
    (finding,) = (f for f in planned(f"{PROGRAM} --made_up 3", "1.16.0").findings if f.code == "RLS116")
    assert "Accelerate launch command: error: unrecognized arguments: --made_up" in finding.why
    assert named(planned(f"{PROGRAM} --mixed_precision bf16 --main_process_port 0", "1.16.0")) == []


@pytest.mark.parametrize("program", [MODULE, PROGRAM])
@pytest.mark.parametrize("version", ["0.22.2", "0.28.0"])
def test_from_0_22_to_0_28_what_is_not_known_is_dropped(program: str, version: str) -> None:
    plan = planned(f"{program} --made_up 3", version)
    assert named(plan) == [("RLS118", "warning")]
    (finding,) = (f for f in plan.findings if f.code == "RLS118")
    assert "--made_up" in finding.observed
    assert "return_remaining_strings" in finding.why
    assert plan.schedule is not None


@pytest.mark.parametrize(
    ("program", "version", "expected", "words"),
    [
        (MODULE, "0.18.2", [("RLS118", "warning")], "set_defaults_with_config"),
        (MODULE, "0.20.0", [("RLS110", "error")], "ValueError: Unknown arguments from config file: ['--num_iteration', '4']"),
        (MODULE, "0.24.0", [("RLS118", "warning")], "return_remaining_strings"),
        (MODULE, "1.16.0", [("RLS118", "warning")], "fail_with_unknown_args=False"),
        (PROGRAM, "1.16.0", [("RLS110", "error")], "error: unrecognized arguments: --num_iteration"),
        (PROGRAM, "0.29.1", [("RLS110", "error")], "error: unrecognized arguments: --num_iteration"),
        (PROGRAM, "0.24.0", [("RLS118", "warning")], "return_remaining_strings"),
    ],
)  # fmt: skip
def test_a_misspelling_in_yaml(
    program: str, version: str, expected: list[tuple[str, str]], words: str, tmp_path: Path
) -> None:
    """argparse does not look at YAML, so that the beginning of a name is no abbreviation there."""
    config = tmp_path / "grpo.yaml"
    config.write_text("per_device_train_batch_size: 8\nnum_iteration: 4\nenv: {A: 1}\n")
    plan = planned(f"{program} --config {config}", version)
    assert named(plan) == expected
    (finding,) = (f for f in plan.findings if f.code in ("RLS110", "RLS118"))
    assert words in finding.observed + finding.why
    assert "num_iteration" in finding.observed
    assert "did you mean num_iterations?" in finding.fix
    assert plan.schedule is not None
    assert plan.schedule.reuse_epochs == 1


def test_yaml_of_an_older_release_chooses_it(tmp_path: Path) -> None:
    config = tmp_path / "grpo.yaml"
    config.write_text("max_prompt_length: 512\n")
    plan = planned(f"{PROGRAM} --config {config}")
    assert (plan.version, named(plan)) == ("0.28.0", [])
    plan = planned(f"{PROGRAM} --config {config}", "1.16.0")
    (finding,) = (f for f in plan.findings if f.code == "RLS110")
    assert finding.fix == "accepted by TRL 0.14.0 to 0.28.0: --version 0.28.0"


def test_yaml_has_the_options_of_accelerate(tmp_path: Path) -> None:
    config = tmp_path / "grpo.yaml"
    config.write_text(
        "num_generations: 8\nnum_processes: 4\nmixed_precision: bf16\nmodel_init_kwargs: {torch_dtype: auto}\n"
    )
    plan = planned(f"trl grpo --config {config}", "1.16.0")
    assert named(plan) == []
    assert plan.schedule is not None
    assert plan.schedule.world_size == 4


SCRIPT = """
from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(output_dir="o", per_device_train_batch_size=8, {setting})
GRPOTrainer(model="m", args=args, reward_funcs=[len], train_dataset=None).train()
"""


@pytest.mark.parametrize(
    ("setting", "version", "expected", "fix"),
    [
        ("num_iteration=4", None, [("RLS110", "error")], "did you mean num_iterations?"),
        ("max_prompt_length=512", "1.16.0", [("RLS110", "error")], "accepted by TRL 0.14.0 to 0.28.0: --version 0.28.0"),
        ("max_prompt_length=512", None, [], ""),
        ("made_up_by_nobody=1", None, [("RLS116", "error")], ""),
        ("num_iterations=4", None, [], ""),
    ],
)  # fmt: skip
def test_a_keyword_that_the_dataclass_does_not_have(
    setting: str, version: str | None, expected: list[tuple[str, str]], fix: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(setting=setting))
    plan = planned(f"accelerate launch --num_processes 2 {script}", version)
    assert named(plan) == expected
    if version is None and setting.startswith("max_prompt"):
        assert plan.version == "0.28.0"
    for finding in plan.findings:
        if finding.code in ("RLS110", "RLS116"):
            name = setting.partition("=")[0]
            assert (
                f"TypeError: GRPOConfig.__init__() got an unexpected keyword argument '{name}'"
                in finding.observed + finding.why
            )
            assert fix in finding.fix


@pytest.mark.parametrize(
    "script",
    [
        SCRIPT.replace("from trl import GRPOConfig,", "from mine import GRPOConfig\nfrom trl import").format(setting="made_up=1"),
        "from dataclasses import dataclass\nimport trl\nfrom trl import GRPOTrainer\n@dataclass\nclass Mine(trl.GRPOConfig):\n"
        "    made_up: int = 0\nGRPOTrainer(args=Mine(made_up=3, per_device_train_batch_size=8)).train()\n",
        SCRIPT.format(setting="num_generations=8") + "args.made_up = 3\n",
    ],
)  # fmt: skip
def test_classes_and_attributes_of_somebodys_own_may_have_more(script: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script)
    assert named(planned(f"accelerate launch --num_processes 2 {tmp_path}/train.py")) == []


def test_the_beginning_of_a_name_is_the_setting() -> None:
    plan = planned(f"{MODULE} --num_iteration 4 --gradient_acc 2")
    assert plan.schedule is not None
    assert (plan.schedule.reuse_epochs, plan.schedule.microbatches_per_update) == (4, 2)
    assert named(plan) == []
    assert "--num_iteration is num_iterations" in "\n".join(note.text for note in plan.notes)


def test_the_last_mention_holds_however_it_is_spelled() -> None:
    for words, passes in (("--num_iteration 4 --num_iterations 2", 2), ("--num_iterations 2 --num_iteration 4", 4)):
        plan = planned(f"{MODULE} {words}")
        assert plan.schedule is not None
        assert plan.schedule.reuse_epochs == passes


@pytest.mark.parametrize(
    ("written", "options"),
    [("--num_gen", "--num_generations, --num_generations_eval"), ("--lear", "--learning_rate, --learning-rate")],
)
def test_a_beginning_of_several_names_is_refused_in_argparses_words(written: str, options: str) -> None:
    plan = planned(f"{MODULE} {written} 3", "1.16.0")
    assert named(plan) == [("RLS110", "error")]
    (finding,) = (f for f in plan.findings if f.code == "RLS110")
    assert f"error: ambiguous option: {written} could match {options}" in finding.observed


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _argparse() -> Parser:
    """A parser of the settings of 1.16.0 as HfArgumentParser makes its options: each with underscores, then with dashes."""
    parser = Parser(add_help=False)
    for name in key_list("trl/keys.json").of("1.16.0"):
        parser.add_argument(*dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")), dest=name)
    return parser


PARSER = _argparse()


@given(st.sampled_from(key_list("trl/keys.json").of("1.16.0")), st.integers(1, 40), st.booleans())
def test_abbreviations_mean_what_argparse_makes_of_them(name: str, length: int, dashes: bool) -> None:
    written = "--" + (name.replace("_", "-") if dashes else name)[:length]
    setting = Setting(written[2:].replace("-", "_"), "3", Place("the command", 0, 1), written)
    found = meant_by(setting, key_list("trl/keys.json").of("1.16.0"), dashed=True)
    if len(found) > 1:
        with pytest.raises(ValueError, match="ambiguous option") as raised:
            PARSER.parse_known_args([written, "3"])
        assert str(raised.value) == f"ambiguous option: {written} could match {', '.join(found)}"
        return
    parsed, left = PARSER.parse_known_args([written, "3"])
    assert not left
    assert [each.lstrip("-").replace("-", "_") for each in found] == [n for n, v in vars(parsed).items() if v == "3"]
