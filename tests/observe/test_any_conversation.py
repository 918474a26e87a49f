"""Any conversation: its row is right as the framework joins it, and every single change of the row is seen."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.observe.token_origins import compare_row, compare_rows
from rlstep_hooks.observe.turn_rows import Request, Row, RowRule

Ids = list[int]


class Conversation(NamedTuple):
    """The turns of one conversation, and the row that they make."""

    turns: list[Request]
    row: Row
    origins: list[int]
    """For each token of the completion: 1 where it was sampled, 0 where it stands between turns, -1 where it is behind the last."""


def rule(longest: int, *, exact: bool) -> RowRule:
    return RowRule(
        decode=lambda ids: "".join(map(chr, ids)),
        longest=longest,
        closers=frozenset(),
        masks_truncated=False,
        exact=exact,
        goes_on=True,
    )


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Turns of any length, some of them interrupted, with anything between them; the row may be cut at its longest."""
    token = st.integers(65, 70)
    some, any_number = st.lists(token, min_size=1, max_size=6), st.lists(token, max_size=4)
    prompt = draw(some)
    whole, turns, origins = [*prompt], list[Request](), list[int]()
    for _ in range(draw(st.integers(1, 4))):
        for part in [*draw(st.lists(any_number, max_size=2)), draw(some)]:
            turns.append(Request([*whole], part, [-float(place) for place in range(1, len(part) + 1)]))
            whole += part
            origins += [1] * len(part)
        between = draw(any_number)
        whole += between
        origins += [0] * len(between)
    last = max(place for place, origin in enumerate(origins) if origin == 1)
    origins[last + 1 :] = [-1] * (len(origins) - last - 1)
    longest = draw(st.integers(1, len(origins)))
    kept = origins[:longest]
    row = Row(prompt, whole[len(prompt) :][:longest], [int(origin == 1) for origin in kept])
    return Conversation(turns, row, kept)


@given(conversations())
def test_a_row_as_it_is_joined_is_right(found: Conversation) -> None:
    longest = len(found.row.completion)
    for joined in (
        compare_row(found.row, found.turns, rule(longest, exact=True)),
        compare_rows([found.row], found.turns, rule(longest, exact=False)),
    ):
        assert (joined.rows, joined.tokens_moved, joined.masks_wrong) == (1, 0, 0), joined
        assert joined.sampled == sum(origin == 1 for origin in found.origins)


@given(conversations(), st.data())
def test_a_token_that_is_trained_and_should_not_be_or_the_other_way_round_is_seen(
    found: Conversation, data: st.DataObject
) -> None:
    place = data.draw(st.sampled_from(range(len(found.origins))))
    trained = [*found.row.trained]
    trained[place] = 1 - trained[place]
    row = msgspec.structs.replace(found.row, trained=trained)
    joined = compare_row(row, found.turns, rule(len(trained), exact=True))
    assert (joined.tokens_moved, joined.masks_wrong) == (0, 1)
    assert joined.wrong_row is not None
    assert [piece.tokens for piece in joined.wrong_row.pieces if piece.wrong][:1] == [1] or joined.wrong_row.left_out


@given(conversations(), st.data())
def test_any_other_token_before_the_end_of_the_last_turn_is_seen(found: Conversation, data: st.DataObject) -> None:
    places = [place for place, origin in enumerate(found.origins) if origin >= 0]
    place = data.draw(st.sampled_from(places))
    completion = [*found.row.completion]
    completion[place] += 10
    row = msgspec.structs.replace(found.row, completion=completion)
    joined = compare_row(row, found.turns, rule(len(completion), exact=True))
    assert joined.tokens_moved == 1, joined


@given(conversations(), st.data())
def test_a_token_that_is_left_out_or_said_twice_is_seen(found: Conversation, data: st.DataObject) -> None:
    """Unless the row stays the same by it, or could be that of another conversation that was cut."""
    place = data.draw(st.sampled_from([place for place, origin in enumerate(found.origins) if origin == 1]))
    twice = data.draw(st.booleans())
    completion, trained = [*found.row.completion], [*found.row.trained]
    for of_row in (completion, trained):
        of_row[place : place + 1] = of_row[place : place + 1] * (2 if twice else 0)
    row = msgspec.structs.replace(found.row, completion=completion, trained=trained)
    joined = compare_row(row, found.turns, rule(99, exact=True))
    whole = found.turns[-1].whole[len(found.row.prompt) :]
    if completion[: len(whole)] != whole:
        assert joined.tokens_moved == 1, joined
