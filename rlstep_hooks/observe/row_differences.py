"""How the tokens and the mask of a row differ from what was sampled for it, in words."""

from __future__ import annotations

from rlstep_hooks.observe.conversations import THOUGHT_ENDS
from rlstep_hooks.observe.turn_rows import Comparison, Difference, Ids, Message, RowRule, common_length
from rlstep_hooks.planning.words import ENDS_OF_CUT_TURNS

SHOWN = 8
"""Tokens of which a finding has the text."""
_CHARACTERS = 40
"""Characters of a message that a finding has."""


def walk(of: Comparison) -> tuple[Difference | None, Ids]:
    """What is other in a row than what was sampled for it, None where nothing is; and 1 on each sampled token of its completion."""
    row, rule = of.row, of.rule
    whole, before = row.whole, len(row.prompt)
    sampled = [0] * len(whole)
    is_full = rule.exact and len(row.completion) >= rule.longest
    if rule.exact and not of.chain[0].asked:
        return Difference("its first turn was asked for behind an empty prompt", "nothing"), sampled[before:]
    for turn, request in enumerate(of.chain, 1):
        start, given = len(request.asked), request.given
        if is_full and start >= len(whole) and request.asked[: len(whole)] == whole:
            break  # This turn, and all behind it, are where the row is cut.
        if whole[:start] != request.asked:
            if rule.exact or any(row.trained[max(0, common_length(request.asked, whole) - before) :]):
                return _other_prompt(of, turn), sampled[before:]
            return None, sampled[before:]
        same = common_length(given, whole[start:])
        sampled[start : start + same] = [1] * same
        if same == len(given):
            continue
        last, cut = turn == len(of.chain), start + same
        if cut == len(whole) and (is_full or (last and not rule.exact)):
            continue
        goes_on = len(whole) if last else len(of.chain[turn].asked)
        if rule.exact or (
            any(row.trained[cut - before : goes_on - before]) and _same_text(rule, given[same:], whole[cut:])
        ):
            return _other_turn(of, turn, same), sampled[before:]
    end = len(of.chain[-1].whole)
    if rule.exact and not rule.goes_on and len(whole) > end:
        return Difference("it has tokens behind its last turn", quoted(rule, whole[end:])), sampled[before:]
    return None, sampled[before:]


def other_between(of: Comparison) -> Difference | None:
    """Say that something else stands between two turns than belongs there; None where nothing does, or nobody knows."""
    expected = of.row.between or []
    for turn, (wanted, one, later) in enumerate(zip(expected, of.chain, of.chain[1:], strict=False), 1):
        stands = later.asked[len(one.whole) :]
        if stands != wanted:
            same = common_length(stands, wanted)
            like = f"behind turn {turn} stands another text than its tools wrote"
            at = f"belongs {quoted(of.rule, wanted[same:])}, in the row {quoted(of.rule, stands[same:])}, from token {same} on"
            return Difference(like, at)
    return None


def other_message(of: Comparison) -> Difference | None:
    """Say that the message of a turn is another one than its tokens say; None where none is, or nobody knows."""
    row = of.row
    if row.read is None:
        return None
    for turn, (said, request) in enumerate(zip(row.said or (), of.chain, strict=False), 1):
        is_whole = len(request.whole) <= len(row.whole)
        told = row.read(request.given, request.asked) if said is not None and is_whole and request.given else None
        if said is not None and told is not None and told != said:
            texts = f"its tokens say {_of_message(told)}, the message {_of_message(said)}"
            return Difference(f"turn {turn} was taken for another message than its tokens say", texts)
    return None


def _of_message(message: Message) -> str:
    calls = "".join(f", a call of {name}" for name, _ in message.calls)
    return f"{message.text[:_CHARACTERS]!r}{calls}"


def _other_prompt(of: Comparison, turn: int) -> Difference:
    """Say that a turn was asked for behind other tokens than those that stand before it in the row."""
    row, rule, asked = of.row, of.rule, of.chain[turn - 1].asked
    whole = row.whole
    same = common_length(asked, whole)
    texts = f"asked behind {quoted(rule, asked[same:])}, in the row {quoted(rule, whole[same:])}, from token {same} on"
    if same < len(row.prompt) and turn == 1:
        other = next((place for place, chain in enumerate(of.all_chains) if chain[0].asked == row.prompt), None)
        kind = "another prompt" if other is None else f"the prompt of sample {other}"
        return Difference(f"it has {kind}", texts)
    stands, wanted = rule.decode(whole[same:]), rule.decode(asked[same:])
    if _leaves_out_thoughts(rule.decode(whole[:same]), stands, wanted):
        return Difference(
            f"turn {turn} did not see the thoughts of earlier turns, which the chat template leaves out", texts
        )
    if _same_text(rule, asked[same:], whole[same:]):
        return Difference(
            f"turn {turn} saw the same text as other tokens: a turn before it was decoded and encoded again", texts
        )
    if same == len(whole):
        return Difference(f"it ends before turn {turn}, which was left out", texts)
    return Difference(f"turn {turn} was sampled behind other tokens than those before it in the row", texts)


