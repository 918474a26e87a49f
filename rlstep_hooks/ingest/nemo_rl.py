"""NeMo-RL's logged train data: JSON lines `train_data_step<step>.jsonl` in the folder of its logs.

Written by `Logger.log_batched_dict_as_jsonl` (commit 7ea279abfbeb, nemo_rl/utils/logger.py:1071) with what `grpo.py:3631` to
`:3652` collects: rewards, padded token ids, masks of tokens and samples, advantages, log-probs of engine and trainer. A row is a batch
of one, so each value stands in a list of its own.

Its GRPO takes the mean and the standard deviation of the prompt's other samples (nemo_rl/algorithms/utils.py:104,
advantage_estimator.py:60), but a row does not say which estimator was configured: `--estimator nemo_grpo` does.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from rlstep_hooks.ingest import lines
from rlstep_hooks.ingest.export import Asked, Export, ExportError, Sample
from rlstep_hooks.planning.words import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

TITLE = "NeMo-RL's logged train data"
_NAME = re.compile(r"train_data_step(\d+)")
_One: TypeAlias = list[float | None]
_Row_: TypeAlias = list[list[float | None]]


class _Row(msgspec.Struct, kw_only=True, gc=False):
    rewards: _One
    filtered_rewards: _One | None = None
    input_lengths: list[int]
    token_ids: list[list[int]] | None = None
    token_loss_mask: _Row_
    sample_loss_mask: _One
    advantages: list[list[float | None] | float | None]
    generation_logprobs: _Row_
    prev_logprobs: _Row_


def recognises(path: Path) -> bool:
    """Whether a file is such a log."""
    if path.suffix != ".jsonl":
        return False
    first = next(lines.raw_lines(path), None)
    return first is not None and {"token_loss_mask", "generation_logprobs", "prev_logprobs"} <= lines.fields_of(
        first[1]
    )


def number(path: Path) -> int | None:
    """The step that a file was written at, by the file's name; None for a file of a validation."""
    name = _NAME.fullmatch(path.stem)
    return int(name[1]) if name is not None else None


def opened(paths: Sequence[Path], asked: Asked) -> Export:
    """Open the logs of a run."""
    return Export(
        title=TITLE,
        framework="NeMo-RL",
        samples=_samples(paths),
        absent={"versions": "NeMo-RL's train data do not say which weights drew a sample"},
        numbers="each",
    )


def _samples(paths: Sequence[Path]) -> Iterator[Sample]:
    for path in paths:
        step = number(path) or 0
        for line, row in lines.rows(path, _Row):
            place = f"{printable(str(path))}, line {line}"
            reward = _only(row.filtered_rewards if row.filtered_rewards is not None else row.rewards, "rewards", place)
            length = _only(row.input_lengths, "input_lengths", place)
            mask = [bool(of) for of in _only(row.token_loss_mask, "token_loss_mask", place)[:length]]
            first = mask.index(True) if True in mask else len(mask)
            if not _only(row.sample_loss_mask, "sample_loss_mask", place):
                mask = [False] * len(mask)
            ids = None if row.token_ids is None else _only(row.token_ids, "token_ids", place)[:length]
            advantage = _only(row.advantages, "advantages", place)
            yield Sample(
                rollout=step,
                prompt_ids=None if ids is None else ids[:first],
                completion_ids=ids,
                mask=list(mask),
                engine_log_probs=_only(row.generation_logprobs, "generation_logprobs", place)[:length],
                trainer_log_probs=_only(row.prev_logprobs, "prev_logprobs", place)[:length],
                reward=reward,
                advantage=advantage[:length] if isinstance(advantage, list) else advantage,
            )


def _only(values: list[Any], name: str, place: str) -> Any:
    """The value of a batch of one."""
    if len(values) != 1:
        raise ExportError(f"{place}: field `{name}`: expected a list of one, got {len(values)}")
    return values[0]
