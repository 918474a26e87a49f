"""A row that is trained, as a finding shows it: where each token comes from, and whether it is trained."""

from __future__ import annotations

from typing import Literal

import msgspec

Origin = Literal["prompt", "sampled", "written", "other"]
"""The prompt; a turn that was sampled; a tool, an environment or the chat template; or nothing that is known, from the first token on
that is not the expected one."""


class Piece(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Neighbouring tokens of one origin that are all trained, or all not."""

    origin: Origin
    trained: bool
    tokens: int
    text: str
    """The text of these tokens, without its middle where it is long."""
    turn: int = 0
    """The turn that they were sampled in, from 1; 0 where they were not sampled."""

    wrong: bool = False
    """Whether the tokens are not the expected ones, or are trained and should not be, or the other way round."""

    @property
    def words(self) -> str:
        """What the tokens are, in words: "sampled in turn 2, not trained"."""
        origin = {
            "prompt": "prompt",
            "sampled": f"sampled in turn {self.turn}",
            "written": "tool or template",
            "other": "not as expected",
        }[self.origin]
        return f"{origin}, {'trained' if self.trained else 'not trained'}"


class TokenRow(msgspec.Struct, frozen=True, gc=False):
    """One row."""

    name: str
    """Which row it is."""
    pieces: tuple[Piece, ...]
    left_out: int = 0
    """Tokens behind the last piece that are not shown."""
