from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.ingest.export import Asked, ExportError
from tests.ingest.runs import HEADER, Line, found, grpo, ingested, reason_of, samples, verdict_of, written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

JUDGED = {"RLS207", "RLS402", "RLS403", "RLS501", "RLS505", "RLS508", "RLS514", "RLS516", "RLS518", "RLS522"}
"""Rules that a complete export is judged by."""


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_export_passes(tmp_path: Path, seed: int) -> None:
    report = ingested(written(tmp_path, samples(seed)))
    assert (report.verdict, found(report)) == ("PASS", {})
    assert (report.counts.rollouts, report.counts.samples, report.ending) == (5, 80, "exported")
    assert {rule.code for rule in report.rules if rule.verdict == "PASS"} == JUDGED
    assert report.schedule is None, "no launch was given, so nothing of a plan is shown"


def test_what_an_export_cannot_show_is_said(tmp_path: Path) -> None:
    report = ingested(written(tmp_path, samples()))
    assert verdict_of(report, "RLS203") == "NOT_EVALUATED"
    assert reason_of(report, "RLS203") == "an export holds samples, and not what updates did with them"


def test_without_sizes_nothing_passes_and_the_reason_is_said(tmp_path: Path) -> None:
    report = ingested(written(tmp_path, samples(), header=None))
    assert (report.verdict, found(report)) == ("NOT_EVALUATED", {})
    assert "give the launch command after `--`" in report.not_evaluated["order"]
    assert verdict_of(report, "RLS516") == "NOT_EVALUATED"
    assert "by which formula" in reason_of(report, "RLS516")


def test_without_versions_neither_age_nor_distance_is_judged(tmp_path: Path) -> None:
    lines = [{k: v for k, v in line.items() if not k.endswith("_version")} for line in samples()]
    report = ingested(written(tmp_path, lines))
    assert found(report) == {}
    assert {verdict_of(report, code) for code in ("RLS402", "RLS403")} == {"NOT_EVALUATED"}


@pytest.mark.parametrize("estimator", ["grpo", "grpo_batch_std", "dr_grpo", "rloo", "none"])
def test_each_estimator_is_silent_on_its_own_advantages_and_finds_all_others(tmp_path: Path, estimator: str) -> None:
    lines = samples(3)
    for start in range(0, len(lines), 16):
        rollout = lines[start : start + 16]
        for line, advantage in zip(rollout, _advantages(estimator, [line["reward"] for line in rollout]), strict=True):
            line["advantage"] = advantage
    named = {}
    for other in ("grpo", "grpo_batch_std", "dr_grpo", "rloo", "none"):
        folder = tmp_path / other
        folder.mkdir()
        named[other] = "RLS516" in found(
            ingested(written(folder, lines, HEADER | {"estimator": other, "epsilon": None}))
        )
    assert named == {other: other != estimator for other in named}


def _advantages(estimator: str, rewards: list[float]) -> list[float]:
    """By the documents, written independently of the package."""
    import statistics

    groups = [rewards[start : start + 4] for start in range(0, 16, 4)]
    if estimator == "grpo":
        return [value for group in groups for value in grpo(group)]
    if estimator == "grpo_batch_std":
        whole = statistics.stdev(rewards) + 1e-4
        return [(reward - statistics.fmean(group)) / whole for group in groups for reward in group]
    if estimator == "dr_grpo":
        return [reward - statistics.fmean(group) for group in groups for reward in group]
    if estimator == "rloo":
        return [reward - (sum(group) - reward) / 3 for group in groups for reward in group]
    return rewards


# Faults, each made in rollout 2 and later


def _of(lines: list[Line], rollout: int = 2) -> list[Line]:
    return [line for line in lines if line["rollout"] == rollout]


def not_divided(lines: list[Line]) -> None:
    for line, group in ((line, [o for o in lines if o["group"] == line["group"]]) for line in _of(lines)):
        line["advantage"] = line["reward"] - sum(other["reward"] for other in group) / len(group)


def other_sign(lines: list[Line]) -> None:
    for line in _of(lines):
        line["advantage"] = -line["advantage"]


def of_the_neighbour(lines: list[Line]) -> None:
    own = _of(lines)
    moved = [line["advantage"] for line in own[1:] + own[:1]]
    for line, advantage in zip(own, moved, strict=True):
        line["advantage"] = advantage


def groups_across_prompts(lines: list[Line]) -> None:
    own = _of(lines)
    for place in range(4):
        group = own[place::4]
        for line, advantage in zip(group, grpo([line["reward"] for line in group]), strict=True):
            line["advantage"] = advantage


