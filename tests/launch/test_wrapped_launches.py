"""Launches that something else starts: a benchmark tool, a cluster's script, a SkyPilot task, a variable behind a guard."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError, NoLaunchError, UnknownValueError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.schedule import Schedule

SKYRL = "-m skyrl.train.entrypoints.main_base trainer.train_batch_size=64 trainer.policy_mini_batch_size=32"


def planned(folder: Path, text: str, name: str = "run.sh", **options: int) -> Schedule:
    """The schedule of a script."""
    script = folder / name
    script.write_text(text)
    schedule = plan_launch([str(script)], Options(**options)).schedule
    assert schedule is not None
    return schedule


def test_the_command_of_cleanrls_benchmark() -> None:
    words = [
        "xvfb-run", "-a", "uv", "run", "python", "-m", "cleanrl_utils.benchmark", "--env-ids", "CartPole-v1", "Acrobot-v1",
        "--command", "uv run python cleanrl/ppo.py --num-envs 8 --num_steps 64 --num_minibatches 2", "--num-seeds", "3",
    ]  # fmt: skip
    schedule = plan_launch(words).schedule
    assert schedule is not None
    assert (schedule.samples_per_rollout, schedule.samples_per_update) == (512, 256)


def test_several_benchmarks_in_a_script_have_lines_of_their_own(tmp_path: Path) -> None:
    line = 'python -m cleanrl_utils.benchmark --env-ids A --command "python cleanrl/ppo.py --num_envs {}" --workers 1\n'
    text = "set -e\n" + line.format(4) + line.format(8)
    with pytest.raises(LaunchError, match=r"there are 2 training commands: line 2 .* line 3"):
        planned(tmp_path, text)
    assert planned(tmp_path, text, line=3).prompts_per_rollout == 8


def test_what_nemo_rls_ray_sub_runs(tmp_path: Path) -> None:
    text = (
        'COMMAND="uv run ./examples/run_grpo.py grpo.num_prompts_per_step=16 grpo.num_generations_per_prompt=4 '
        'policy.train_global_batch_size=64 grpo.max_num_steps=10" CONTAINER=x MOUNTS="a:a" sbatch --nodes=2 --time=1:0:0 ray.sub\n'
    )
    assert planned(tmp_path, text).samples_per_rollout == 64


def test_the_run_of_a_skypilot_task(tmp_path: Path) -> None:
    text = (
        "resources:\n  accelerators: H100:4\nnum_nodes: 2\nsetup: |\n  pip install x\nrun: |\n"
        '  if [ "$SKYPILOT_NODE_RANK" == "0" ]; then\n'
        "    python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 \\\n"
        "      actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.use_dynamic_bsz=True \\\n"
        "      trainer.nnodes=$SKYPILOT_NUM_NODES trainer.n_gpus_per_node=$SKYPILOT_NUM_GPUS_PER_NODE\n"
        "  else\n    ray start\n  fi\n"
    )
    schedule = planned(tmp_path, text, "task.yaml")
    assert (schedule.world_size, schedule.updates_per_rollout) == (8, 4)


def test_a_workflow_that_starts_no_training_is_no_launch(tmp_path: Path) -> None:
    file = tmp_path / "ci.yaml"
    file.write_text("resources:\n  cpus: 2\nrun: python -m pytest\n")
    with pytest.raises(NoLaunchError, match="no framework is known by these settings"):
        plan_launch([str(file)])


@pytest.mark.parametrize("flags", ["", "-u ", "-u -B "])
def test_a_python_that_only_the_run_knows(tmp_path: Path, flags: str) -> None:
    text = f'PYTHON_BIN="$(find_python)"\n"$PYTHON_BIN" {flags}{SKYRL}\n'
    assert planned(tmp_path, text).updates_per_rollout == 2


@pytest.mark.parametrize("found", ["$(which python)", "$(command -v python3)"])
def test_a_program_that_the_shell_looks_up(tmp_path: Path, found: str) -> None:
    assert planned(tmp_path, f'CMD=("{found}" {SKYRL})\nnohup "${{CMD[@]}}"\n').updates_per_rollout == 2


@pytest.mark.parametrize("found", ["$(find_conda)", "$(command -v conda || true)"])
def test_a_python_that_an_unknown_program_runs(tmp_path: Path, found: str) -> None:
    text = f'CONDA="{found}"\nPYTHON=("$CONDA" run -n env python)\nCMD=("${{PYTHON[@]}}" {SKYRL})\n"${{CMD[@]}}" | tee log\n'
    assert planned(tmp_path, text).updates_per_rollout == 2


@pytest.mark.parametrize("found", ["$(find_it)", "$(command -v it || true)"])
def test_a_program_that_only_the_run_knows_is_named_by_its_variable(tmp_path: Path, found: str) -> None:
    text = f'RUNNER="{found}"\n"$RUNNER" --lr 3\n'
    with pytest.raises(NoLaunchError, match=r"\$RUNNER is, only the run knows: --set RUNNER=\.\.\. says it"):
        planned(tmp_path, text)


def test_a_command_in_a_variable_with_parts_that_are_not_known(tmp_path: Path) -> None:
    text = f'OUT=$1\ncmd="python {SKYRL} trainer.ckpt_path=$OUT"\necho $cmd\n$cmd &> $OUT/log\n'
    assert planned(tmp_path, text).updates_per_rollout == 2


@pytest.mark.parametrize(
    "before", ["MASTER_ADDR=${MASTER_ADDR:-}", 'MASTER_ADDR="${MASTER_ADDR-}"', 'MASTER_ADDR=""', ""]
)
def test_a_guard_on_a_variable_that_is_left_to_the_user(tmp_path: Path, before: str) -> None:
    text = f'{before}\nif [ -z "${{MASTER_ADDR}}" ]; then\n  echo "set MASTER_ADDR"\n  exit 1\nfi\npython {SKYRL}\n'
    assert planned(tmp_path, text).updates_per_rollout == 2


def test_a_command_behind_joined_ampersands_of_open_instructs_launcher(tmp_path: Path) -> None:
    text = (
        "python mason.py --cluster x --gpus 8 -- source setup.sh \\&\\&python open_instruct/grpo_fast.py "
        "--num_unique_prompts_rollout 32 --num_samples_per_prompt_rollout 16\n"
    )
    assert planned(tmp_path, text).samples_per_rollout == 512


@pytest.mark.parametrize(
    ("expression", "base"),
    [("s/-tq_(simple|mooncake)$//", "grpo-x"), ("s/^grpo-(.*)-tq_simple/\\1/", None), ("s/-tq.*//g", "grpo-x")],
)
def test_extended_expressions_of_sed(tmp_path: Path, expression: str, base: str | None) -> None:
    (tmp_path / "grpo-x.sh").write_text(f"python {SKYRL}\n")
    text = f"NAME=$(basename $0 .sh)\nBASE=$(echo \"$NAME\" | sed -E '{expression}')\nbash {tmp_path}/$BASE.sh\n"
    if base is None:  # a group in the new text is not followed, and not guessed
        with pytest.raises(NoLaunchError):
            planned(tmp_path, text, "grpo-x-tq_simple.sh")
        return
    assert planned(tmp_path, text, "grpo-x-tq_simple.sh").updates_per_rollout == 2


def test_a_backslash_that_is_missing_is_said_where_no_trainer_is_left(tmp_path: Path) -> None:
    with pytest.raises(NoLaunchError, match="is missing at the end of line 2"):
        planned(tmp_path, "python3 train.py \\\n  --colocate\n  --num-rollout 10 \\\n  --rollout-batch-size 8\n")


@pytest.mark.parametrize(
    "settings",
    [
        'ARGS="trainer.ckpt_path=$HOME/x {}"',
        'ARGS="{} trainer.ckpt_path=$(date +%F at %T)/x"',
        'PLACE=$HOME/x; ARGS="{} trainer.ckpt_path=${{PLACE}}/`date a b`"',
        'ARGS=(trainer.ckpt_path=$HOME/x "{}"); ARGS="${{ARGS[*]}}"',
    ],
)
def test_settings_beside_an_unknown_one_in_a_variable(tmp_path: Path, settings: str) -> None:
    """verl's examples/grpo_trainer/run_qwen3_5-122b-a10b_veomni.sh: all of them were lost without a word."""
    sizes = "trainer.train_batch_size=64 trainer.policy_mini_batch_size=16"
    text = settings.format(sizes) + "\npython -m skyrl.train.entrypoints.main_base $ARGS\n"
    schedule = planned(tmp_path, text)
    assert (schedule.prompts_per_rollout, schedule.updates_per_rollout) == (64, 4)


