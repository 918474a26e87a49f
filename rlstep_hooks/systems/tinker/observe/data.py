"""The data of forward_backward: which sequences they were made of, and whether they still are what was drawn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlstep_hooks.systems.tinker.observe.drawn import Drawn


@dataclass(frozen=True)
class Piece:
    """Tokens of a datum that come from one sequence."""

    sampled: bool
    """Whether the sampler drew them; else they are of the prompt that it was asked with."""
    sequence: str
    offset: int
    """Where they begin in the sequence, or in its prompt."""
    begin: int
    """Where they begin in the datum."""
    end: int


def pieces_of(spans: Any) -> tuple[Piece, ...]:
    """What a datum's provenance says of its positions (tinker 0.38.0 types/provenance_spans.py); empty where it says nothing."""
    found, begin = [], 0
    for span in spans or ():
        sampled = type(span).__name__ == "SampledProvenanceSpan"
        found.append(Piece(sampled, span.sequence_id, span.offset, begin, begin + span.length))
        begin += span.length
    return tuple(found)


class Sent:
    """One datum as it is given to forward_backward, or as the loop has prepared it; its arrays are copies.

    Args:
        datum: The client's own datum.
    """

    def __init__(self, datum: Any) -> None:
        given = datum.loss_fn_inputs
        self.inputs = _tokens(datum.model_input)
        self.targets = _array(given.get("target_tokens"))
        self.old = _array(given.get("logprobs"))
        self.advantages = _array(given.get("advantages", given.get("weights")))
        self.mask = _array(given.get("mask"))
        self.own_clips = "clip_low_threshold" in given or "clip_high_threshold" in given
        self._of_inputs = pieces_of(datum.model_input_spans)
        self.pieces = pieces_of(datum.loss_fn_input_spans)

    @cached_property
    def drawn(self) -> tuple[Piece, ...]:
        """The tokens that samplers drew."""
        return tuple(piece for piece in self.pieces if piece.sampled)

    @property
    def name(self) -> tuple[str, int] | None:
        """What tells the datum from others: its first drawn token; None where nobody says which that is."""
        return (self.drawn[0].sequence, self.drawn[0].offset) if self.drawn else None

    @cached_property
    def counted(self) -> np.ndarray:
        """Positions whose token a sampler drew."""
        counted = np.zeros(0 if self.targets is None else len(self.targets), dtype=bool)
        for piece in self.drawn:
            counted[piece.begin : piece.end] = True
        return counted

    def tokens_are(self, drawn: Callable[[str], Drawn | None], *, sampled: bool) -> bool | None:
        """Whether the tokens are those that samplers drew, or those of the prompts; None where that is not known."""
        seen = None
        for tokens, pieces in ((self.inputs, self._of_inputs), (self.targets, self.pieces)):
            for piece in pieces:
                whole = drawn(piece.sequence)
                if piece.sampled != sampled or whole is None or tokens is None:
                    continue
                of = whole.tokens if sampled else whole.prompt
                if of is None:
                    continue
                seen = True
                own = np.asarray(of[piece.offset : piece.offset + piece.end - piece.begin])
                if not np.array_equal(tokens[piece.begin : piece.end], own):
                    return False
        return seen

    def old_are(self, drawn: Callable[[str], Drawn | None]) -> bool | None:
        """Whether the old log-probs are those that came with the tokens, bit for bit; None where that is not known."""
        seen = None
        for piece, own in self.log_probs(drawn):
            seen = True
            if self.old is None or not np.array_equal(self.old[piece.begin : piece.end], own):
                return False
        return seen

    def log_probs(self, drawn: Callable[[str], Drawn | None]) -> Iterator[tuple[Piece, np.ndarray]]:
        """The sampler's log-probs of each piece that it drew."""
        for piece in self.drawn:
            whole = drawn(piece.sequence)
            if whole is not None and whole.log_probs is not None:
                yield piece, whole.log_probs[piece.offset : piece.offset + piece.end - piece.begin]


def _array(tensor: Any) -> np.ndarray | None:
    if tensor is None or len(tensor.shape or ()) > 1:
        return None
    found: np.ndarray = np.array(tensor.to_numpy())
    return found


def _tokens(model_input: Any) -> np.ndarray | None:
    try:
        return np.asarray(model_input.to_ints())
    except ValueError:  # images
        return None