def a_sample_lost(lines: list[Line]) -> None:
    lines.remove(_of(lines)[5])


def a_prompt_lost(lines: list[Line]) -> None:
    for line in _of(lines)[4:8]:
        lines.remove(line)


def a_rollout_lost(lines: list[Line]) -> None:
    for line in _of(lines):
        lines.remove(line)


def a_rollout_twice(lines: list[Line]) -> None:
    for line, before in zip(_of(lines), _of(lines, 1), strict=True):
        line |= {
            name: before[name]
            for name in ("prompt_ids", "completion_ids", "mask", "engine_log_probs", "trainer_log_probs")
        }


def a_sample_twice(lines: list[Line]) -> None:
    own = _of(lines)
    own[1] |= {name: value for name, value in own[0].items() if name not in ("reward", "advantage")}


def rollouts_swapped(lines: list[Line]) -> None:
    lines.sort(key=lambda line: {2: 3, 3: 2}.get(line["rollout"], line["rollout"]))


def mask_without_the_end(lines: list[Line]) -> None:
    for line in _of(lines):
        line["mask"] = [1] * (len(line["mask"]) - 1) + [0]


def mask_one_token_late(lines: list[Line]) -> None:
    for line in _of(lines):
        line["mask"] = [0, *line["mask"][1:]]


def mask_too_short(lines: list[Line]) -> None:
    for line in _of(lines):
        line["mask"] = line["mask"][:-1]


def engine_one_token_late(lines: list[Line]) -> None:
    for line in _of(lines):
        line["engine_log_probs"] = [-1.0, *line["engine_log_probs"][:-1]]


def engine_at_another_temperature(lines: list[Line]) -> None:
    for line in _of(lines):
        line["engine_log_probs"] = [1.6 * value for value in line["engine_log_probs"]]


def log_probs_above_zero(lines: list[Line]) -> None:
    for line in _of(lines):
        line["trainer_log_probs"] = [-value for value in line["trainer_log_probs"]]


def log_probs_that_are_nan(lines: list[Line]) -> None:
    _of(lines)[3]["engine_log_probs"][1] = float("nan")


def stale_weights(lines: list[Line]) -> None:
    for line in lines:
        if line["rollout"] >= 2:
            line["sampler_version"] = 2


def stale_samples(lines: list[Line]) -> None:
    _of(lines)[7]["sampler_version"] = 1


def weights_of_the_future(lines: list[Line]) -> None:
    for line in _of(lines):
        line["sampler_version"] = 9


def prompts_mixed(lines: list[Line]) -> None:
    own = _of(lines)
    own[3]["group"], own[4]["group"] = own[4]["group"], own[3]["group"]


def advantages_of_old_rewards(lines: list[Line]) -> None:
    for line, before in zip(_of(lines), _of(lines, 1), strict=True):
        line["advantage"] = before["advantage"]


def infinite_reward(lines: list[Line]) -> None:
    _of(lines)[2]["reward"] = float("inf")


