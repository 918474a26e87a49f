"""`rlstep plan`, `diff`, `convert` and `recipes` as a user calls them: output, exit status, messages."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.cli import main
from rlstep_hooks.cli.app import parser
from rlstep_hooks.cli.plan import OPTIONS
from rlstep_hooks.planning.schedule import Schedule
from tests.examples import MANY

if TYPE_CHECKING:
    from pathlib import Path

TRL = "trl grpo --per_device_train_batch_size 4 --gradient_accumulation_steps 4 --num_generations 8 --max_steps 20"
SKYRL = (
    "python -m skyrl.train.entrypoints.main_base trainer.train_batch_size=1024 trainer.policy_mini_batch_size=256 "
    "generator.n_samples_per_prompt=5 trainer.epochs=20"
)


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are folded at the width of the terminal; here none is."""
    monkeypatch.setenv("COLUMNS", "120")


def rlstep(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit status, output and messages of one call."""
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command))
    captured = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, captured.out, captured.err


def as_json(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    _, out, _ = rlstep(command, capsys)
    value: dict[str, Any] = json.loads(out)
    return value


def test_the_table_says_it_on_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = rlstep(f"plan --rows 7473 --steps 100 -- {SKYRL}", capsys)
    assert (status, err) == (0, "")
    for line in (
        "SkyRL 0.3.0 · GRPO · from the launch command",
        "rollout          1 024 prompts x 5 samples",
        "updates/rollout  1 x 5 120 / 1 280                  4",
        "lag 0 1 2 3 · ratio is 1 on update 1 only",
        "1 rollout = 4 updates",
        "140 rollouts · 560 updates",
        "19.2 data epochs (20 loader passes)",
        "305 of 7 473 dropped in each pass",
    ):
        assert line in out
    assert max(len(line) for line in out.splitlines()) <= 100


def test_steps_are_read_in_every_way(capsys: pytest.CaptureFixture[str]) -> None:
    plan = as_json(f"plan --json --rows 8532 --steps 100 -- {SKYRL} generator.n_samples_per_prompt=8", capsys)
    readings = {reading["unit"]: reading for reading in plan["steps"]}
    assert readings["rollout"]["logged"]
    assert (readings["rollout"]["rollouts"], readings["rollout"]["updates"], readings["rollout"]["loader_epochs"]) == (
        100,
        400,
        "25/2",
    )
    # simpleRL#75: 3 epochs if a step is a mini-batch of 256 prompts.
    assert (readings["update"]["rollouts"], readings["update"]["updates"]) == (25, 100)
    assert readings["update"]["data_epochs"] == "6400/2133"
    assert set(readings) == {"rollout", "update", "microbatch", "sample"}


def test_json_has_the_whole_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    plan = as_json(f"plan --json --rows 100 -- {TRL} --unheard-of 3", capsys)
    schedule = plan["schedule"]
    assert set(Schedule.__struct_fields__) == set(schedule)
    assert (plan["schema"], plan["accepted"], plan["error"]) == (1, True, None)
    assert (schedule["updates_per_rollout"], schedule["updates"], schedule["samples_per_rollout"]) == (1, 20, 16)
    assert any(said.startswith("1 process: the launch does not say") for said in plan["assumptions"])
    assert plan["unused_settings"] == {
        "unheard_of": {"value": "3", "no_effect": False, "place": "argument 11 of the command"}
    }
    assert [finding["code"] for finding in plan["findings"]] == ["RLS116", "RLS102"]
    assert all(finding["report"].startswith("https://") for finding in plan["findings"])
    assert {formula["quantity"] for formula in plan["formulas"]} >= {"samples_per_rollout", "updates_per_rollout"}


def test_explain_shows_formula_numbers_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = rlstep(f"plan --explain --rows 7473 -- {SKYRL}", capsys)
    text = " ".join(out.split())
    assert "trainer.train_batch_size / trainer.policy_mini_batch_size = 1 * 1 024 / 256 = 4" in text
    assert "skyrl/train/trainer.py _execute_training_step" in text


def test_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = rlstep(f"plan --markdown --rows 7473 -- {SKYRL}", capsys)
    assert "| updates/rollout | 1 x 5 120 / 1 280 | 4 |" in out
    assert "| 140 steps as | rollouts | updates |" in out


def test_what_the_framework_would_raise_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    launch = "trl grpo --per_device_train_batch_size 7 --num_generations 6"
    status, out, _ = rlstep(f"plan --rows 99 --world-size 1 -- {launch}", capsys)
    assert status == 1
    assert "generation_batch_size (7) must be divisible by num_generations (6)." in out
    assert "per_device_train_batch_size = 6 or" in out
    plan = as_json(f"plan --json --world-size 1 -- {launch}", capsys)
    assert plan["schedule"] is None
    assert plan["accepted"] is False


def test_a_refusal_leaves_the_plan_that_the_sizes_mean(capsys: pytest.CaptureFixture[str]) -> None:
    launch = f"{SKYRL} trainer.micro_train_batch_size_per_gpu=60"
    status, out, _ = rlstep(f"plan --rows 7473 -- {launch}", capsys)
    assert status == 1
    table, _, refusal = out.partition("ERROR RLS110")
    assert "1 024 prompts x 5 samples" in table
    assert "what the sizes would mean; as it stands, SkyRL refuses the launch" in table
    assert "should be divisible by micro_train_batch_size_per_gpu 60" in " ".join(refusal.split())
    plan = as_json(f"plan --json --rows 7473 -- {launch}", capsys)
    assert plan["accepted"] is False
    assert plan["schedule"]["samples_per_rollout"] == 5120
    assert "what the sizes would mean" in plan["assumptions"][0]


def test_a_verl_launch_without_a_micro_batch_size_has_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "data.train_batch_size=1024 actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.rollout.n=5"
    _, out, _ = rlstep(
        f"plan --rows 7473 -- python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo {sizes}", capsys
    )
    assert "updates/rollout  1 x 5 120 / 1 280" in out
    assert "no micro-batch size is given" in " ".join(out.split())
    assert "Please set at least one of" in out


def test_the_number_of_processes_is_asked_for_where_it_decides(capsys: pytest.CaptureFixture[str]) -> None:
    launch = "trl grpo --per_device_train_batch_size 7 --num_generations 6"
    status, out, err = rlstep(f"plan --rows 99 -- {launch}", capsys)
    assert (status, out) == (2, "")
    assert "does not say on how many processes" in err
    assert "on 6, 12, 18, 24, 30, 36, ... it does not" in err
    assert "--world-size N" in err
    _, out, _ = rlstep(f"plan --rows 99 -- {launch.replace('7', '6')}", capsys)
    assert "1 process: the launch does not say" in out


def test_data_files_that_cannot_be_known_leave_the_rows_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"{SKYRL} data.train_data=$HOME/gsm8k/train.parquet")
    status, out, _ = rlstep(f"plan {script}", capsys)
    assert status == 0
    assert "give --rows" in out


def test_a_configuration_whose_name_is_not_known_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "run.sh"
    script.write_text("uv run examples/run_grpo.py --config $CONFIG_PATH grpo.num_prompts_per_step=32\n")
    status, out, err = rlstep(f"plan {script}", capsys)
    assert (status, out) == (2, "")
    assert "the configuration file cannot be known" in err
    assert "--set CONFIG_PATH=VALUE" in err


def test_a_line_that_bash_reads_as_another_command_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"{SKYRL} \\\n  trainer.epochs=3\n  generator.n_samples_per_prompt=9\n")
    _, out, _ = rlstep(f"plan --rows 7473 {script}", capsys)
    assert "1 024 prompts x 5 samples" in out
    assert "`generator.n_samples_per_prompt=9` on line 3" in " ".join(out.split())


def test_strict_fails_on_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    launch = f"{TRL} --shuffle_dataset False"
    assert rlstep(f"plan --rows 101 -- {launch}", capsys)[0] == 0
    assert rlstep(f"plan --strict --rows 101 -- {launch}", capsys)[0] == 1


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("plan", "there is no command"),
        ("plan --", "there is no command"),
        ("plan -- ls -la", "none of these starts a known trainer: ls"),
        ("plan -- python nowhere.py", "none of these starts a known trainer: nowhere.py (not here)"),
        ("plan nowhere.sh", "rlstep: nowhere.sh: No such file or directory"),
        ("plan -- 'not a (command'", "the command:1"),
        ("plan missing.sh", "missing.sh"),
        ("plan missing.yaml", "missing.yaml: there is no such file"),
        # Without arguments it would be OpenRLHF's own program with its defaults.
        ("plan train_ppo.py", "train_ppo.py: there is no such file"),
        (
            f"plan -- {TRL} --num_iterations 0",
            "argument 11 of the command: --num_iterations = 0: it must be at least 1",
        ),
        (f"plan -- {TRL} --num_iterations -2", "it must be at least 1"),
        (f"plan -- {TRL} --num_iterations two", "'two' is not a whole number"),
        (f"plan -- {TRL} --num_iterations", "'true' is not a whole number"),
        ("plan -- accelerate launch -m trl.scripts.grpo", "give --world-size N"),
        (f"plan --framework nothing -- {TRL}", "there is no framework 'nothing'; there are"),
        (f"plan --version 0.9.1 -- {TRL}", "TRL 0.9.1 is not known"),
        (f"plan --version new -- {TRL}", "'new' is no release"),
        (f"plan --rows 0 -- {TRL}", "--rows 0: it must be at least 1"),
        (f"plan --world-size -1 -- {TRL}", "--world-size -1: it must be at least 1"),
        (f"plan --set X -- {TRL}", "--set takes NAME=VALUE"),
        ("plan -- ray job submit python train.py", "needs ` -- `"),
        (f"plan -- {SKYRL} trainer.epochs=[1,2", "a bracket is open"),
        (f"plan -- {SKYRL} trainer.epochs=1,2", "which means a sweep"),
        ("plan recipe:nothing", "recipe"),
        ("diff recipe:nothing recipe:r1-zero", "there is no recipe 'nothing'; there are"),
        ("diff recipe:r1-zero", "give two launches or recorded runs"),
        (f"convert --to nothing -- {TRL}", "there is no framework 'nothing'"),
    ],
)
def test_bad_input_is_a_message_and_status_2(command: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = rlstep(command, capsys)
    assert status == 2
    assert message in err
    assert "Traceback" not in err
    assert out == ""


def test_an_option_behind_the_command_is_told_from_the_commands_own(capsys: pytest.CaptureFixture[str]) -> None:
    launch = "trl grpo --per_device_train_batch_size 4 --num_generations 4"
    status, _, err = rlstep(f"plan --rows 8 --world-size 1 -- {launch} --explain", capsys)
    assert status == 1, "TRL has no such option, and ends"
    assert "--explain behind the command goes to the command; write it in front of `--`" in err
    assert "goes to the command" not in rlstep(f"plan --rows 8 --world-size 1 --explain -- {launch}", capsys)[2]


def test_all_options_of_plan_are_known_behind_a_command_too() -> None:
    (verbs,) = (action for action in parser()._actions if isinstance(action.choices, dict))
    options = {name for action in verbs.choices["plan"]._actions for name in action.option_strings}
    assert options - {"-h", "--help"} == OPTIONS


def test_options_that_do_not_exist_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = rlstep("plan --nonsense -- x", capsys)
    assert status == 2
    assert "--nonsense" in err


def test_a_variable_of_the_script_is_asked_for_and_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\nGPUS=$(nvidia-smi -L | wc -l)\naccelerate launch --num_processes $GPUS -m trl.scripts.grpo \\\n"
                      "  --num_generations ${GROUP} --max_steps 5 \"$@\"\n")  # fmt: skip
    status, _, err = rlstep(f"plan {script}", capsys)
    assert status == 2
    assert (
        f"{script}:2:1: the number of processes of `accelerate launch` cannot be known: GPUS is the output of $(nvidia-smi"
        in err
    )
    assert "--set GPUS=VALUE" in err
    status, _, err = rlstep(f"plan --set GPUS=4 {script}", capsys)
    assert status == 2
    assert (
        f"{script}:4:21: --num_generations cannot be known: $GROUP is not set in the script; give it with --set GROUP=VALUE"
        in err
    )
    plan = as_json(f"plan --json --rows 99 --set GROUP=8 --set GPUS=4 {script}", capsys)
    assert (plan["schedule"]["world_size"], plan["schedule"]["samples_per_prompt"]) == (4, 8)
    assert (
        as_json(f"plan --json --rows 99 --set GROUP=8 --set GPUS=4 {script} -- --max_steps 7", capsys)["schedule"][
            "updates"
        ]
        == 7
    )


def test_several_training_commands_are_told_apart_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "run.sh"
    script.write_text("pip install trl\ntrl grpo --max_steps 5\necho done\ntrl grpo --max_steps 9\n")
    status, _, err = rlstep(f"plan {script}", capsys)
    assert status == 2
    assert "line 2 (trl), line 4 (trl); choose one with --line N" in err
    assert as_json(f"plan --json --line 4 {script}", capsys)["schedule"]["updates"] == 9


def test_a_named_framework_takes_its_own_program_among_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "ray start --head --port 6379\nmkdir -p --verbose out\npython my_trainer.py --max_steps 5\nray stop --force\n"
    )
    assert rlstep(f"plan {script}", capsys)[0] == 2
    assert as_json(f"plan --json --framework trl {script}", capsys)["schedule"]["updates"] == 5


def test_rows_come_from_the_data_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": 1}\n' * 2050)
    script = tmp_path / "run.sh"
    script.write_text(f"D=train.jsonl\n{SKYRL} data.train_data=\"['$D']\"\n")
    plan = as_json(f"plan --json {script}", capsys)
    assert (
        plan["schedule"]["rows"],
        plan["schedule"]["rollouts_per_epoch"],
        plan["schedule"]["rows_dropped_per_epoch"],
    ) == (
        2050,
        2,
        2,
    )


def test_diff_names_quantities_and_the_settings_behind_them(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = rlstep(f"diff --rows 7473 --json '{SKYRL}' -- {SKYRL} trainer.policy_mini_batch_size=512", capsys)
    assert status == 1
    found = {difference["quantity"]: difference for difference in json.loads(out)["differences"]}
    assert found["updates_per_rollout"]["a"]["value"] == 4
    assert found["updates_per_rollout"]["b"]["value"] == 2
    assert found["updates_per_rollout"]["causes"] == ["trainer.policy_mini_batch_size"]
    assert found["updates"]["causes"] == ["trainer.policy_mini_batch_size"]
    assert "prompts_per_rollout" not in found
    status, out, _ = rlstep(f"diff '{SKYRL}' '{SKYRL}'", capsys)
    assert (status, out.startswith("the same schedule")) == (0, True)
    _, out, _ = rlstep(f"diff '{SKYRL}' '{SKYRL} trainer.policy_mini_batch_size=512'", capsys)
    assert "trainer.policy_mini_batch_size" in out


def test_diff_with_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = rlstep(f"diff recipe:r1-zero -- {TRL}", capsys)
    assert status == 1
    assert "samples_per_update" in out
    _, out, _ = rlstep(f"diff --rows 100 --json recipe:dapo -- {TRL}", capsys)
    assert "rollouts" not in {
        difference["quantity"] for difference in json.loads(out)["differences"]
    }  # the paper does not say


def test_convert_prints_a_launch_or_says_what_cannot_be_kept(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = rlstep(f"convert --to trl --rows 7473 -- {SKYRL}", capsys)
    assert (status, err) == (0, "")
    assert "--num_generations 5" in out
    fraction = "trl grpo --gradient_accumulation_steps 8 --steps_per_generation 4 --max_steps 4"
    status, out, err = rlstep(f"convert --to skyrl -- {fraction}", capsys)
    assert (status, out) == (2, "")
    assert "updates_per_rollout = 1/2 cannot be kept" in err


def test_recipes_have_sources(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = rlstep("recipes", capsys)
    assert status == 0
    assert "recipe:r1-zero" in out
    assert "arXiv 2501.12948" in out


@given(st.lists(st.text(max_size=15), max_size=6))
@MANY
def test_any_words_are_planned_or_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--", *words])
    assert ended.value.code in (1, 2)


IMPORTS = """
import json, sys
sys.argv = ["rlstep", *json.loads(sys.argv[1])]
from rlstep_hooks.cli import main
try:
    main()
except SystemExit as ended:
    assert ended.code == 0, ended.code
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


VERL = (
    "python3 -m verl.trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=32 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 "
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1 algorithm.adv_estimator=grpo"
)
HEAVY = {
    "torch", "numpy", "transformers", "trl", "verl", "ray", "omegaconf", "hydra", "rich", "yaml", "tree_sitter", "pyarrow",
}  # fmt: skip


READ_FILES = (
    "rlstep_hooks.launch.classes", "rlstep_hooks.launch.inheritance", "rlstep_hooks.launch.own_parser",
    "rlstep_hooks.launch.python_file", "rlstep_hooks.launch.python_source", "rlstep_hooks.launch.shell.script",
    "rlstep_hooks.launch.yaml_file", "rlstep_hooks.systems.engine.config_launch", "rlstep_hooks.systems.engine.configurations",
    "rlstep_hooks.systems.engine.hydra_main", "rlstep_hooks.systems.engine.launch_beside",
    "rlstep_hooks.systems.engine.own_configuration", "rlstep_hooks.systems.engine.own_program",
    "rlstep_hooks.systems.engine.python_program", "rlstep_hooks.systems.engine.refused_by_checkout",
    "rlstep_hooks.systems.engine.repeated_training", "rlstep_hooks.systems.engine.trained_elsewhere",
    "rlstep_hooks.systems.verl.checkout.forks", "rlstep_hooks.systems.verl.checkout.loop",
    "rlstep_hooks.systems.verl.checkout.reading", "rlstep_hooks.systems.verl.checkout.run",
    "rlstep_hooks.systems.verl.checkout.workers",
)  # fmt: skip
"""What reads the files beside a launch: loading all of it takes as long as a third of a plan."""
SLOW_TO_LOAD = {"copy", "glob", "importlib.metadata", "logging", "packaging", "random", "subprocess", "tempfile"}
"""Parts of the standard library, and a package, that a plan of a command needs nothing of."""


def imported_by_a_plan(launch: str, folder: Path) -> set[str]:
    words = ["plan", "--rows", "7473", "--", *shlex.split(launch)]
    run = subprocess.run(
        [sys.executable, "-c", IMPORTS, json.dumps(words)],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
        cwd=folder,
    )
    return set(json.loads(run.stderr))


@pytest.mark.parametrize("launch", [SKYRL, VERL, TRL], ids=["skyrl", "verl", "trl"])
def test_a_plan_imports_neither_torch_nor_a_framework_nor_a_terminal_library(launch: str, tmp_path: Path) -> None:
    assert not {name.partition(".")[0] for name in imported_by_a_plan(launch, tmp_path)} & HEAVY


TINYZERO = (
    "python3 -m verl.trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=32 "
    "actor_rollout_ref.actor.ppo_micro_batch_size=8 critic.ppo_mini_batch_size=32 critic.ppo_micro_batch_size=8 "
    "trainer.project_name=TinyZero"
)


@pytest.mark.parametrize("launch", [SKYRL, VERL, TRL, TINYZERO], ids=["skyrl", "verl", "trl", "a fork of verl"])
def test_a_plan_in_an_empty_folder_imports_nothing_that_reads_files(launch: str, tmp_path: Path) -> None:
    assert all(importlib.util.find_spec(name) for name in READ_FILES)
    assert imported_by_a_plan(launch, tmp_path).isdisjoint(READ_FILES)


def test_a_plan_of_a_command_loads_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    assert not imported_by_a_plan(VERL, tmp_path) & SLOW_TO_LOAD


def test_a_plan_beside_a_file_that_trains_imports_what_reads_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer(args=GRPOConfig(max_steps=2))\n"
    )
    imported = imported_by_a_plan("python train.py", tmp_path)
    assert "rlstep_hooks.systems.engine.python_program" in imported
    assert "rlstep_hooks.systems.verl.checkout.reading" not in imported


@pytest.mark.parametrize("command", ["bash run.sh", "python train.py", "trl grpo --config c.yaml"])
def test_a_command_in_quotes_may_end_with_a_file(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(TRL + "\n")
    (tmp_path / "c.yaml").write_text("num_generations: 8\nper_device_train_batch_size: 8\n")
    (tmp_path / "train.py").write_text(
        "from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer(args=GRPOConfig(num_generations=8))\n"
    )
    in_quotes = rlstep(f"plan --rows 96 --world-size 1 --json '{command}'", capsys)
    in_words = rlstep(f"plan --rows 96 --world-size 1 --json -- {command}", capsys)
    assert in_words[0] == in_quotes[0] == 0
    assert json.loads(in_quotes[1])["schedule"] == json.loads(in_words[1])["schedule"]
