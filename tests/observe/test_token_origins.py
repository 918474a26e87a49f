"""Rows and sampled turns, joined: small cases by hand. A token is a letter, and its id is the letter's code."""

from __future__ import annotations

import pytest

from rlstep_hooks.observe.conversations import chains_of
from rlstep_hooks.observe.token_origins import compare_row, join
from rlstep_hooks.observe.turn_rows import Difference, Joined, Message, Request, Row, RowRule, common_length
from rlstep_hooks.planning.words import ENDS_OF_CUT_TURNS


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def decode(of: list[int]) -> str:
    return "".join(chr(one) for one in of).lower()  # "A" is another token for the text of "a"


def rule(*, exact: bool = True, longest: int = 99, masks_truncated: bool = False) -> RowRule:
    return RowRule(
        decode=decode, longest=longest, closers=frozenset(ids(".")), masks_truncated=masks_truncated, exact=exact
    )


def request(asked: str, given: str) -> Request:
    return Request(ids(asked), ids(given))


def row(prompt: str, completion: str, trained: str) -> Row:
    return Row(ids(prompt), ids(completion), [int(one) for one in trained])


TWO_TURNS = [[request("p:", "abc.")], [request("p:abc.[t]", "de.")]]


def joined(completion: str, trained: str, **settings: bool | int) -> Joined:
    return join(TWO_TURNS, [row("p:", completion, trained)], rule(**settings))  # type: ignore[arg-type]


def test_each_token_of_a_row_has_an_origin() -> None:
    found = joined("abc.[t]de.", "1111000111")
    assert (found.rows, found.turns, found.sampled, found.written) == (1, 2, 7, 3)
    assert (found.tokens_moved, found.masks_wrong) == (0, 0)


@pytest.mark.parametrize(
    ("completion", "trained", "like"),
    [
        ("aBc.[t]de.", "1111000111", "turn 1 was decoded and encoded again"),
        ("abc.[t]dE.", "1111000111", "turn 2 was decoded and encoded again"),
        ("abc.[t]", "1111000", "turn 2 was left out"),
        ("abc.[t]d", "11110001", "turn 2 was cut"),
        ("[t]de.", "000111", "turn 1 was left out"),
        ("ab[t]de.", "11000111", "turn 1 was cut"),
        ("de.[t]abc.", "1110001111", "turn 2 stands in the place of turn 1"),
        ("abx.[t]de.", "1111000111", "turn 1 has other tokens"),
        ("abc.[u]de.", "1111000111", "turn 2 was sampled behind other tokens than those before it in the row"),
        (
            "abc.[T]de.",
            "1111000111",
            "turn 2 saw the same text as other tokens: a turn before it was decoded and encoded again",
        ),
        ("abc.[t]de.xy", "111100011111", "it has tokens behind its last turn"),
    ],
)
def test_other_tokens_are_named(completion: str, trained: str, like: str) -> None:
    found = joined(completion, trained)
    assert (found.tokens_moved, found.masks_wrong, found.tokens_like) == (1, 0, like)


@pytest.mark.parametrize(
    ("trained", "like"),
    [
        ("1111111111", "tokens that a tool, an environment or the chat template wrote are trained"),
        ("1111100011", "its mask stands one token too late"),
        ("1110001111", "its mask stands one token too early"),
        ("0000000111", "sampled tokens are not trained"),
        ("1111000110", "sampled tokens are not trained"),
        (
            "0000111000",
            "tokens that a tool, an environment or the chat template wrote are trained and sampled ones are not",
        ),
    ],
)
def test_other_masks_are_named(trained: str, like: str) -> None:
    found = joined("abc.[t]de.", trained)
    assert (found.tokens_moved, found.masks_wrong, found.masks_like) == (0, 1, like)