FAULTS: dict[Callable[[list[Line]], None], tuple[str, str]] = {
    not_divided: ("RLS516", "divided by no standard deviation"),
    other_sign: ("RLS516", "of the opposite sign"),
    of_the_neighbour: ("RLS516", "at each sample those of the sample after it"),
    groups_across_prompts: ("RLS516", "those of groups taken across prompts"),
    a_sample_lost: ("RLS522", "groups of another size: 3 samples of a prompt, and 4 are planned"),
    a_prompt_lost: ("RLS207", "12 samples"),
    a_rollout_lost: ("RLS522", "rollouts that are left out: number 3 after number 1"),
    a_rollout_twice: ("RLS514", "all 16 samples of rollout 1"),
    a_sample_twice: ("RLS522", "a sample that stands twice under one name"),
    rollouts_swapped: ("RLS522", "rollouts that are left out: number 3 after number 1"),
    mask_without_the_end: ("RLS518", "others in"),
    mask_one_token_late: ("RLS518", "others in 16 of 16 samples"),
    mask_too_short: ("RLS522", "token ids of different lengths"),
    engine_one_token_late: ("RLS522", "those of the token before it"),
    engine_at_another_temperature: ("RLS403", "mean 0."),
    log_probs_above_zero: ("RLS522", "trainer log-probs above 0"),
    log_probs_that_are_nan: ("RLS522", "engine log-probs that are not finite"),
    stale_weights: ("RLS402", "version 2, 2 updates behind"),
    stale_samples: ("RLS402", "version 1, 3 updates behind"),
    weights_of_the_future: ("RLS522", "drawn by version 9, trained from version 4"),
    prompts_mixed: ("RLS501", "blocks that mix prompts"),
    advantages_of_old_rewards: ("RLS516", ""),
    infinite_reward: ("RLS522", "a reward that is not finite"),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found_at_its_rollout(tmp_path: Path, fault: Callable[[list[Line]], None]) -> None:
    lines = samples(1)
    fault(lines)
    report = ingested(written(tmp_path, lines))
    code, observed = FAULTS[fault]
    named = next((each for each in report.findings if each.code == code), None)
    assert named is not None, [str(each) for each in report.findings]
    assert observed in named.observed
    assert str(named.where) == "rollout 2", "nobody knows updates and data epochs"
    assert report.verdict == "FAIL" or code == "RLS403"


# The validator


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"rollout": "two"}, "line 3: field `rollout`: expected `int`, got `str`"),
        ({"group": 1}, "line 3: field `rollout`: expected, and it is missing"),
        ({"rollout": 0, "mask": [1, "x"]}, "line 3: field `mask[1]`: expected `bool | int`, got `str`"),
        ({"rollout": 0, "reward": [1]}, "line 3: field `reward`: expected `float | null`, got `array`"),
        ({"rollout": 0, "reward": float("nan"), "mask": 3}, "line 3: field `mask`: expected `array | null`, got `int`"),
        ({"rollout": -1}, "line 3: field `rollout`: expected a number from 0"),
        ({"rollout": 10**40}, "line 3: field `rollout`: "),
        ([1, 2], "line 3: field `the whole line`: expected `object`, got `array`"),
    ],
)
def test_a_wrong_line_is_named_with_its_field(tmp_path: Path, line: Any, said: str) -> None:
    path = written(tmp_path, [samples()[0], line])
    with pytest.raises(ExportError) as error:
        ingested(path)
    assert f"{path}, {said}" in str(error.value)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"rlstep_export": 2}, "field `rlstep_export`: expected 1, got 2"),
        ({"rlstep_export": "1"}, "field `rlstep_export`: expected `int`, got `str`"),
        (
            {"estimator": "gae"},
            "field `estimator`: expected one of grpo, grpo_batch_std, dr_grpo, rloo, none, nemo_grpo, got 'gae'",
        ),
        ({"samples_per_prompt": 0}, "field `samples_per_prompt`: expected a number from 1"),
        ({"rollouts": 10**30}, "field `rollouts`: "),
    ],
)
def test_a_wrong_header_is_named_with_its_field(tmp_path: Path, header: Line, said: str) -> None:
    with pytest.raises(ExportError, match=r"run\.jsonl") as error:
        ingested(written(tmp_path, samples(), HEADER | header))
    assert said in str(error.value)


def test_a_file_that_breaks_off_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, samples())
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ExportError, match=r"line 81: expected a JSON object.*the file ends within this line"):
        ingested(path)


def test_more_rollouts_than_planned_are_found(tmp_path: Path) -> None:
    report = ingested(written(tmp_path, samples(rollouts=6)))
    assert found(report) == {"RLS522": "more rollouts than are planned: 5 are"}


def test_fewer_rollouts_than_planned_may_be_a_run_that_goes_on(tmp_path: Path) -> None:
    report = ingested(written(tmp_path, samples(rollouts=3)))
    assert (report.verdict, found(report)) == ("PASS", {})


def test_every_second_rollout_may_be_written(tmp_path: Path) -> None:
    lines = [line for line in samples(rollouts=9) if line["rollout"] % 2 == 0]
    assert found(ingested(written(tmp_path, lines))) == {}


def test_parquet_is_read_as_lines_are(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="parquet is read with pyarrow")
    import pyarrow.parquet as pq

    lines = samples(4)
    table = pyarrow.Table.from_pylist(lines)
    path = tmp_path / "run.parquet"
    pq.write_table(table.replace_schema_metadata({"rlstep_export": json.dumps(HEADER)}), path)
    report = ingested(path)
    assert (report.verdict, found(report), report.counts.samples) == ("PASS", {}, 80)
    not_divided(lines)
    pq.write_table(
        pyarrow.Table.from_pylist(lines).replace_schema_metadata({"rlstep_export": json.dumps(HEADER)}), path
    )
    assert found(ingested(path)) == {"RLS516": "divided by no standard deviation"}


def test_several_files_are_one_run(tmp_path: Path) -> None:
    lines = samples()
    folder = tmp_path / "export"
    folder.mkdir()
    written(folder, lines[:40], name="a.jsonl")
    written(folder, lines[40:], header=None, name="b.jsonl")
    report = ingested(folder, asked=Asked())
    assert (report.verdict, report.counts.samples) == ("PASS", 80)
