"""Formats of other projects, as their sources write them (file and line are in each format's module)."""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.ingest.export import Asked, ExportError
from rlstep_hooks.ingest.formats import opened
from rlstep_hooks.planning.schedule import Schedule
from tests.ingest.runs import Line, float32, found, grpo, ingested, reason_of, samples, verdict_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rlstep_hooks.judge.report import Report

PLAN = Schedule.ppo(actors=4, steps=4, rollouts=5)
"""Sizes of the runs below: 5 rollouts of 4 prompts, 4 samples each."""


def by_rollout(lines: Iterable[Line]) -> dict[int, list[Line]]:
    rollouts: dict[int, list[Line]] = {}
    for line in lines:
        rollouts.setdefault(line["rollout"], []).append(line)
    return rollouts


def lines_of(path: Path, rows: Iterable[Line]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# How each project writes a run


def as_verl(folder: Path, lines: list[Line], *, uid: bool = True) -> None:
    for rollout, own in by_rollout(lines).items():
        rows = []
        for line in own:
            row = {
                "input": f"prompt {line['prompt_ids']}", "output": f"answer {line['completion_ids']}", "gts": None,
                "score": line["reward"], "step": rollout + 1,
            }  # fmt: skip
            rows.append(
                row
                | ({"uid": f"{line['group']}_{line['sample'].rpartition('.')[2]}_0"} if uid else {"request_id": "x"})
            )
        lines_of(folder / f"{rollout + 1}.jsonl", rows)


def as_prime_rl(folder: Path, lines: list[Line]) -> None:
    for rollout, own in by_rollout(lines).items():
        for rank in (0, 1):
            rows = []
            for at, line in enumerate(own[rank::2]):
                prompt, count = line["prompt_ids"], len(line["completion_ids"])
                before: list[Any] = [0.0] * len(prompt)
                trainer, engine = before + line["trainer_log_probs"], before + line["engine_log_probs"]
                ratios = line.get("log_ratios") or [
                    None if new is None or old is None else new - old for new, old in zip(trainer, engine, strict=True)
                ]
                rows.append({
                    "schema_version": 1, "step": rollout, "rank": rank, "micro_step": 0, "micro_sequence_idx": at,
                    "export_sequence_idx": at, "env_name": "math", "token_ids": prompt + line["completion_ids"],
                    "position_ids": list(range(len(trainer))), "loss_mask": [False] * len(prompt) + [True] * count,
                    "advantages": [line["advantage"]] * len(trainer), "inference_logprobs": engine, "trainer_logprobs": trainer,
                    "entropy": [1.0] * len(trainer), "mismatch_kl": [0.0] * len(trainer), "log_importance_ratio": ratios,
                    "rl_weights": [None] * len(trainer), "ce_weights": [None] * len(trainer),
                })  # fmt: skip
            lines_of(folder / f"step_{rollout}" / f"rank_{rank}.jsonl", rows)


def as_nemo_rl(folder: Path, lines: list[Line]) -> None:
    for rollout, own in by_rollout(lines).items():
        rows = []
        width = max(len(line["prompt_ids"]) + len(line["completion_ids"]) for line in own)
        for at, line in enumerate(own):
            prompt, count = line["prompt_ids"], len(line["completion_ids"])

            def padded(values: list[Any], prompt: list[int] = prompt, width: int = width) -> list[list[Any]]:
                row = [0] * (len(prompt) if len(values) < width else 0) + values
                return [row + [0] * (width - len(row))]

            rows.append({
                "content": ["..."], "rewards": [line["reward"]], "input_lengths": [len(prompt) + count],
                "token_ids": [prompt + line["completion_ids"] + [0] * (width - len(prompt) - count)],
                "token_loss_mask": padded([1] * count), "sample_loss_mask": [1.0],
                "advantages": [[line["advantage"]] * width], "generation_logprobs": padded(line["engine_log_probs"]),
                "prev_logprobs": padded(line["trainer_log_probs"]), "idx": at,
            })  # fmt: skip
        lines_of(folder / f"train_data_step{rollout + 1}.jsonl", rows)


def nemo_advantages(rewards: list[float]) -> list[float]:
    """Mean and unbiased deviation of the others; where the deviation is 0, nothing is divided."""
    values = []
    for at, reward in enumerate(rewards):
        others = rewards[:at] + rewards[at + 1 :]
        deviation = statistics.stdev(others)
        values.append(float32((reward - statistics.fmean(others)) / (deviation + 1e-6 if deviation > 0 else 1.0)))
    return values


def nemo_samples(seed: int) -> list[Line]:
    lines = samples(seed)
    for start in range(0, len(lines), 4):
        group = lines[start : start + 4]
        for line, value in zip(group, nemo_advantages([line["reward"] for line in group]), strict=True):
            line["advantage"] = value
    return lines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "export"


# Healthy runs are silent, and what cannot be judged is said


@pytest.mark.parametrize("uid", [True, False])
def test_verl(folder: Path, uid: bool) -> None:
    as_verl(folder, samples(), uid=uid)
    report = ingested(folder, asked=Asked(schedule=PLAN))
    assert (report.verdict, found(report), report.counts.samples) == ("PASS", {}, 80)
    assert reason_of(report, "RLS516").startswith("verl's rollout dumps have texts and scores")
    assert {verdict_of(report, code) for code in ("RLS207", "RLS501", "RLS514", "RLS522")} == {"PASS"}


def test_prime_rl(folder: Path) -> None:
    as_prime_rl(folder, samples())
    report = ingested(folder, asked=Asked(schedule=PLAN))
    assert (report.verdict, found(report), report.counts.rollouts) == ("NOT_EVALUATED", {}, 5)
    assert "leaves out sequences" in report.not_evaluated["order"]
    assert "which weights drew" in reason_of(report, "RLS403")
    assert verdict_of(report, "RLS522") == "PASS"


@pytest.mark.parametrize("seed", range(3))
def test_nemo_rl(folder: Path, seed: int) -> None:
    as_nemo_rl(folder, nemo_samples(seed))
    report = ingested(folder, asked=Asked(schedule=PLAN, estimator="nemo_grpo"))
    assert (report.verdict, found(report), report.counts.samples) == ("PASS", {}, 80)
    assert verdict_of(report, "RLS516") == "PASS"
    report = ingested(folder, asked=Asked(schedule=PLAN))
    assert verdict_of(report, "RLS516") == "NOT_EVALUATED", "no row says by which estimator"


# Faults


def _lost_row(lines: list[Line]) -> None:
    del lines[37]


def _lost_rollout(lines: list[Line]) -> None:
    lines[:] = [line for line in lines if line["rollout"] != 2]


def _repeated(lines: list[Line]) -> None:
    rollouts = by_rollout(lines)
    for line, before in zip(rollouts[2], rollouts[1], strict=True):
        line |= {
            name: before[name] for name in ("prompt_ids", "completion_ids", "engine_log_probs", "trainer_log_probs")
        }


def _shifted(lines: list[Line]) -> None:
    for line in by_rollout(lines)[2]:
        line["engine_log_probs"] = [-1.0, *line["engine_log_probs"][:-1]]


def _old_ratios(lines: list[Line]) -> None:
    for line in by_rollout(lines)[2]:
        line["log_ratios"] = [0.5] * (len(line["prompt_ids"]) + len(line["completion_ids"]))


def _not_a_number(lines: list[Line]) -> None:
    by_rollout(lines)[2][4]["trainer_log_probs"][2] = None


def _not_divided(lines: list[Line]) -> None:
    own = by_rollout(lines)[2]
    for line in own:
        group = [other["reward"] for other in own if other["group"] == line["group"]]
        line["advantage"] = line["reward"] - statistics.fmean(group)


Writer = "Callable[[Path, list[Line]], None]"


@pytest.mark.parametrize(
    ("fault", "write", "code", "observed"),
    [
        (_lost_row, as_verl, "RLS207", "15 samples"),
        (_lost_rollout, as_verl, "RLS522", "rollouts that are left out: number 4 after number 2"),
        (_repeated, as_verl, "RLS514", "all 16 samples of rollout 1"),
        (_shifted, as_prime_rl, "RLS522", "those of the token before it"),
        (_old_ratios, as_prime_rl, "RLS522", "log ratios that are not those of its log-probs"),
        (_not_a_number, as_prime_rl, "RLS522", "trainer log-probs that are not finite"),
        (_lost_rollout, as_prime_rl, "RLS522", "rollouts that are left out"),
        (_shifted, as_nemo_rl, "RLS522", "those of the token before it"),
        (_lost_row, as_nemo_rl, "RLS207", "15 samples"),
        (_not_divided, as_nemo_rl, "RLS516", ""),
        (_repeated, as_nemo_rl, "RLS514", "all 16 samples of rollout 1"),
    ],
)
def test_a_fault_is_found(folder: Path, fault: Any, write: Any, code: str, observed: str) -> None:
    lines = nemo_samples(5)
    fault(lines)
    write(folder, lines)
    report = ingested(folder, asked=Asked(schedule=PLAN, estimator="nemo_grpo" if write is as_nemo_rl else None))
    named = next((each for each in report.findings if each.code == code), None)
    assert named is not None, found(report)
    assert observed in named.observed
    assert named.where.rollout == 2
    assert report.verdict == "FAIL"


# TRL's table, which pandas writes with pyarrow


def as_trl(folder: Path, lines: list[Line], *, each_twice: bool = False, extra: bool = False) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="parquet is read with pyarrow")
    import pyarrow.parquet as pq

    folder.mkdir()
    for rollout, own in by_rollout(lines).items():
        for step in (2 * rollout + 1, 2 * rollout + 2) if each_twice else (rollout + 1,):
            rows = [
                {"step": step, "prompt": f"p {line['prompt_ids']}", "completion": f"c {line['completion_ids']}"}
                | {
                    "accuracy": line["reward"],
                    **({"length": line.get("length", 3.0)} if extra else {}),
                    "advantage": line["advantage"],
                }
                for line in own
            ]
            pq.write_table(pyarrow.Table.from_pylist(rows), folder / f"completions_{step:05d}.parquet")