def test_an_unknown_setting_in_a_variable_is_asked_for(tmp_path: Path) -> None:
    text = (
        f'ARGS="trainer.epochs=2 trainer.train_batch_size=$B trainer.policy_mini_batch_size=16"\npython {SKYRL} $ARGS\n'
    )
    with pytest.raises(
        LaunchError, match=r"train_batch_size cannot be known: \$B is not set in the script; give it with --set B"
    ):
        planned(tmp_path, text)


def test_a_list_in_quotes_is_one_word(tmp_path: Path) -> None:
    text = (
        "EXTRAS=(--extra vllm --extra megatron)\n"
        'MORE=(trainer.run_name="uv run ${EXTRAS[*]}" trainer.policy_mini_batch_size=16)\n'
        f'python {SKYRL} "${{MORE[@]}}"\n'
    )
    assert planned(tmp_path, text).updates_per_rollout == 4
    assert "--extra" not in [setting.name for setting in plan_launch([str(tmp_path / "run.sh")]).unused]


def test_words_for_another_machine_that_are_not_shell_are_left_alone(tmp_path: Path) -> None:
    """slime's scripts: what `$(awk '...')` stands for is not known, and its quotes end those of the text."""
    text = (
        "for IP in $(awk '{print $1}' /hosts); do\n"
        '  ssh root@"${IP}" "pkill -9 python ; ray start --node-ip-address ${IP} --num-gpus 8" &\ndone\nwait\n'
        f"python {SKYRL}\n"
    )
    assert planned(tmp_path, text).updates_per_rollout == 2


