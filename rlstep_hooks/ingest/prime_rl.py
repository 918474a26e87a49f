"""prime-rl's token export: `enable_token_export`, JSON lines `token_exports/step_<step>/rank_<rank>.jsonl`.

Written by `TokenExporter.export` (commit 559b44772e47, src/prime_rl/trainer/rl/token_export.py:39 to :73, columns at :127 to :165):
token ids, loss mask, advantages, log-probs of engine and trainer and their ratios, one number a token; null where one is not finite
(:249). A sequence without a token that counts is not written (:54), and neither rewards, prompts' names nor versions of weights are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.ingest import lines
from rlstep_hooks.ingest.export import Asked, Export, Sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

TITLE = "prime-rl's token export"
_STEP = re.compile(r"step_(\d+)")


class _Row(msgspec.Struct, kw_only=True, gc=False):
    step: int
    token_ids: list[int]
    loss_mask: list[bool]
    advantages: list[float | None]
    inference_logprobs: list[float | None]
    trainer_logprobs: list[float | None]
    log_importance_ratio: list[float | None]
    rl_weights: list[float | None] | None = None


def recognises(path: Path) -> bool:
    """Whether a file is such an export."""
    if path.suffix != ".jsonl":
        return False
    first = next(lines.raw_lines(path), None)
    return first is not None and {"token_ids", "loss_mask", "inference_logprobs"} <= lines.fields_of(first[1])


def number(path: Path) -> int | None:
    """The step that a file was written at, by the name of the folder."""
    step = _STEP.fullmatch(path.parent.name)
    return int(step[1]) if step is not None else None


def opened(paths: Sequence[Path], asked: Asked) -> Export:
    """Open the files of all ranks."""
    return Export(
        title=TITLE,
        framework="prime-rl",
        samples=_samples(paths),
        absent={
            "order": "prime-rl's token export leaves out sequences without a token that counts, so their number says nothing",
            "versions": "prime-rl's token export does not say which weights drew a sequence",
            "advantages": "prime-rl's token export has no rewards, and no names of prompts",
        },
        numbers="each",
    )


def _samples(paths: Sequence[Path]) -> Iterator[Sample]:
    for path in paths:
        for _, row in lines.rows(path, _Row):
            ratios = row.log_importance_ratio
            yield Sample(
                rollout=row.step,
                completion_ids=row.token_ids,
                mask=_drawn(row),
                engine_log_probs=row.inference_logprobs,
                trainer_log_probs=row.trainer_logprobs,
                log_ratios=None if ratios.count(None) == len(ratios) else ratios,
                advantage=row.advantages,
            )


def _drawn(row: _Row) -> list[bool | int]:
    """The tokens that the policy drew and the loss counts: others, of a frozen model, have no log-probs of the engine."""
    weights = row.rl_weights
    if weights is None or weights.count(None) == len(weights) or len(weights) != len(row.loss_mask):
        return list(row.loss_mask)
    return [counts and bool(weight) for counts, weight in zip(row.loss_mask, weights, strict=True)]
