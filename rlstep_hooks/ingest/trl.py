"""TRL's `log_completions`: a parquet file of the latest rollout at each logging step.

Written by `GRPOTrainer.log` (trl 1.16.0, trl/trainer/grpo_trainer.py:3341; RLOOTrainer writes none): `step`, `prompt`,
`completion`, a column for each reward function, what `log_extra` added, and `advantage`. Its rows are the last
`generation_batch_size` ones (grpo_trainer.py:1088), samples of all processes in the order of generation.

Advantages are centred in each group, and divided by a number that depends on `scale_rewards` (grpo_trainer.py:2780), which no column
shows: they are compared up to one positive factor a group, unless the user names the estimator.
"""

from __future__ import annotations

import math
import re
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rlstep_hooks.ingest import parquet
from rlstep_hooks.ingest.advantages import ANY_SCALE, off
from rlstep_hooks.ingest.export import Asked, Export, ExportError, Sample
from rlstep_hooks.planning.words import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

TITLE = "TRL's log_completions (parquet)"
_NO_TOKENS = "TRL's completions are texts: no tokens, masks, log-probs or weight versions"
_FIXED = ("step", "prompt", "completion", "advantage")
_NAME = re.compile(r"completions_(\d+)")


def recognises(path: Path) -> bool:
    """Whether a file is such a table."""
    return path.suffix == ".parquet" and set(_FIXED) <= set(parquet.column_names(path))


def number(path: Path) -> int | None:
    """The update at which a file was written. At 0 only an evaluation logs."""
    name = _NAME.fullmatch(path.stem)
    return (int(name[1]) or None) if name is not None else None


def opened(paths: Sequence[Path], asked: Asked) -> Export:
    """Open the tables of a run.

    Raises:
        ExportError: A column that the user names is not there.
    """
    rewards = asked.rewards or _only_reward(paths[0])
    missing = [name for name in rewards if name not in parquet.column_names(paths[0])]
    if missing:
        raise ExportError(
            f"{printable(str(paths[0]))}: expected the column {printable(missing[0])!r}, and there is none"
        )
    unknown = _unknown(rewards, asked)
    rewards = {} if unknown else rewards
    return Export(
        title=TITLE,
        framework="TRL",
        samples=_samples(paths, rewards, asked.schedule.samples_per_prompt if asked.schedule is not None else None),
        estimators=(ANY_SCALE,) if rewards else (),
        unproved="a table that does not say by which standard deviation they are divided (--estimator does)",
        absent=dict.fromkeys(("versions", "sampler", "sampler_weights"), _NO_TOKENS),
        not_compared=dict.fromkeys(("RLS516", "RLS508"), unknown) if unknown else {},
        numbers="none",
        whole_groups=False,
    )


def _only_reward(path: Path) -> dict[str, float]:
    """The one column of numbers that may be a reward; empty if there are several."""
    numeric = [name for name in parquet.numeric_columns(path) if name not in _FIXED]
    return {numeric[0]: 1.0} if len(numeric) == 1 else {}


def _unknown(rewards: dict[str, float], asked: Asked) -> str:
    """Why nobody knows which reward of a sample its advantage was computed from; empty where it is known.

    TRL 1.x sums the rewards of a sample's functions and normalises the sum, or normalises each in its group and then sums them
    (`multi_objective_aggregation`, grpo_trainer.py:2790). In the second, advantages need not rise with the sum.
    """
    if not rewards:
        return "several columns may be rewards: name each with --reward COLUMN=WEIGHT"
    aggregation = asked.settings.get("multi_objective_aggregation")
    if aggregation == "normalize_then_sum" and (_several(rewards) or asked.estimator is not None):
        return "the launch normalises each reward before it sums them (normalize_then_sum), and no estimator here does"
    if aggregation is None and asked.estimator is None and _several(rewards):
        return (
            "the table does not say whether the rewards were summed before or after they were normalised "
            "(multi_objective_aggregation, normalize_then_sum): --estimator says that they were summed before, and how"
        )
    return ""


def _several(rewards: dict[str, float]) -> bool:
    return sum(weight != 0 for weight in rewards.values()) > 1


def _samples(paths: Sequence[Path], rewards: dict[str, float], each: int | None) -> Iterator[Sample]:
    before: list[Any] = []
    for path in paths:
        place, step = printable(str(path)), number(path)
        table = [row for _, row in parquet.rows(path, [*_FIXED, *rewards])]
        texts = [(str(row["prompt"]), str(row["completion"])) for row in table]
        # Micro-batches of one rollout are logged at several steps, with the rollout each time.
        if texts and texts != before:
            own = [_sample(row, rewards, step or 0, place) for row in table]
            _name_groups(own, each)
            yield from own
        before = texts


def _name_groups(own: Sequence[Sample], each: int | None) -> None:
    """Give each sample its group: samples in a row with one prompt.

    A prompt may stand twice in a row, so that such a run is cut where its parts are groups. After an evaluation its samples stand
    behind those of training, and may have pushed out a part of the first group, whose advantages then say nothing.
    """
    runs = [list(same) for _, same in groupby(own, key=attrgetter("prompt"))]
    longest = max(map(len, runs))
    for at, run in enumerate(runs):
        whole = each is not None and len(run) % each == 0
        size = _size(run, {each} if each is not None and whole else {len(other) for other in runs})
        for place, sample in enumerate(run):
            sample.group = f"{at}.{place // size}"
            if at == 0 and len(run) < longest:
                sample.advantage = None


def _size(run: Sequence[Sample], allowed: set[int]) -> int:
    """The largest allowed size of parts whose advantages are centred and follow their rewards; the largest of all where none fits."""
    rewards = [sample.reward for sample in run if sample.reward is not None]
    values = [sample.advantage for sample in run if isinstance(sample.advantage, float)]
    if len(rewards) == len(values) == len(run):
        for size in sorted((size for size in allowed if len(run) % size == 0), reverse=True):
            parts = [rewards[start : start + size] for start in range(0, len(run), size)]
            if off(ANY_SCALE.of(parts, values), values) <= 1:
                return size
    return max((size for size in allowed if len(run) % size == 0), default=len(run))


def _sample(row: dict[str, Any], rewards: dict[str, float], step: int, place: str) -> Sample:
    given = [(_float(row[name], name, place), weight) for name, weight in rewards.items()]
    there = [(value, weight) for value, weight in given if value is not None]
    return Sample(
        rollout=step,
        prompt=str(row["prompt"]),
        completion=str(row["completion"]),
        # As nansum: a function that gave nothing counts for nothing, and a sample without any has no reward.
        reward=sum(value * weight for value, weight in there) if there else None,
        advantage=_float(row["advantage"], "advantage", place),
    )


def _float(value: Any, name: str, place: str) -> float | None:
    if value is not None and not isinstance(value, int | float):
        raise ExportError(f"{place}: field `{printable(name)}`: expected a number, got {type(value).__name__}")
    return None if value is None or math.isnan(value) else float(value)
