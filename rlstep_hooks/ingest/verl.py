"""verl's rollout dumps: `trainer.rollout_data_dir`, one file of JSON lines for each step.

Written by `_write_generations` (verl 0.9.1, verl/trainer/ppo/ray_trainer.py:453 and verl/trainer/ppo/v1/trainer_base.py:1225): `input`,
`output`, `gts`, `score`, `step`, and what reward functions added. The newer trainer writes `uid`, the key
`{sample}_{rollout}_{output}` of a completion in its queue (trainer_base.py:1317); the older one leaves the prompt's name out, so that
samples with equal texts of the prompt are a group.
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

TITLE = "verl's rollout dumps (trainer.rollout_data_dir)"
_NO_TOKENS = "verl's rollout dumps have texts and scores: no tokens, log-probs or weight versions"
_KEY = re.compile(r"(?P<prompt>.+)_(?P<session>\d+)_(?P<output>\d+)")


class _Row(msgspec.Struct, kw_only=True, gc=False):
    input: str
    output: str
    score: float
    step: int
    uid: str | None = None


def recognises(path: Path) -> bool:
    """Whether a file is such a dump."""
    if path.suffix != ".jsonl":
        return False
    first = next(lines.raw_lines(path), None)
    return first is not None and {"input", "output", "score", "step"} <= lines.fields_of(first[1])


def number(path: Path) -> int | None:
    """The step that a file was written at, by the file's name."""
    return int(path.stem) if path.stem.isdecimal() else None


def opened(paths: Sequence[Path], asked: Asked) -> Export:
    """Open the dumps of a run."""
    return Export(
        title=TITLE,
        framework="verl",
        samples=_samples(paths),
        absent=dict.fromkeys(("versions", "sampler", "sampler_weights", "advantages"), _NO_TOKENS),
        numbers="each",
    )


def _samples(paths: Sequence[Path]) -> Iterator[Sample]:
    for path in paths:
        for _, row in lines.rows(path, _Row):
            key = _KEY.fullmatch(row.uid or "")
            # Of a session that wrote several outputs the first one stands for it: the plan counts sessions.
            if key is None or int(key["output"]) == 0:
                yield Sample(
                    rollout=row.step,
                    group=key["prompt"] if key is not None else None,
                    prompt=row.input,
                    completion=row.output,
                    reward=row.score,
                )