SWEEP = """\
for a in 1 2 3 4 5 6 7 8; do for b in 1 2 3 4 5 6 7 8; do for c in 1 2 3 4 5 6 7 8; do bash one.sh $a $b $c; done; done; done
"""


def test_a_file_that_a_sweep_runs_many_times_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.sh").write_text(SWEEP)
    (tmp_path / "one.sh").write_text("python bench.py --batch $1 --layers $2\npython bench.py --graphs $3\n")
    (tmp_path / "bench.py").write_text("measure(batch=1)\n")
    parsed = []
    parse = ast.parse
    monkeypatch.setattr("ast.parse", lambda text, *more, **named: parsed.append(text) or parse(text, *more, **named))
    with pytest.raises(NoLaunchError, match=r"none of these starts a known trainer: bench\.py"):
        plan_launch([str(tmp_path / "run.sh")])
    assert parsed.count(b"measure(batch=1)\n") == 1


def test_the_scripts_that_a_script_runs_are_bounded_together(tmp_path: Path) -> None:
    """512 runs of a script of 41 statements: none of them is long."""
    (tmp_path / "run.sh").write_text(SWEEP)
    (tmp_path / "one.sh").write_text("echo\n" * 41)
    with pytest.raises(LaunchError, match="more than 20000 statements, with those of the scripts that it runs"):
        plan_launch([str(tmp_path / "run.sh")])


@pytest.mark.parametrize(
    "command",
    [
        "uv run rl @ $FILE",
        'orchestrator @ "$FILE"',
        'vf-rl @ "$FILE"',
        "llamafactory-cli train $FILE",
        'swift rlhf "$FILE"',
        'python open_instruct/grpo_fast.py "$FILE"',
        "python3 -m openrlhf.cli.train_ppo_ray $FILE",
        'python3 -m verl.trainer.main_ppo "${FILE[@]}"',
    ],
)
def test_nothing_is_planned_of_settings_that_only_the_run_knows(command: str) -> None:
    with pytest.raises(UnknownValueError, match=r"FILE is not set.*--set FILE=VALUE"):
        plan_launch([command], Options())


def test_further_settings_that_only_the_run_knows_are_said_to_be_left_out() -> None:
    plan = plan_launch(['python -m skyrl.train.entrypoints.main_base trainer.epochs=3 "$MORE"'], Options())
    assert [note.text for note in plan.notes if "$MORE is not set" in note.text] != []
    assert plan_launch(['python -m skyrl.train.entrypoints.main_base "$@"'], Options()).schedule is not None


TRAINS = f"python {SKYRL} trainer.epochs=2"


@pytest.mark.parametrize(
    "terminal",
    [
        "tmux new-session -d -s train 'cd x && {}; exec bash'",
        "tmux new -ds train {}",
        'tmux new-window -t train -n run "{}"',
        "tmux send-keys -t train '{}' C-m",
        "tmux send-keys -t train 'cd x' Enter '{}' Enter",
        "tmux send-keys -t train:0.1 -- '{}' KPEnter",
        "screen -dmS train bash -c '{}'",
        "screen -d -m -S train {}",
    ],
)
def test_a_command_that_runs_in_a_terminal_of_its_own(tmp_path: Path, terminal: str) -> None:
    text = terminal.format(TRAINS)
    assert planned(tmp_path, text, rows=640).rollouts == 20


@pytest.mark.parametrize("terminal", ["tmux kill-session -t train", "tmux new-session -d -s train", "screen -r train"])
def test_a_terminal_without_a_command_starts_nothing(tmp_path: Path, terminal: str) -> None:
    with pytest.raises(NoLaunchError, match=f"none of these starts a known trainer: {terminal.split()[0]}"):
        planned(tmp_path, terminal)


