"""`rlstep plan --fix` and `--write`: every change that is offered was planned again, and mends."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.cli import main
from rlstep_hooks.launch.files import edited
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.fixes import applied, fixes_of
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.systems.engine.fixes import Fix, Offer

GRPO = "accelerate launch --num_processes 4 train_grpo.py --num_generations 6 --per_device_train_batch_size 8"
SCRIPT = """\
BATCH=${BATCH:-1024}
export N=8
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo data.train_batch_size=$BATCH \\
    actor_rollout_ref.rollout.n=${N} \\
    actor_rollout_ref.actor.ppo_mini_batch_size=300 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 trainer.n_gpus_per_node=8 $@
"""


def rlstep(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit status and output of one call."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().out


def changes(offer: Offer) -> dict[str, object]:
    return {change.name: change.after for change in offer.mend.changes}


def mends(words: list[str], fix: Fix, offer: Offer, options: Options) -> bool:
    """Whether the edited launch has the finding no longer."""
    _, source, _ = fixes_of(words, options)
    new, texts = applied(source, offer.edits)
    with edited(texts):
        return fix.finding.code not in {finding.code for finding in plan_launch(new, options).findings}


def test_a_refused_command_is_mended_in_its_own_words() -> None:
    options = Options(framework="trl", rows=96)
    _, source, (fix,) = fixes_of(GRPO.split(), options)
    assert {"num_generations": 8} in [changes(offer) for offer in fix.offers]
    for offer in fix.offers:
        assert mends(GRPO.split(), fix, offer, options)
        words, texts = applied(source, offer.edits)
        assert not texts
        assert words[:5] == GRPO.split()[:5]


def test_a_setting_that_is_not_written_is_added_beside_the_others() -> None:
    options = Options(framework="trl", rows=96)
    _, source, (fix,) = fixes_of(GRPO.split(), options)
    added = next(offer for offer in fix.offers if "gradient_accumulation_steps" in changes(offer))
    assert applied(source, added.edits)[0] == [*GRPO.split(), "--gradient_accumulation_steps", "3"]


def test_a_script_is_edited_where_the_value_stands(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT)
    options = Options(rows=8532)
    _, _, (fix,) = fixes_of([str(script)], options)
    assert changes(fix.offers[0]) == {"actor_rollout_ref.actor.ppo_mini_batch_size": 256}
    (edit,) = fix.offers[0].edits
    assert edit.line == 6
    of_variable = next(offer for offer in fix.offers if "actor_rollout_ref.rollout.n" in changes(offer))
    assert [(edit.line, edit.before, edit.after) for edit in of_variable.edits] == [(2, "export N=8", "export N=16")]
    assert script.read_text() == SCRIPT, "nothing is written without --write"


def test_write_makes_the_first_change_and_the_plan_is_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT)
    assert rlstep(["plan", "--rows", "8532", "--fix", str(script)], capsys)[0] == 1
    assert rlstep(["plan", "--rows", "8532", "--fix", "--write", str(script)], capsys)[0] == 0
    assert script.read_text() == SCRIPT.replace("=300", "=256")
    assert rlstep(["plan", "--rows", "8532", str(script)], capsys)[0] == 0


def test_write_prints_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    status, output = rlstep(["plan", "--framework", "trl", "--rows", "96", "--write", "--", *GRPO.split()], capsys)
    assert status == 0
    command = shlex.split(output.splitlines()[-1])
    assert plan_launch(command, Options(framework="trl", rows=96)).schedule is not None


def test_yaml_and_python_are_edited(tmp_path: Path) -> None:
    config, program = tmp_path / "c.yaml", tmp_path / "train.py"
    config.write_text("learning_rate: 1e-6\nnum_generations: 6  # of each prompt\nper_device_train_batch_size: 8\n")
    program.write_text(
        "from trl import GRPOConfig\nargs = GRPOConfig(num_generations=6, per_device_train_batch_size=8)\n"
    )
    options = Options(framework="trl", rows=96, world_size=1)
    for path, line in (
        (config, "num_generations: 8  # of each prompt"),
        (program, "args = GRPOConfig(num_generations=8, per_device_train_batch_size=8)"),
    ):
        _, _, (fix, *_) = fixes_of([str(path)], options)
        offer = next(offer for offer in fix.offers if changes(offer) == {"num_generations": 8})
        assert [edit.after for edit in offer.edits] == [line]


def test_a_misspelt_setting_gets_its_name() -> None:
    words = (
        SCRIPT.split("\n", 2)[2].replace("\\\n", " ").replace("$BATCH", "1024").replace("${N}", "8").replace("$@", "")
    )
    words = words.replace("=300", "=256").replace("ppo_mini_batch_size", "ppo_mini_batch_sizee")
    _, _, (fix, *_) = fixes_of(words.split(), Options(rows=8192))
    (offer,) = fix.offers
    assert [edit.after for edit in offer.edits] == ["actor_rollout_ref.actor.ppo_mini_batch_size=256"]


def test_a_computed_value_is_left_to_the_user(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT.replace("=300", "=$((N * 37 + 4))").replace("per_gpu=8", "per_gpu=$((2 * 4))"))
    _, _, (fix, *_) = fixes_of([str(script)], Options(rows=8532))
    of_computed = [offer for offer in fix.offers if any("ppo_m" in name for name in changes(offer))]
    assert of_computed
    assert all(not offer.edits for offer in of_computed)


def test_what_a_change_keeps_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "python3 train.py --num-rollout 3000 --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 200"
    )
    words += " --actor-num-nodes 1 --actor-num-gpus-per-node 8"
    status, output = rlstep(["plan", "--rows", "96000", "--fix", "--", *words.split()], capsys)
    assert status == 1
    assert "global-batch-size = 256 instead of 200" in output
    assert "changes the size of an update" in " ".join(output.split())
    assert "rollout-batch-size = 25 instead of 32" in output


def test_json_has_the_fixes(capsys: pytest.CaptureFixture[str]) -> None:
    _, output = rlstep(["plan", "--framework", "trl", "--rows", "96", "--fix", "--json", "--", *GRPO.split()], capsys)
    answer = json.loads(output)
    (fix,) = answer["fixes"]
    assert fix["code"] == "RLS110"
    assert {"num_generations": 8} in [offer["changes"] for offer in fix["offers"]]
    assert all(offer["schedule"]["updates_per_rollout"] for offer in fix["offers"])
