"""Which requests to a generation belong to one conversation, and which row is whose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.observe.turn_rows import Ids, Request, Row, common_length

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

THOUGHT_ENDS = "</think>"
"""The text that a thought ends with in templates which leave out the thoughts of earlier turns (Qwen 3, DeepSeek-R1, GLM)."""


def chains_of(
    calls: Sequence[Sequence[Request]], prompts: Sequence[Ids], decode: Callable[[Ids], str]
) -> list[list[Request]]:
    """The requests of each conversation, in order.

    Args:
        calls: The requests of each call of the generation. All of the first call begin conversations.
        prompts: The prompts of the rows: a request for one of them begins a conversation.
        decode: The text of token ids.
    """
    known = {tuple(prompt) for prompt in prompts}
    chains: list[list[Request]] = []
    latest: dict[int, int] = {}
    for number, call in enumerate(calls):
        taken: set[int] = set()
        for request in call:
            begins = number == 0 or tuple(request.asked) in known
            place = None if begins else _continues(request.asked, chains, taken, latest, decode)
            if place is None:
                place = len(chains)
                chains.append([])
            chains[place].append(request)
            taken.add(place)
        latest |= dict.fromkeys(taken, number)
    return chains


def _continues(
    asked: Ids, chains: list[list[Request]], taken: set[int], latest: dict[int, int], decode: Callable[[Ids], str]
) -> int | None:
    """Which conversation a prompt goes on with: the longest that stands in it whole; else one of which it has the latest text, with
    the most tokens in common, that spoke last.

    Args:
        asked: The prompt.
        chains: All conversations.
        taken: The conversations that go on with another prompt of the same call.
        latest: The call in which each spoke last.
        decode: The text of token ids.
    """
    free = [place for place, chain in enumerate(chains) if place not in taken and len(asked) > len(chain[-1].asked)]
    whole = {place: chains[place][-1].whole for place in free}
    inside = [place for place in free if asked[: len(whole[place])] == whole[place]]
    if inside:
        return max(inside, key=lambda place: (len(whole[place]), -place))
    common = {place: common_length(asked, whole[place]) for place in free}
    begun = [place for place in free if common[place] >= len(chains[place][0].asked)]
    text = decode(asked) if begun else ""

    def fits(place: int) -> tuple[bool, int, int, int]:
        said = decode(chains[place][-1].given[:-1]).rpartition(THOUGHT_ENDS)[2].strip()
        return said in text, common[place], latest[place], -place

    return max(begun, key=fits, default=None)


def in_order(chains: list[list[Request]], rows: int) -> list[list[Request] | None]:
    """The first conversations, one for each row; None where there are fewer."""
    return [chains[place] if place < len(chains) else None for place in range(rows)]


def by_prompt(chains: list[list[Request]], rows: Sequence[Row]) -> list[list[Request] | None]:
    """For each row the conversation with its prompt that has the most tokens of it; None where there is none."""
    free = dict(enumerate(chains))
    found: list[list[Request] | None] = []
    for row in rows:
        whole = row.whole
        fits = [place for place, chain in free.items() if chain[0].asked == row.prompt]
        best = max(fits, key=lambda place: (common_length(free[place][-1].whole, whole), -place), default=None)
        found.append(None if best is None else free.pop(best))
    return found