def test_a_script_that_starts_itself_again_in_a_terminal(tmp_path: Path) -> None:
    text = (
        'HERE=$(cd "$(dirname "$0")" && pwd)\nNAME=$(basename "$0")\nEPOCHS=2 INSIDE=false\n'
        "while [[ $# -gt 0 ]]; do case $1 in --epochs) EPOCHS=$2; shift 2;; --inside) INSIDE=true; shift;; esac; done\n"
        'if [[ -z "${TMUX:-}" ]] && [[ "$INSIDE" == false ]]; then\n'
        '  ARGS="--inside --epochs $(printf \'%q\' "$EPOCHS")"\n'
        '  tmux new-session -d -s train "conda activate x && bash $HERE/$NAME $ARGS; exec bash"\n'
        "  exit 0\nfi\n"
        f"{TRAINS.replace('epochs=2', 'epochs=$EPOCHS')}\n"
    )
    assert planned(tmp_path, text, rows=640).rollouts == 20


def test_when_a_run_saves_need_not_be_known(tmp_path: Path) -> None:
    text = (
        "python3 -m verl.trainer.main_ppo data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8 "
        "actor_rollout_ref.actor.use_dynamic_bsz=True trainer.n_gpus_per_node=1 trainer.save_freq=$(./saves.sh) trainer.total_epochs=3"
    )
    assert planned(tmp_path, text, rows=80).rollouts == 30


@pytest.mark.parametrize(
    ("set_", "says"),
    [
        ("set -u", "$COEF is set where the script is started"),
        ("set -xeuo pipefail", "$COEF is set where"),
        ("set -o nounset", "$COEF is set where"),
        ("set -e", ""),
        ("set -u\nset +u", ""),
        ("set -u\nCOEF=1", ""),
        ("set -u\nCOEF=${COEF:-1}", ""),
        ("set -u\nCOEF=$1", "$1 is set where"),
        ("set -- -u", ""),
    ],
)
def test_a_variable_without_which_the_script_ends_is_taken_for_set(tmp_path: Path, set_: str, says: str) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"{set_}\n{TRAINS} trainer.algorithm.coef=$COEF trainer.name=$HOME/x\n")
    plan = plan_launch([str(script)], Options(rows=640))
    said = "\n".join(note.text for note in plan.notes if "set -u" in note.text)
    assert says in said
    assert bool(said) == bool(says)
    assert not says or "run.sh:1:1" in said


@pytest.mark.parametrize(
    ("before", "sources", "ends"),
    [
        ("set -ex", "source $HERE/scripts/models/small.sh", True),
        ("set -o errexit", ". $HERE/scripts/models/small.sh", True),
        ("set -x", "source $HERE/scripts/models/small.sh", False),
        ("set -e\nset +e", "source $HERE/scripts/models/small.sh", False),
        ("(set -e)", "source $HERE/scripts/models/small.sh", False),
        ("set -e", "source $HERE/scripts/models/small.sh || true", False),
        ("set -e", "! source $HERE/scripts/models/small.sh", False),
        ("set -e", "if [ -f $HERE/small.env ]; then source $HERE/scripts/models/small.sh; fi", False),
        # One that is nowhere in the repository may be of each user's own.
        ("set -e", "source $HERE/.env", False),
        ("set -e", "source $HERE/scripts/venv/bin/activate", False),
        ("set -e", "source $HERE/models/small.sh", False),
    ],
)
def test_a_script_ends_at_a_file_that_it_sources_from_the_wrong_place(
    tmp_path: Path, before: str, sources: str, ends: bool
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "scripts/models").mkdir(parents=True)
    (tmp_path / "scripts/models/small.sh").write_text("MODEL=(--small)\n")
    script = tmp_path / "scripts/run.sh"
    here = 'HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"'
    script.write_text(f"{before}\n{here}\n{sources}\n{TRAINS}\n")
    if not ends:
        assert plan_launch([str(script)], Options(rows=640)).schedule is not None
        return
    with pytest.raises(LaunchError, match=r"which is not there \(scripts/models/small\.sh is\), and with `set -e`"):
        plan_launch([str(script)], Options(rows=640))


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("/n/somebody/project/verl/proj", True),
        ("/n/somebody/proj", False),  # many repositories have a folder of that name
        ("/n/somebody/project/other/proj", False),
    ],
)
def test_a_folder_of_the_machine_that_a_script_was_written_for(tmp_path: Path, where: str, found: bool) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "verl/proj/scripts").mkdir(parents=True)
    (tmp_path / "verl/proj/scripts/small.sh").write_text(f"{TRAINS}\n")
    script = tmp_path / "jobs/job.sh"
    script.write_text(f"mamba activate own\ncd {where}\nbash scripts/small.sh\n")
    if not found:
        with pytest.raises(NoLaunchError, match=r"none of these starts a known trainer"):
            plan_launch([str(script)], Options(rows=640))
        return
    assert plan_launch([str(script)], Options(rows=640)).schedule is not None
