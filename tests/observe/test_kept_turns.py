"""Turns that are kept in little memory are the same turns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.observe.kept_turns import KeptTurns
from rlstep_hooks.observe.turn_rows import Request

IDS = st.lists(st.integers(0, 3), max_size=8)


@given(st.lists(st.tuples(IDS, IDS, st.booleans())))
def test_any_turns_are_given_back_as_they_were(asked: list[tuple[list[int], list[int], bool]]) -> None:
    kept, turns, latest = KeptTurns(), list[Request](), list[int]()
    for prompt, sampled, goes_on in asked:
        turns.append(Request(latest + prompt if goes_on else prompt, sampled, [float(one) for one in sampled] or None))
        latest = turns[-1].whole
        kept.add(turns[-1])
    assert kept.all() == turns


def test_a_long_conversation_takes_the_memory_of_its_latest_prompt() -> None:
    kept, whole = KeptTurns(), [7] * 100
    for _ in range(50):
        kept.add(Request([*whole], [1] * 500))
        whole += [1] * 500 + [2] * 500
    assert sum(len(each.rest) for each in kept._turns) == 100 + 49 * 500
