"""Which sequences of samplers the row of a datum is made of, found by its tokens: a loop of one's own gives data no provenance.

A row is the prompt that a sampler was asked with, followed by what it drew. In several turns the prompt of the last turn has all turns
before it. A row may end earlier (a stop token that the loop cuts off) or go on (tokens that the loop appends).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.systems.tinker.observe.drawn import Drawn, Samplers

FEWEST_ALIKE = 2
"""Log-probs in a row that must be those of a sequence, bit for bit, before it is taken for it although tokens differ."""


@dataclass(frozen=True)
class Turn:
    """Tokens of a row that one sequence gave."""

    sequence: str
    begin: int
    """Where they begin in the row; the prompt of the sequence stands before it."""
    end: int


@dataclass(frozen=True)
class Row:
    """The tokens of a datum: its input, and its last target."""

    tokens: np.ndarray
    counts: np.ndarray
    """Whether the loss counts each token."""
    scores: np.ndarray | None
    """The old log-prob of each token; None where the loss has none."""


class Origins:
    """Finds sequences again.

    Args:
        samplers: What the samplers drew.
        ahead: Whether samples are drawn while older ones are trained.
    """

    def __init__(self, samplers: Samplers, *, ahead: bool) -> None:
        self._samplers = samplers
        self._ahead = ahead
        self._prompts: dict[int, list[str]] = {}
        """Checksum of a prompt -> the sequences that were drawn after it."""
        self._lengths: set[int] = set()
        """Tokens of these prompts."""
        self._scores: dict[bytes, str] = {}
        """First log-probs -> the sequence that has them."""
        self._uses: Counter[str] = Counter()
        """How often each sequence was found."""

    def collect(self) -> None:
        """Take what samplers drew since the last call."""
        for name in self._samplers.collect():
            drawn = self._samplers.drawn(name)
            if drawn is None or not drawn.prompt or not len(drawn.tokens):
                continue
            self._lengths.add(len(drawn.prompt))
            self._prompts.setdefault(checksum(np.asarray(drawn.prompt)), []).append(name)
            if drawn.log_probs is not None and len(drawn.log_probs) >= FEWEST_ALIKE:
                self._scores[_key(drawn.log_probs)] = name

    def forget_asked(self, before: int) -> None:
        """Forget what was asked for before a moment."""
        gone = self._samplers.forget_asked(before)
        if gone:
            kept = {of: [name for name in names if name not in gone] for of, names in self._prompts.items()}
            self._prompts = {of: names for of, names in kept.items() if names}
            self._scores = {of: name for of, name in self._scores.items() if name not in gone}
            for name in gone:
                del self._uses[name]

    def drawn(self, sequence: str) -> Drawn | None:
        """The sequence of this name."""
        return self._samplers.drawn(sequence)

    def turns(self, row: Row, *, trained: bool) -> tuple[Turn, ...]:
        """The sequences that a row is made of, in the order of their tokens; none where it has other tokens than any of them.

        Args:
            row: The row.
            trained: Whether it is trained, and not only looked at.
        """
        found, end = [], len(row.tokens)
        sums = _checksums(row.tokens)
        for begin in sorted((length for length in self._lengths if length < end), reverse=True):
            names = self._prompts.get(int(sums[begin])) if begin < end else None
            turn = None if names is None else self._turn(row, begin, end, names)
            if turn is not None:
                found.append(turn)
                end = begin
        found += self._by_scores(row, found)
        if not found:
            return ()
        found.sort(key=lambda turn: turn.begin, reverse=True)
        self._uses[found[0].sequence] += trained
        # A prompt may begin like another one did with its answer: what counts tells.
        told = [turn for turn in found[1:] if row.counts[turn.begin : turn.end].any()]
        return (*reversed(told), found[0])

    def are_of_another(self, scores: np.ndarray, own: np.ndarray) -> bool:
        """Whether log-probs begin like those of another sequence, and not like those of their own."""
        if len(scores) < FEWEST_ALIKE or len(own) < FEWEST_ALIKE or _key(scores) == _key(own):
            return False
        return bool(scores[0]) and _key(scores) in self._scores

    def _turn(self, row: Row, begin: int, end: int, names: Iterable[str]) -> Turn | None:
        """The sequence whose tokens stand there. Where several have the same, the one with its log-probs; then, where nothing is drawn
        ahead, one of the latest, since older ones may have been left out; then one that was trained least; then the one of which
        least is cut off, since a longer one that begins with the same tokens has a row of its own."""
        fitting: list[tuple[tuple[bool, int, int, int, int, int], Turn]] = []
        for name in names:
            drawn = self._samplers.drawn(name)
            if drawn is None:
                continue
            common = _common(row.tokens[begin:end], drawn.tokens)
            alike = _alike(row, begin, drawn)
            whole = bool(common) and not row.counts[begin + common : end].any()
            if whole:
                stands = begin + common
            elif alike >= max(FEWEST_ALIKE, int(row.counts[begin:end].sum()) // 2):
                stands = min(begin + len(drawn.tokens), end)
            else:
                continue
            uses, cut = -self._uses[name], common - len(drawn.tokens)
            order = (uses, cut, -drawn.moment) if self._ahead else (drawn.moment, uses, cut)
            fitting.append(((whole, alike, common, *order), Turn(name, begin, stands)))
        # Of those that fit equally the first that was drawn.
        return max(fitting, key=itemgetter(0))[1] if fitting else None

    def _by_scores(self, row: Row, known: Iterable[Turn]) -> list[Turn]:
        """Sequences whose log-probs stand in the row although it has other tokens before them, beside those that are known."""
        if row.scores is None:
            return []
        found: list[Turn] = []
        free = row.counts & (row.scores != 0)
        for turn in known:
            free[turn.begin : turn.end] = False
        begins = np.flatnonzero(free)
        end = 0
        for begin in begins.tolist():
            name = self._scores.get(_key(row.scores[begin:])) if begin >= end else None
            drawn = None if name is None else self._samplers.drawn(name)
            if name is not None and drawn is not None:
                end = min(begin + len(drawn.tokens), len(row.tokens))
                found.append(Turn(name, begin, end))
        return found


def checksum(tokens: np.ndarray) -> int:
    """The checksum of a row."""
    return int(_checksums(tokens)[-1])


def _checksums(tokens: np.ndarray) -> np.ndarray:
    """(T + 1,), one of each beginning of the tokens."""
    factors = _factors(1 << max(len(tokens), 1024).bit_length())[: len(tokens)]
    terms = (tokens.astype(np.uint64) + np.uint64(1)) * factors
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])


@cache
def _factors(count: int) -> np.ndarray:
    """Factors of the places of a row: those of a longer row begin with those of a shorter one."""
    return np.random.default_rng(9).integers(0, 2**64, count, dtype=np.uint64)


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """How many tokens two begin with in common."""
    shorter = min(len(one), len(other))
    differ = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differ[0]) if len(differ) else shorter


def _alike(row: Row, begin: int, drawn: Drawn) -> int:
    """How many log-probs of a row are those of a sequence that begins there."""
    if row.scores is None or drawn.log_probs is None:
        return 0
    there = row.scores[begin : begin + len(drawn.log_probs)]
    return int(np.count_nonzero(there == drawn.log_probs[: len(there)]))


def _key(scores: np.ndarray) -> bytes:
    key: bytes = np.ascontiguousarray(scores[:FEWEST_ALIKE], np.float32).tobytes()
    return key