def trl_report(folder: Path, **asked: Any) -> Report:
    return ingested(folder, asked=Asked(schedule=PLAN, **asked))


@pytest.mark.parametrize("each_twice", [False, True])
def test_trl(folder: Path, each_twice: bool) -> None:
    as_trl(folder, samples(2), each_twice=each_twice)
    report = trl_report(folder)
    assert (report.verdict, found(report), report.counts.rollouts) == ("PASS", {}, 5)
    outcome = next(rule for rule in report.rules if rule.code == "RLS516")
    assert (outcome.verdict, "--estimator" in outcome.unproved) == ("PASS", True)


def test_trl_with_several_columns_that_may_be_rewards_asks_which(folder: Path) -> None:
    as_trl(folder, samples(2), extra=True)
    report = trl_report(folder)
    assert "name each with --reward" in reason_of(report, "RLS516")
    report = trl_report(folder, rewards={"accuracy": 1.0}, estimator="grpo")
    assert (verdict_of(report, "RLS516"), found(report)) == ("PASS", {})
    with pytest.raises(ExportError, match="expected the column 'lenght'"):
        trl_report(folder, rewards={"lenght": 1.0})


def normalize_then_sum(columns: Sequence[Sequence[float]]) -> list[float]:
    """TRL 1.16.0, trl/trainer/grpo_trainer.py:2790, for groups of four: each function in its group, then the sum over the rollout."""
    of_functions = [
        [value for at in range(0, len(column), 4) for value in grpo(column[at : at + 4])] for column in columns
    ]
    return grpo([sum(values) for values in zip(*of_functions, strict=True)])


