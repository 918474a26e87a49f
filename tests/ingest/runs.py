"""Healthy exports in the interchange schema, made by a small trainer of the tests that computes by the documented formulas."""

from __future__ import annotations

import json
import random
import statistics
from typing import TYPE_CHECKING, Any

from rlstep_hooks.ingest.events import events_of
from rlstep_hooks.ingest.export import Asked
from rlstep_hooks.ingest.formats import opened
from rlstep_hooks.judge.replay import report_of
from rlstep_hooks.record.ledger import FolderLedger, rank_process

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

END = 2
PROMPTS, EACH, ROLLOUTS = 4, 4, 5

Line = dict[str, Any]

HEADER: Line = {
    "rlstep_export": 1, "framework": "a trainer", "prompts_per_rollout": PROMPTS, "samples_per_prompt": EACH,
    "rollouts": ROLLOUTS, "estimator": "grpo", "epsilon": 1e-4, "max_age": 0, "end_token_ids": [END],
}  # fmt: skip


def float32(value: float) -> float:
    """A number as float32 keeps it: what a framework writes."""
    import struct

    return float(struct.unpack("f", struct.pack("f", value))[0])


def grpo(rewards: list[float]) -> list[float]:
    """arxiv.org/abs/2402.03300, as TRL has it: the unbiased standard deviation, and 1e-4 beside it."""
    mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
    return [float32((reward - mean) / (deviation + 1e-4)) for reward in rewards]


def samples(seed: int = 0, *, rollouts: int = ROLLOUTS, updates: int = 2, length: int = 24) -> list[Line]:
    """The samples of a healthy synchronous run."""
    source = random.Random(seed)
    lines = []
    for rollout in range(rollouts):
        for prompt in range(PROMPTS):
            rewards = [source.choice([0.0, 0.25, 1.0]) for _ in range(EACH)]
            for place, (reward, advantage) in enumerate(zip(rewards, grpo(rewards), strict=True)):
                lines.append(
                    sample(source, rollout, prompt, length)
                    | {"sample": f"{rollout}.{prompt}.{place}", "reward": reward, "advantage": advantage}
                    | {"sampler_version": rollout * updates, "policy_version": rollout * updates}
                )
    return lines


def sample(source: random.Random, rollout: int, prompt: int, length: int) -> Line:
    """Tokens, mask and log-probs of one sample."""
    drawn = [source.randint(3, 90) for _ in range(source.randint(4, length))]
    ids = [*drawn, END] if len(drawn) < length else drawn
    trainer = [float32(-source.expovariate(1.0)) for _ in ids]
    return {
        "rollout": rollout,
        "group": f"row {rollout * PROMPTS + prompt}",
        "prompt_ids": [5, 6, rollout, prompt],
        "completion_ids": ids,
        "mask": [1] * len(ids),
        "engine_log_probs": [min(value + float32(source.gauss(0, 0.003)), 0.0) for value in trainer],
        "trainer_log_probs": trainer,
    }


def written(folder: Path, lines: Iterable[Line], header: Line | None = HEADER, name: str = "run.jsonl") -> Path:
    """A file of these lines."""
    path = folder / name
    path.write_text("".join(json.dumps(line) + "\n" for line in ([header] if header else []) + list(lines)))
    return path


def ingested(*paths: Path, asked: Asked | None = None, kind: str | None = None) -> Report:
    """The report of an export, by way of its record."""
    folder = paths[0].parent / "records" if paths[0].is_file() else paths[0].with_name(f"{paths[0].name}-records")
    (folder / "run.rank0.jsonl").unlink(missing_ok=True)
    asked = asked or Asked()
    export = opened(paths, asked, kind)
    ledger = FolderLedger(folder, "run", rank_process(0))
    try:
        for event in events_of(export, asked, "run"):
            ledger.write(event)
    finally:
        ledger.close()
    return report_of(folder, "run")


def found(report: Report) -> dict[str, str]:
    """Code -> what was observed, of errors and warnings."""
    return {each.code: each.observed for each in report.findings if each.severity != "info"}


def verdict_of(report: Report, code: str) -> str:
    """What became of a rule."""
    return next(rule.verdict for rule in report.rules if rule.code == code)


def reason_of(report: Report, code: str) -> str:
    """Why a rule was not evaluated."""
    return next(rule.reason for rule in report.rules if rule.code == code)