@pytest.mark.parametrize(
    ("completion", "trained", "pieces"),
    [
        ("abc.[t]de.", "1111111111", ["p:", "abc.", "✗ [t]", "de."]),
        ("abc.[t]de.", "1110001111", ["p:", "abc", "✗ .", "[t", "✗ ]", "de."]),
        ("abx.[t]de.", "1111000111", ["p:", "ab", "✗ x.", "✗ [t]", "✗ de."]),
        ("abc.[u]de.", "1111000111", ["p:", "abc.", "[", "✗ u]", "✗ de."]),
    ],
)
def test_a_wrong_row_is_shown_piece_by_piece(completion: str, trained: str, pieces: list[str]) -> None:
    row = joined(completion, trained).wrong_row
    assert row is not None
    assert [("✗ " if piece.wrong else "") + piece.text for piece in row.pieces] == pieces
    assert sum(piece.tokens for piece in row.pieces) == 2 + len(completion)
    assert row.left_out == 0


def test_a_right_row_is_not_shown() -> None:
    assert joined("abc.[t]de.", "1111000111").wrong_row is None


def read(given: list[int], asked: list[int]) -> Message | None:
    """A turn says its letters, of which capitals are names of tools; a turn of question marks cannot be read."""
    text = "".join(map(chr, given)).rstrip(".")
    return None if "?" in text else Message(text, [(letter, {}) for letter in text if letter.isupper()])


@pytest.mark.parametrize(
    ("between", "said", "like"),
    [
        ("[t]", ["abc", "de"], ""),
        ("[t]", ["abc", None], ""),
        ("[t]", ["abc"], ""),
        ("[u]", ["abc", "de"], "behind turn 1 stands another text than its tools wrote"),
        ("[t][t]", ["abc", "de"], "behind turn 1 stands another text than its tools wrote"),
        ("[t]", ["abc", "d"], "turn 2 was taken for another message than its tokens say"),
        ("[t]", ["x", "de"], "turn 1 was taken for another message than its tokens say"),
    ],
)
def test_what_tools_wrote_and_what_turns_say_is_compared(between: str, said: list[str | None], like: str) -> None:
    messages = [None if text is None else Message(text) for text in said]
    one = Row(
        ids("p:"), ids("abc.[t]de."), [1, 1, 1, 1, 0, 0, 0, 1, 1, 1], between=[ids(between)], said=messages, read=read
    )
    found = join(TWO_TURNS, [one], rule())
    assert (found.tokens_moved, found.tokens_like) == (bool(like), like)


def test_a_turn_that_cannot_be_read_or_that_is_cut_is_not_compared() -> None:
    one = Row(ids("p:"), ids("a?"), [1, 1], said=[Message("other")], read=read)
    assert join([[request("p:", "a?")]], [one], rule()).tokens_moved == 0
    cut = Row(ids("p:"), ids("ab"), [1, 1], said=[Message("other")], read=read)
    assert join([[request("p:", "abc.")]], [cut], rule(longest=2)).tokens_moved == 0


def test_a_call_that_was_lost_is_named() -> None:
    one = Row(ids("p:"), ids("aB."), [1, 1, 1], said=[Message("aB")], read=read)
    found = join([[request("p:", "aB.")]], [one], rule())
    assert found.tokens_at == "sample 0: its tokens say 'aB', a call of B, the message 'aB'"


def test_what_is_known_to_be_wrong_with_a_row_is_said() -> None:
    one = Row(ids("p:"), ids("a."), [1, 1], wrong=Difference("it has another result", "message 1"))
    found = join([[request("p:", "a.")]], [one], rule())
    assert (found.tokens_like, found.tokens_at) == ("it has another result", "sample 0: message 1")


@pytest.mark.parametrize(
    ("trained", "like"),
    [
        ("1110001111", ""),
        ("1111001111", ENDS_OF_CUT_TURNS),
        (
            "1110100111",
            "tokens that a tool, an environment or the chat template wrote are trained and sampled ones are not",
        ),
        ("1111101111", "tokens that a tool, an environment or the chat template wrote are trained"),
        ("1110011111", "tokens that a tool, an environment or the chat template wrote are trained"),
    ],
)
def test_ends_that_a_template_put_behind_cut_turns_are_named(trained: str, like: str) -> None:
    calls = [[request("p:", "abc")], [request("p:abc.[t", "defg")]]
    known = RowRule(
        decode=decode, longest=99, closers=frozenset(), masks_truncated=False, exact=True, template_end=ids(".")
    )
    assert join(calls, [row("p:", "abc.[tdefg", trained)], known).masks_like == like