@pytest.mark.parametrize("said", [{}, {"multi_objective_aggregation": "normalize_then_sum"}])
@pytest.mark.parametrize("estimator", [None, "grpo"])
def test_trl_that_normalises_each_reward_before_it_sums_them_is_not_accused(
    folder: Path, said: dict[str, str], estimator: str | None
) -> None:
    lines = samples(2)
    source = random.Random(7)
    for own in by_rollout(lines).values():
        lengths = [float(source.randint(1, 40)) for _ in own]
        values = normalize_then_sum([[line["reward"] for line in own], lengths])
        for line, length, value in zip(own, lengths, values, strict=True):
            line.update(length=length, advantage=value)
    as_trl(folder, lines, extra=True)
    rewards = {"accuracy": 1.0, "length": 1.0}
    report = trl_report(folder, rewards=rewards, settings=said, estimator=estimator)
    if estimator and not said:  # the user says how they were computed, and that is not how they were
        assert verdict_of(report, "RLS516") == "FAIL"
        return
    assert (found(report), verdict_of(report, "RLS516"), verdict_of(report, "RLS508")) == (
        {},
        "NOT_EVALUATED",
        "NOT_EVALUATED",
    )
    assert "normalize_then_sum" in reason_of(report, "RLS516")
    assert ("the launch" in reason_of(report, "RLS516")) is bool(said)


