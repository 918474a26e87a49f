"""A datum of a loop of one's own: what it is made of is found by its tokens and log-probs."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rlstep_hooks.systems.tinker.observe.data import Piece, Sent
from rlstep_hooks.systems.tinker.observe.origins import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlstep_hooks.record.events import OldSource
    from rlstep_hooks.systems.tinker.observe.drawn import Drawn
    from rlstep_hooks.systems.tinker.observe.origins import Origins, Turn

SHIFTS = {-1: "those of the token before", 1: "those of the token after"}
FEWEST_SHIFTED = 3
"""Log-probs above which a shift by one is certain."""


class Found(Sent):
    """One datum as it is given to forward_backward.

    Args:
        datum: The client's own datum.
        origins: Finds the sequences that it is made of.
        trained: Whether it is trained, and not only looked at.
    """

    def __init__(self, datum: Any, origins: Origins, *, trained: bool) -> None:
        super().__init__(datum)
        self.row = self._row()
        turns = () if self.row is None else origins.turns(self.row, trained=trained)
        self._last = turns[-1].sequence if turns else None
        self._of_inputs = self._pieces(turns, first=0)
        self.pieces = self._pieces(turns, first=1)
        self.old_source: OldSource = "unknown"
        """Where its old log-probs come from: the sampler ("engine"), or what the service was asked for afterwards ("recompute")."""
        self.computed: int | None = None
        """The policy version that computed them; None where nobody knows."""
        self.old_intact: bool | None = None
        """Whether they are what they should be; None where nobody knows."""

    def _row(self) -> Row | None:
        inputs, targets = self.inputs, self.targets
        if inputs is None or targets is None or len(inputs) != len(targets) or not len(targets):
            return None
        counts = self.trained
        if counts is None or len(counts) != len(targets) or (self.old is not None and len(self.old) != len(targets)):
            return None
        scores = None if self.old is None else np.concatenate([np.zeros(1, self.old.dtype), self.old])
        return Row(np.concatenate([inputs, targets[-1:]]), np.concatenate([[False], counts]), scores)

    def _pieces(self, turns: Iterable[Turn], *, first: int) -> tuple[Piece, ...]:
        """The turns as pieces, in the places of the inputs, or of the targets, whose first token is the row's second.

        Args:
            turns: Where sequences stand in the row.
            first: The place in the row of the first token.
        """
        if self.targets is None:
            return ()
        found: list[Piece] = []
        last = None
        for turn in turns:
            begin, end = max(turn.begin - first, 0), min(turn.end - first, len(self.targets))
            found.append(Piece(True, turn.sequence, begin + first - turn.begin, begin, end))
            last = turn
        if last is not None:
            # The prompt of the last turn has all that stands before it.
            found.append(Piece(False, last.sequence, first, 0, max(last.begin - first, 0)))
        return tuple(found)

    @property
    def name(self) -> tuple[str, int] | None:
        """What tells the datum from others: its last turn; None where its tokens are those of no sequence."""
        return None if self._last is None else (self._last, 0)

    @cached_property
    def trained(self) -> np.ndarray | None:
        """Targets that the loss counts: those whose advantage, or weight, is not 0."""
        if self.advantages is None:
            return None
        counts: np.ndarray = self.advantages != 0
        return counts if self.mask is None or len(self.mask) != len(counts) else counts & (self.mask != 0)

    @cached_property
    def counted(self) -> np.ndarray:
        """Targets that a sampler drew and the loss counts."""
        drawn = np.zeros(0 if self.targets is None else len(self.targets), dtype=bool)
        for piece in self.drawn:
            drawn[piece.begin : piece.end] = True
        return drawn if self.trained is None or len(self.trained) != len(drawn) else drawn & self.trained

    @property
    def counts_undrawn(self) -> bool | None:
        """Whether a token that nobody gave a log-prob has an advantage in a loss that takes its ratio; None where that is not known."""
        if self.old is None or self.trained is None or self.name is None or len(self.old) != len(self.trained):
            return None
        drawn = np.zeros(len(self.trained), dtype=bool)
        for piece in self.drawn:
            drawn[piece.begin : piece.end] = True
        return bool(np.any(self.trained & ~drawn & (self.old == 0)))

    def tokens_are(self, drawn: Callable[[str], Drawn | None], *, sampled: bool) -> bool | None:
        """Whether the tokens are those that samplers drew, or those of the prompts. Targets are compared where the loss counts them: a
        loop may put anything else into the others. Each of these is the input that follows."""
        if self.inputs is None or self.targets is None or self.trained is None or not self.drawn:
            return None
        if sampled and np.any(self.trained[:-1] & (self.inputs[1:] != self.targets[:-1])):
            return False
        seen = None
        for piece in self._of_inputs:
            whole = drawn(piece.sequence)
            of = None if whole is None else whole.tokens if sampled else whole.prompt
            if piece.sampled == sampled and of is not None:
                seen = True
                own = np.asarray(of[piece.offset : piece.offset + piece.end - piece.begin])
                if not np.array_equal(self.inputs[piece.begin : piece.end], own):
                    return False
        for piece in self.drawn if sampled else ():
            whole = drawn(piece.sequence)
            if whole is not None:
                seen = True
                own = np.asarray(whole.tokens[piece.offset : piece.offset + piece.end - piece.begin])
                counted = self.counted[piece.begin : piece.end]
                if np.any(self.targets[piece.begin : piece.end][counted] != own[counted]):
                    return False
        return seen

    def old_are(self, drawn: Callable[[str], Drawn | None]) -> bool | None:
        """Whether the old log-probs are what they should be, as it was found when the datum was given."""
        return self.old_intact

    def old_as_sampled(self, drawn: Callable[[str], Drawn | None]) -> bool | None:
        """Whether the old log-probs of the tokens that count are those that came with them, bit for bit."""
        seen = None
        for piece, own in self.log_probs(drawn):
            if self.old is None:
                return None
            counted = self.counted[piece.begin : piece.begin + len(own)]
            if not counted.any():
                continue
            seen = True
            if not np.array_equal(self.old[piece.begin : piece.begin + len(own)][counted], own[counted]):
                return False
        return seen

    def old_like(self, drawn: Callable[[str], Drawn | None], origins: Origins) -> str:
        """Whose old log-probs these are that are not the sampler's, where that is certain; empty where it is not."""
        if self.old is None or not self.counted.any():
            return ""
        if not self.old[self.counted].any():
            return "all of them are 0"
        for piece, own in self.log_probs(drawn):
            there = self.old[piece.begin : piece.begin + len(own)]
            for by, words in SHIFTS.items():
                if len(own) > FEWEST_SHIFTED and np.array_equal(there[1:-1], np.roll(own, -by)[1:-1]):
                    return words
            if origins.are_of_another(there, own):
                return "those of another sample"
        return ""