def test_sampled_tokens_that_a_function_leaves_untrained_are_not_marked_in_a_wrong_row() -> None:
    row = joined("abc.[t]de.", "0000001111", exact=False).wrong_row
    assert row is not None
    assert [piece.words for piece in row.pieces if piece.wrong] == ["tool or template, trained"]


def test_a_long_row_is_shown_in_part() -> None:
    turns = [request("p:" + "a." * place, "a.") for place in range(40)]
    shown = compare_row(row("p:", "a." * 40, "01" * 40), turns, rule()).wrong_row
    assert shown is not None
    assert len(shown.pieces) == 24
    assert sum(piece.tokens for piece in shown.pieces) + shown.left_out == 82
    long = compare_row(row("p:", "a" * 98 + ".", "0" * 99), [request("p:", "a" * 98 + ".")], rule()).wrong_row
    assert long is not None
    assert long.pieces[1].text == "a" * 24 + " … " + "a" * 11 + "."


def test_the_last_turn_may_be_cut_at_the_longest_completion_and_nowhere_else() -> None:
    assert joined("abc.[t]d", "11110001", longest=8).tokens_moved == 0
    assert joined("abc.[t]d", "11110001", longest=9).tokens_moved == 1


@pytest.mark.parametrize(
    ("parts", "completion", "trained"),
    [
        ([("p:", ""), ("p:", "abc.")], "abc.", "1111"),
        ([("p:", "ab"), ("p:ab", "c."), ("p:abc.[t]", "de.")], "abc.[t]de.", "1111000111"),
    ],
)
def test_a_turn_that_was_interrupted_stands_as_its_parts(
    parts: list[tuple[str, str]], completion: str, trained: str
) -> None:
    turns = [request(*part) for part in parts]
    found = compare_row(row("p:", completion, trained), turns, rule())
    assert (found.rows, found.tokens_moved, found.masks_wrong) == (1, 0, 0)
    found = compare_row(row("p:", completion, "0" * len(completion)), turns, rule())
    assert found.masks_like == "sampled tokens are not trained"


@pytest.mark.parametrize(
    ("prompt", "completion", "trained", "log_probs", "like"),
    [
        ("p:", "abc.[t]de.", "111100011", None, "its mask has 9 entries for 10 tokens"),
        ("p:abc.[t]", "de.", "111", None, "sampled tokens stand in its prompt, where none is trained"),
        ("p:", "abc.[t]de.", "1111000111", [-1.0] * 9, "9 log-probs for 10 tokens"),
        ("p:", "abc.[t]de.", "1111000111", None, "none, although the engine gave them"),
        ("p:", "abc.[t]de.", "1111000111", [-1, -2, -3, -4, 0, 0, 0, -5, -6, -7], ""),
        ("p:", "abc.[t]de.", "1111000111", [-1, -2, -3, -4, -9, 0, -9, -5, -6, -7], ""),
        ("p:", "abc.[t]de.", "1111000111", [0, -1, -2, -3, -4, 0, 0, 0, -5, -6], "those of the token before it"),
        ("p:", "abc.[t]de.", "1111000111", [-1, -2, -3, -4, 0, 0, -5, -6, -7, 0], "other ones than were handed over"),
        (
            "p:",
            "abc.[t]de.",
            "1111000111",
            [-1, -2, -3, -4, 0, 0, 0, -5, -6, -7.001],
            "other ones than were handed over",
        ),
    ],
)
def test_what_an_engine_gave_is_in_the_row_bit_for_bit(
    prompt: str, completion: str, trained: str, log_probs: list[float] | None, like: str
) -> None:
    turns = [
        Request(ids("p:"), ids("abc."), [-1.0, -2.0, -3.0, -4.0]),
        Request(ids("p:abc.[t]"), ids("de."), [-5.0, -6.0, -7.0]),
    ]
    if log_probs is None and like != "none, although the engine gave them":
        turns = [Request(turn.asked, turn.given) for turn in turns]
    numbers = None if log_probs is None else [float(one) for one in log_probs]
    of = Row(ids(prompt), ids(completion), [int(one) for one in trained], log_probs=numbers)
    found = compare_row(of, turns, rule())
    assert (found.masks_like or found.log_probs_like, found.tokens_moved) == (like, 0)
    assert found.masks_wrong + found.log_probs_moved == int(bool(like))