def test_trl_that_sums_its_rewards_first_is_compared_where_somebody_says_so(folder: Path) -> None:
    lines = samples(2)
    for number, line in enumerate(lines):
        line["length"] = float(number % 3)
    for at in range(0, len(lines), 4):
        own = lines[at : at + 4]
        for line, value in zip(own, grpo([line["reward"] + 0.5 * line["length"] for line in own]), strict=True):
            line["advantage"] = value
    as_trl(folder, lines, extra=True)
    rewards = {"accuracy": 1.0, "length": 0.5}
    told = {"multi_objective_aggregation": "sum_then_normalize"}
    for asked in ({"settings": told}, {"estimator": "grpo"}, {"settings": told, "estimator": "grpo"}):
        report = trl_report(folder, rewards=rewards, **asked)
        assert (found(report), verdict_of(report, "RLS516")) == ({}, "PASS")
    assert verdict_of(trl_report(folder, rewards=rewards | {"length": 0.0}, settings=told), "RLS516") == "FAIL"


def test_what_is_no_file_is_named_as_what_it_is(folder: Path) -> None:
    with pytest.raises(ExportError, match=r"/dev/null: expected a file or a folder, and it is a device$"):
        opened([Path("/dev/null")], Asked())
    with pytest.raises(ExportError, match=r"expected a file or a folder, and there is none$"):
        opened([folder / "nothing"], Asked())


def test_samples_of_an_evaluation_that_cut_the_first_group_are_no_fault(folder: Path) -> None:
    lines = samples(2)
    as_trl(folder, lines[2:])
    report = ingested(folder)
    assert (found(report), verdict_of(report, "RLS516")) == ({}, "PASS")


def test_one_prompt_twice_in_a_row_is_two_groups(folder: Path) -> None:
    lines = samples(2)
    for line in lines[4:8]:
        line["prompt_ids"] = lines[0]["prompt_ids"]
    as_trl(folder, lines)
    report = trl_report(folder)
    assert (report.verdict, found(report)) == ("PASS", {})


def test_a_lost_row_is_found_by_its_number(folder: Path) -> None:
    lines = samples(2)
    _lost_row(lines)
    as_trl(folder, lines)
    assert "15 samples" in found(trl_report(folder))["RLS207"]


@pytest.mark.parametrize("fault", ["sign", "neighbour", "across"])
def test_trl_faults(folder: Path, fault: str) -> None:
    lines = samples(2)
    own = by_rollout(lines)[2]
    if fault == "sign":
        values = [-line["advantage"] for line in own]
    elif fault == "neighbour":
        values = [line["advantage"] for line in [*own[1:], own[0]]]
    else:
        values = [0.0] * 16
        for place in range(4):
            values[place::4] = grpo([line["reward"] for line in own[place::4]])
    for line, value in zip(own, values, strict=True):
        line["advantage"] = value
    as_trl(folder, lines)
    report = trl_report(folder)
    assert (report.verdict, "RLS516" in found(report) or "RLS508" in found(report)) == ("FAIL", True)


# Damage


@pytest.mark.parametrize("write", [as_verl, as_prime_rl, as_nemo_rl, as_trl])
def test_damaged_files_give_an_answer_and_no_other_error(folder: Path, write: Any) -> None:
    write(folder, nemo_samples(0))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    source, answers = random.Random(7), 0
    whole = {path: path.read_bytes() for path in files}
    for _ in range(40):
        path = source.choice(files)
        data = bytearray(whole[path])
        for _ in range(source.choice([1, 1, 8])):
            data[source.randrange(len(data))] = source.randrange(256)
        path.write_bytes(bytes(data[: source.choice([len(data), source.randrange(len(data))])]))
        try:
            ingested(folder)
        except ExportError:
            answers += 1
        path.write_bytes(whole[path])
    assert answers > 5