def _leaves_out_thoughts(before: str, stands: str, wanted: str) -> bool:
    """Whether what was asked goes on where a thought of the row ends."""
    _, found, after = stands.partition(THOUGHT_ENDS)
    start = after.lstrip()[:4]
    begun = "<think>" in before[-len("<think>") - 1 :] or stands.lstrip().startswith("<think>")
    return bool(found and start) and (wanted.lstrip().startswith(start) or begun)


def _other_turn(of: Comparison, turn: int, same: int) -> Difference:
    """Say that the row has other tokens where those of a turn should stand.

    Args:
        of: The row.
        turn: The turn, from 1.
        same: Tokens of the turn that are as they were sampled.
    """
    rule, request = of.rule, of.chain[turn - 1]
    given, start = request.given, len(request.asked)
    stands = of.row.whole[start:]
    texts = f"sampled {quoted(rule, given[same:])}, in the row {quoted(rule, stands[same:])}, at token {same} of turn {turn}"
    if not stands[same:]:
        return Difference(f"turn {turn} was {'cut' if same else 'left out'}", texts)
    for number, later in enumerate(of.chain[turn:], turn + 1):
        if stands[: len(later.given)] == later.given:
            return Difference(f"turn {number} stands in the place of turn {turn}", texts)
    for place, chain in enumerate(of.all_chains):
        if place != of.place and any(stands[: len(one.given)] == one.given for one in chain):
            return Difference(f"turn {turn} is one of sample {place}", texts)
    if turn < len(of.chain):
        behind = of.chain[turn].asked[start + len(given) :]
        if behind and stands[same : same + len(behind)] == behind:
            return Difference(f"turn {turn} was {'cut' if same else 'left out'}", texts)
    if _same_text(rule, given[same:], stands[same:]):
        return Difference(f"turn {turn} was decoded and encoded again", texts)
    return Difference(f"turn {turn} has other tokens", texts)


def _same_text(rule: RowRule, one: Ids, other: Ids) -> bool:
    """Whether one of two token lists begins with the text of the other, although their first tokens differ."""
    texts = rule.decode(one), rule.decode(other[: 2 * len(one) + SHOWN])
    short = min(len(text) for text in texts)
    return short > 0 and texts[0][:short] == texts[1][:short]


def quoted(rule: RowRule, ids: Ids) -> str:
    """The text of the first tokens, in quotation marks."""
    return repr(rule.decode(ids[:SHOWN])) if ids else "nothing"


def sampled_prompt(of: Comparison) -> Difference | None:
    """Say that sampled tokens stand in the prompt of a row, None where none does."""
    begins, prompt = len(of.chain[0].asked), of.row.prompt
    if not of.rule.exact or begins >= len(prompt):
        return None
    return Difference("sampled tokens stand in its prompt, where none is trained", quoted(of.rule, prompt[begins:]))


def _are_ends(trained: Ids, expected: Ids, of: Comparison) -> bool:
    """Whether all that is trained beside the sampled tokens are ends of the chat template's, each right behind a sampled token."""
    end, left = of.rule.template_end, [bool(is_on > want) for is_on, want in zip(trained, expected, strict=True)]
    for place in range(1, len(left)):
        behind = slice(place, place + len(end))
        if end and all(left[behind]) and expected[place - 1] and of.row.completion[behind] == end:
            left[behind] = [False] * len(end)
    return not any(left)


def mask_difference(of: Comparison, expected: Ids) -> Difference | None:
    """Say which tokens are trained that should not be, or are not trained that should be; None where all are as documented."""
    row, rule, trained = of.row, of.rule, of.row.trained
    extra = next(
        (place for place, (is_on, want) in enumerate(zip(trained, expected, strict=True)) if is_on > want), None
    )
    missing = next(
        (place for place, (is_on, want) in enumerate(zip(trained, expected, strict=True)) if is_on < want), None
    )
    if extra is None and (missing is None or not rule.exact):
        return None
    first = min(place for place in (extra, missing) if place is not None)
    at = f"first {quoted(rule, row.completion[first : first + SHOWN])} at token {first} of the completion"
    if not any(expected):
        return Difference("it is truncated and trained", at)
    if missing is None and _are_ends(trained, expected, of):
        return Difference(ENDS_OF_CUT_TURNS, at)
    for shift, name in ((1, "late"), (-1, "early")):
        moved = [0] * shift + expected[:-shift] if shift > 0 else expected[-shift:] + [0] * -shift
        inner = slice(1, -1)
        if extra is not None and missing is not None and moved[inner] == trained[inner]:
            return Difference(f"its mask stands one token too {name}", at)
    if extra is None:
        return Difference("sampled tokens are not trained", at)
    other = " and sampled ones are not" if missing is not None and rule.exact else ""
    return Difference(f"tokens that a tool, an environment or the chat template wrote are trained{other}", at)