def test_an_empty_prompt_is_named() -> None:
    found = compare_row(row("", "abc.", "1111"), [request("", "abc.")], rule())
    assert found.tokens_like == "its first turn was asked for behind an empty prompt"


def test_a_full_row_is_cut_in_any_of_its_turns() -> None:
    turns = [request("p:", "ab"), request("p:ab", "cd"), request("p:abcd", "ef")]
    for longest in (1, 2, 3, 4, 5):
        found = compare_row(row("p:", "abcdef"[:longest], "1" * longest), turns, rule(longest=longest))
        assert (found.tokens_moved, found.masks_wrong) == (0, 0), found
    assert compare_row(row("p:", "abxd", "1111"), turns, rule(longest=4)).tokens_like == "turn 2 has other tokens"
    assert compare_row(row("p:", "abc", "111"), turns, rule(longest=4)).tokens_like == "turn 2 was cut"


def test_truncated_rows_are_left_out_where_they_are_to_be() -> None:
    settings = {"longest": 8, "masks_truncated": True}
    assert joined("abc.[t]d", "00000000", **settings).masks_wrong == 0
    found = joined("abc.[t]d", "11110001", **settings)
    assert found.masks_like == "it is truncated and trained"
    found = joined("abc.[t]de.", "0000000000", longest=99, masks_truncated=True)
    assert found.masks_like == "nothing of a row is trained that ended by itself"


def test_a_function_of_rollouts_may_cut_a_turn_and_leave_it_untrained() -> None:
    assert joined("ab[t]", "11000", exact=False) == Joined(rows=1, turns=2, sampled=2, written=3)
    assert joined("abc.[t]de.", "0000000111", exact=False).masks_wrong == 0
    assert joined("abc.[t]de.", "1111111111", exact=False).masks_wrong == 1


def test_of_several_samples_of_one_prompt_each_goes_on_with_its_own_turn() -> None:
    calls = [
        [request("p:", "a."), request("p:", "b."), request("p:", "c.")],
        [request("p:a.[t]", "x."), request("p:c.[t]", "y.")],
    ]
    chains = chains_of(calls, [ids("p:")] * 3, decode)
    assert [[decode(turn.given) for turn in chain] for chain in chains] == [["a.", "x."], ["b."], ["c.", "y."]]


def test_a_turn_without_its_thoughts_goes_on_with_its_own_conversation() -> None:
    calls = [
        [request("p:", "<think>q</think>a."), request("p:", "<think>r</think>b.")],
        [request("p:b.[t]", "y."), request("p:a.[t]", "x.")],
    ]
    chains = chains_of(calls, [ids("p:")] * 2, decode)
    assert [decode(chain[1].given) for chain in chains] == ["x.", "y."]
    rows = [row("p:", "<think>q</think>a.[t]x.", "1" * 18 + "00011")] * 2
    found = join(calls, rows[:1], rule(exact=False))
    assert found.tokens_like == "turn 2 did not see the thoughts of earlier turns, which the chat template leaves out"


def test_rows_that_are_exchanged_are_named() -> None:
    calls = [[request("p:", "abc."), request("q:", "xyz.")]]
    found = join(calls, [row("p:", "xyz.", "1111"), row("q:", "abc.", "1111")], rule())
    assert (found.tokens_moved, found.tokens_like) == (2, "turn 1 is one of sample 1")
    found = join(calls, [row("q:", "abc.", "1111"), row("p:", "xyz.", "1111")], rule())
    assert (found.tokens_moved, found.tokens_like) == (2, "it has the prompt of sample 1")


@pytest.mark.parametrize(
    ("one", "other", "common"), [("", "a", 0), ("abc", "abd", 2), ("abc", "ab", 2), ("xa", "ya", 0)]
)
def test_common_length(one: str, other: str, common: int) -> None:
    assert common_length(ids(one), ids(other)) == common
