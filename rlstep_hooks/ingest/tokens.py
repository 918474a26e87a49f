"""What the token lists of one sample say: whether they fit together, and how far engine and trainer are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import compress
from operator import sub
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlstep_hooks.ingest.export import Sample

ABOVE_ZERO = 1e-3
"""A log-prob up to which rounding explains that it is above 0: a log-softmax subtracts two numbers that are all but equal where a token
is all but certain."""
RATIO_TOLERANCE = 0.02
"""Relative and absolute distance of a written log ratio from the difference of its log-probs that bfloat16 explains."""
SHIFTS_IN = 64
"""Samples of a rollout whose log-probs are compared with those of their neighbours."""
FEWEST_TOKENS = 64
"""Compared tokens of a rollout below which nothing is said of a shift."""
FAR, NEAR = 0.2, 0.1
"""Mean distances in nats, of a token and of its neighbour, and how much nearer the neighbour must be, that make a shift certain: no
rounding and no other weights bring the log-probs of a neighbour so near and those of the token itself so far."""


@dataclass
class Gap:
    """Distances of the engine's log-probs from the trainer's over the tokens of a rollout."""

    tokens: int = 0
    sum: float = 0.0
    largest: float = 0.0
    shifted: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Sums over the same inner tokens, of what the engine has at the token itself, at the one before and at the one after."""
    inner: int = 0
    looked: int = 0

    def add(self, trainer: Sequence[float], engine: Sequence[float]) -> None:
        """Add the counted tokens of a sample."""
        apart = list(map(abs, map(sub, trainer, engine)))
        self.tokens += len(apart)
        self.sum += sum(apart)
        self.largest = max(self.largest, max(apart, default=0.0))
        if self.looked < SHIFTS_IN and len(apart) > 2:
            self.looked += 1
            self.inner += len(apart) - 2
            self.shifted[0] += sum(apart[1:-1])
            self.shifted[1] += sum(map(abs, map(sub, trainer[1:-1], engine[:-2])))
            self.shifted[2] += sum(map(abs, map(sub, trainer[1:-1], engine[2:])))

    def shift(self) -> str:
        """Whose log-probs the engine's are, in words; empty if they are those of the tokens themselves, or that is not certain."""
        if self.inner < FEWEST_TOKENS:
            return ""
        # What the engine has at the token before is then of the token itself, so that it has those of the token after.
        own, before, after = (value / self.inner for value in self.shifted)
        for words, other in (("after", before), ("before", after)):
            if own > FAR and other < NEAR * own:
                return f"those of the token {words} it: mean distance {own:.2g} nats, and {other:.2g} when moved"
        return ""


def contradictions(sample: Sample) -> Iterator[str]:
    """What the lists of a sample contradict each other in. Each text begins with the kind of contradiction and a colon."""
    ids, lists = sample.completion_ids, _lists(sample)
    length = len(ids) if ids is not None else None
    for name, values in lists:
        if length is None:
            length = len(values)
        elif len(values) != length:
            first = "token ids" if ids is not None else lists[0][0]
            yield f"{name} and {first} of different lengths: {len(values)} and {length}"
            return
    if sample.reward is not None and not math.isfinite(sample.reward):
        yield "a reward that is not finite: it is none"
    if sample.advantage is not None and not isinstance(sample.advantage, list) and not math.isfinite(sample.advantage):
        yield "an advantage that is not finite: it is none"
    sampler, policy = sample.sampler_version, sample.policy_version
    if sampler is not None and policy is not None and sampler > policy:
        yield f"weights that are newer than those that train on it: drawn by version {sampler}, trained from version {policy}"
    for name, values in lists[1:] if sample.mask is not None else lists:
        counted = of_counted(values, sample.mask)
        if not _all_finite(counted):
            yield f"{name} that are not finite: at a token that counts"
        elif name.endswith("log-probs") and counted and max(counted) > ABOVE_ZERO:
            yield f"{name} above 0: up to {max(counted):.3g}"


def ratios_differ(sample: Sample) -> bool:
    """Whether the written log ratios are not those of the written log-probs."""
    trainer, engine, ratios = sample.trainer_log_probs, sample.engine_log_probs, sample.log_ratios
    if trainer is None or engine is None or ratios is None:
        return False
    numbers = (of_counted(values, sample.mask) for values in (trainer, engine, ratios))
    return any(
        abs(ratio - (new - old)) > RATIO_TOLERANCE * (1 + abs(new - old))
        for new, old, ratio in zip(*numbers, strict=True)
    )


def mask_is_wrong(sample: Sample, ends: frozenset[int]) -> bool | None:
    """Whether the mask counts other tokens than those through the first end, or than all or none without an end.

    None without ids or mask."""
    ids, mask = sample.completion_ids, sample.mask
    if ids is None or mask is None:
        return None
    last = next((at for at, token in enumerate(ids) if token in ends), None)
    if last is None:
        return bool(mask) and len(set(map(bool, mask))) > 1
    return not all(mask[: last + 1]) or any(mask[last + 1 :])


def of_counted(values: Sequence[Any], mask: Sequence[bool | int] | None) -> list[Any]:
    """The values at tokens that count."""
    return list(values) if mask is None else list(compress(values, mask))


def spread_advantage(sample: Sample) -> float | None:
    """The advantage of a sample as a whole; None if it has none, or its counted tokens have several."""
    advantage = sample.advantage
    if not isinstance(advantage, list):
        return advantage
    counted = of_counted(advantage, sample.mask)
    first = counted[0] if counted else None
    return first if first is not None and counted.count(first) == len(counted) else None


def _lists(sample: Sample) -> list[tuple[str, list[Any]]]:
    named = (
        ("mask", sample.mask),
        ("engine log-probs", sample.engine_log_probs),
        ("trainer log-probs", sample.trainer_log_probs),
        ("log ratios", sample.log_ratios),
        ("advantages", sample.advantage if isinstance(sample.advantage, list) else None),
    )
    return [(name, values) for name, values in named if values is not None]


def _all_finite(values: Sequence[float | None]) -> bool:
    try:
        return math.isfinite(math.fsum(values))  # type: ignore[arg-type]  # None raises
    except (TypeError, OverflowError, ValueError):
        return False
