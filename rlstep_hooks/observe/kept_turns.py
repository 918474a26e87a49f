"""The turns of one session, kept in little memory: each prompt repeats the conversation before it."""

from __future__ import annotations

import msgspec

from rlstep_hooks.observe.turn_rows import Ids, Request, common_length


class _Kept(msgspec.Struct, frozen=True):
    """One turn, with what its prompt has behind the tokens that it shares with the conversation so far."""

    shared: int
    rest: Ids
    given: Ids
    log_probs: list[float] | None


class KeptTurns:
    """Turns in the order in which they were sampled.

    The prompts of 50 turns of 500 tokens, with as many between them, are 1.3 million tokens; kept so they are 25 thousand.
    """

    def __init__(self) -> None:
        self._turns: list[_Kept] = []
        self._latest: Ids = []
        """The prompt of the latest turn, and what was sampled behind it."""

    def add(self, turn: Request) -> None:
        """Keep the next turn."""
        shared = common_length(turn.asked, self._latest)
        self._turns.append(_Kept(shared, turn.asked[shared:], turn.given, turn.log_probs))
        self._latest = turn.whole

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._turns)

    def all(self) -> list[Request]:
        """All turns, as they were added."""
        turns, latest = list[Request](), Ids()
        for kept in self._turns:
            turns.append(Request(latest[: kept.shared] + kept.rest, kept.given, kept.log_probs))
            latest = turns[-1].whole
        return turns
