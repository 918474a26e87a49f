"""The verb, as people type it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.cli.app import main
from rlstep_hooks.cli.ingest import settings_of
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.ingest.runs import HEADER, grpo, samples, written

if TYPE_CHECKING:
    from collections.abc import Callable

Run = "Callable[..., tuple[int, str, str]]"


@pytest.fixture
def ingest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*words: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["ingest", "--dir", str(tmp_path / "rlstep"), *map(str, words)])
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    return run


def test_a_healthy_export_ends_with_0_and_its_record_is_a_record(tmp_path: Path, ingest: Any, capsys: Any) -> None:
    status, out, err = ingest(written(tmp_path, samples()))
    assert status == 0
    assert "PASS" in out
    assert "reads the interchange schema (JSON lines)" in err
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "rlstep"), "--json"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["counts"]["samples"] == 80


def test_a_fault_ends_with_1(tmp_path: Path, ingest: Any) -> None:
    lines = samples()
    for line in lines[32:48]:
        line["advantage"] = -line["advantage"]
    status, out, _ = ingest(written(tmp_path, lines), "--json")
    assert status == 1
    report = json.loads(out)
    assert report["findings"][0]["code"] == "RLS516"
    assert report["schedule"] is None


def test_what_cannot_be_read_ends_with_2_and_says_where(tmp_path: Path, ingest: Any) -> None:
    status, out, err = ingest(written(tmp_path, [{"rollout": "x"}]))
    assert (status, out) == (2, "")
    assert "line 2: field `rollout`: expected `int`, got `str`" in err
    assert not list((tmp_path / "rlstep").iterdir()), "half of an export is no record"
    assert ingest(tmp_path / "nothing.jsonl")[0] == 2
    (tmp_path / "empty").mkdir()
    assert "expected files that end in" in ingest(tmp_path / "empty")[2]
    assert "expected one of" in ingest(tmp_path / "run.jsonl", "--format", "csv")[2]


def test_the_launch_command_gives_the_sizes(tmp_path: Path, ingest: Any) -> None:
    launch = [
        "--", "python", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo", "data.train_batch_size=4",
        "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4", "trainer.n_gpus_per_node=1", "trainer.total_training_steps=5",
    ]  # fmt: skip
    path = written(tmp_path, samples(), header=None)
    status, out, _ = ingest("--rows", "100", path, *launch)
    assert status == 0, out
    assert "PASS" in out
    status, out, _ = ingest("--rows", "100", written(tmp_path, samples()[:-1], header=None), *launch)
    assert status == 1
    assert "15 samples" in out


def test_the_twenty_lines_of_the_page_write_a_file_that_passes(
    tmp_path: Path, ingest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "ingest.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    assert len([line for line in code[1].splitlines() if line.strip()]) <= 20
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code[1], names)
    for rollout in range(3):
        rewards = [[0.0, 1.0], [1.0, 0.5]]
        names["export"].rollout(
            rollout,
            [
                {"group": prompt, "prompt": f"{prompt}", "completion": f"{rollout} {prompt} {at}"}
                | {"reward": reward, "advantage": advantage, "sampler_version": rollout}
                for prompt, of in enumerate(rewards)
                for at, (reward, advantage) in enumerate(zip(of, grpo(of), strict=True))
            ],
            policy_version=rollout,
        )  # fmt: skip
    status, out, _ = ingest(tmp_path / "run.jsonl")
    assert status == 0, out


def test_the_page_names_every_field(tmp_path: Path) -> None:
    from rlstep_hooks.ingest.advantages import NAMED
    from rlstep_hooks.ingest.export import Header, Sample

    page = (Path(__file__).parents[2] / "docs" / "ingest.md").read_text()
    names = (*Header.__struct_fields__, *Sample.__struct_fields__, *NAMED)
    assert [name for name in names if f"`{name}`" not in page] == []
    assert set(HEADER) <= set(Header.__struct_fields__)


@pytest.mark.parametrize("value", ['"normalize_then_sum"', "chosen()"])
@pytest.mark.parametrize("as_script", [True, False])
def test_what_a_launch_says_of_its_rewards_reaches_the_format(tmp_path: Path, value: str, as_script: bool) -> None:
    sizes = {"per_device_train_batch_size": 8, "num_generations": 4, "max_steps": 5}
    if as_script:
        script = tmp_path / "train.py"
        given = ", ".join(f"{name}={size}" for name, size in sizes.items())
        config = f'GRPOConfig(output_dir="o", {given}, multi_objective_aggregation={value})'
        script.write_text(f"from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer(args={config}).train()\n")
        words = [str(script)]
    else:
        words = ["trl", "grpo", "--output_dir", "o", "--multi_objective_aggregation", value.strip('"')]
        words += [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    found = settings_of(plan_launch(words)).get("multi_objective_aggregation")
    assert found == (None if as_script and "()" in value else value.strip('"'))
