"""Where each token of a trained row comes from: the prompt, one of the turns that were sampled, or what stands between them.

Requests are what a framework asked a generation for and what it got back. Those of one conversation are joined to a chain, which is
compared with the row that is trained: integers, exactly. Token ids stand in plain lists.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.planning.token_row import Origin, Piece, TokenRow

if TYPE_CHECKING:
    from collections.abc import Sequence

Ids = list[int]

FEWEST = 4
"""Tokens with known log-probs from which on a shift of them is named."""
CLOSE = 0.02
"""Nats up to which two computations of one log-prob are taken for the same: a shift is named where all tokens are this close."""
_SHIFTS = ((1, "before"), (-1, "after"))
PIECES = 24
"""Pieces of a row that are shown at most."""
HEAD, TAIL = 24, 12
"""Tokens at the beginning and the end of a piece whose text is shown."""
SHOWN = 8
"""Tokens of which a finding has the text."""
THOUGHT_ENDS = "</think>"
"""The text that a thought ends with in templates which leave out the thoughts of earlier turns (Qwen 3, DeepSeek-R1, GLM)."""


class Request(msgspec.Struct, frozen=True):
    """One sampled turn."""

    asked: Ids
    """The prompt of this turn, without padding."""
    given: Ids
    """The tokens that were sampled behind the prompt, through the end of the turn."""
    log_probs: list[float] | None = None
    """Log-probs with which the tokens were drawn, nan where one is not known; None where they were not taken."""

    @property
    def whole(self) -> Ids:
        """The prompt and what was sampled behind it."""
        return self.asked + self.given


class Row(msgspec.Struct, frozen=True):
    """A row as the loss gets it, without padding."""

    prompt: Ids
    completion: Ids
    trained: Ids
    """1 on each token of the completion that the loss counts, else 0."""
    log_probs: list[float] | None = None
    """The log-probs of the sampling that the loss gets for the completion; None where it gets none."""
    handed: list[float] | None = None
    """The log-probs of the sampling that the loss should get: those that were handed over, in the type of `log_probs`; None where that
    was not seen."""
    name: str = ""
    """What a finding calls the row; its place where this is empty."""

    @property
    def whole(self) -> Ids:
        """Prompt and completion."""
        return self.prompt + self.completion


class RowRule(msgspec.Struct, frozen=True):
    """What a framework documents of its rows."""

    decode: Callable[[Ids], str]
    """The text of token ids, special tokens included."""
    longest: int
    """Tokens that a completion can have."""
    closers: frozenset[int]
    """Last tokens of a row that is not truncated."""
    masks_truncated: bool
    """Whether nothing of a truncated row is trained."""
    exact: bool
    """Whether the framework itself joins the turns: then each sampled token is in the row and trained. A function of the user's may cut
    turns, and leave some of them untrained."""
    goes_on: bool = False
    """Whether a row may end with what an environment said behind the last turn."""


class Joined(msgspec.Struct):
    """What a comparison of the rows of one rollout found."""

    rows: int = 0
    """Rows of which the sampling was seen."""
    turns: int = 0
    """How many sampled turns the compared rows have."""
    sampled: int = 0
    """How many tokens of the compared completions were sampled."""
    written: int = 0
    """How many tokens of the compared completions a tool, an environment or the chat template wrote."""
    tokens_moved: int = 0
    """How many rows have other tokens than their turns, or turns that were asked for behind other tokens."""
    masks_wrong: int = 0
    """Rows that train other tokens than the sampled ones, as documented."""
    tokens_like: str = ""
    """What is wrong with the tokens of the first such row, in words."""
    tokens_at: str = ""
    """The place of that difference in the row, with the texts."""
    masks_like: str = ""
    """What is wrong with the mask of the first such row, in words."""
    masks_at: str = ""
    """The place of that difference in the row, with the text."""
    log_probs_compared: int = 0
    """Rows of which log-probs of the sampling were compared."""
    log_probs_moved: int = 0
    """Rows whose log-probs of the sampling stand at other tokens."""
    log_probs_like: str = ""
    """What is wrong with the log-probs of the first such row, in words."""
    wrong_row: TokenRow | None = None
    """The first row with other tokens or another mask."""


class Difference(msgspec.Struct, frozen=True):
    """What differs between a row and its turns."""

    like: str
    """The kind of difference, in words that are the same for each row that has it."""
    at: str
    """The place of the difference in the row, with the texts."""


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


def common_length(one: Ids, other: Ids) -> int:
    """How many tokens two lists begin with in common."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    return bisect_left(range(1, most + 1), True, key=lambda count: one[:count] != other[:count])


def join(calls: Sequence[Sequence[Request]], rows: Sequence[Row], rule: RowRule) -> Joined:
    """Compare the rows of one rollout with what was sampled for them."""
    found = Joined()
    chains = chains_of(calls, [row.prompt for row in rows], rule.decode)
    of_rows = _in_order(chains, len(rows)) if rule.exact else _by_prompt(chains, rows)
    for place, row in enumerate(rows):
        chain = of_rows[place]
        if chain is not None:
            _compare(found, _Comparison(place, row, chain, chains, rule))
    for chain in chains[len(rows) :] if rule.exact else ():
        like = "a turn was sampled behind a prompt that goes on from no turn before it"
        _note_tokens(found, Difference(like, _quoted(rule, chain[0].asked)))
    return found


def compare_row(row: Row, turns: list[Request], rule: RowRule) -> Joined:
    """Compare one row with the turns of its conversation, which are known to be its own.

    Args:
        row: The row.
        turns: Its turns in order; a turn that was interrupted may stand as several, each asked for behind the part before it.
        rule: What the framework documents of its rows.
    """
    found = Joined()
    if not turns:
        return found
    of = _Comparison(0, row, turns, [turns], rule)
    if row.log_probs is None and any(turn.log_probs for turn in turns):
        _note_log_probs(found, "none, although the engine gave them")
    elif row.log_probs is not None and len(row.log_probs) == len(row.completion):
        # The framework hands over what the engine gave, bit for bit. What it puts at other tokens has no meaning.
        own = {place: one for place, one in _drawn(of).items() if place < len(row.completion)}
        handed = [own.get(place, one) for place, one in enumerate(row.log_probs)]
        of = msgspec.structs.replace(of, row=msgspec.structs.replace(row, handed=handed))
    _compare(found, of)
    return found


def compare_rows(rows: Sequence[Row], turns: Sequence[Request], rule: RowRule) -> Joined:
    """Compare the rows of one session with its turns, where a loop of somebody's own decides what becomes of them.

    Args:
        rows: The rows. One whose prompt no turn was asked for is not compared.
        turns: What the engine was asked in this session, whatever for, in order.
        rule: What is documented of such rows; not an exact one.
    """
    # A turn that was interrupted before its first token adds nothing, and would look like another conversation.
    return join([[turn] for turn in turns if turn.given], rows, rule)


def _in_order(chains: list[list[Request]], rows: int) -> list[list[Request] | None]:
    return [chains[place] if place < len(chains) else None for place in range(rows)]


def _by_prompt(chains: list[list[Request]], rows: Sequence[Row]) -> list[list[Request] | None]:
    """For each row the conversation with its prompt that has the most tokens of it; None where there is none."""
    free = dict(enumerate(chains))
    found: list[list[Request] | None] = []
    for row in rows:
        whole = row.whole
        fits = [place for place, chain in free.items() if chain[0].asked == row.prompt]
        best = max(fits, key=lambda place: (common_length(free[place][-1].whole, whole), -place), default=None)
        found.append(None if best is None else free.pop(best))
    return found


class _Comparison(msgspec.Struct, frozen=True):
    """One row and the turns that were sampled for it."""

    place: int
    row: Row
    chain: list[Request]
    all_chains: list[list[Request]]
    rule: RowRule


def _compare(found: Joined, of: _Comparison) -> None:
    row, rule = of.row, of.rule
    found.rows += 1
    found.turns += len(of.chain)
    tokens = len(row.completion)
    if row.log_probs is not None and len(row.log_probs) != tokens:
        _note_log_probs(found, f"{len(row.log_probs)} log-probs for {tokens} tokens")
        row = msgspec.structs.replace(row, log_probs=None, handed=None)
        of = msgspec.structs.replace(of, row=row)
    if len(row.trained) != tokens:
        _note_length(found, f"its mask has {len(row.trained)} entries for {tokens} tokens", of)
        return
    if rule.masks_truncated and not any(row.trained):
        _compare_left_out(found, of)
        return
    problem, sampled = _walk(of)
    found.sampled += sum(sampled)
    found.written += len(sampled) - sum(sampled)
    if problem:
        _note_tokens(found, problem, of)
        return
    _compare_log_probs(found, of, sampled)
    expected = [0] * len(sampled) if _is_left_out(of) else sampled
    difference = _mask_difference(of, expected) or _sampled_prompt(of)
    if difference is not None:
        _note_mask(found, difference, of)


def _is_left_out(of: _Comparison) -> bool:
    """Whether nothing of the row should be trained, because it is truncated."""
    completion = of.row.completion
    return of.rule.masks_truncated and bool(completion) and completion[-1] not in of.rule.closers


def _compare_log_probs(found: Joined, of: _Comparison, sampled: Ids) -> None:
    """Whether the log-probs of the sampling stand at their tokens: as they were handed over, and as the tokens were drawn."""
    row = of.row
    if row.log_probs is None:
        return
    drawn = _drawn(of)
    places = [place for place, one in enumerate(sampled) if one and drawn.get(place) is not None]
    found.log_probs_compared += row.handed is not None or bool(places)
    like = ""
    if row.handed is not None and not _equal(row.handed, row.log_probs):
        like = _shift_of(row, drawn, places) or "other ones than were handed over"
    elif len(places) >= FEWEST and not _near(row.log_probs, drawn, places, 0):
        like = _shift_of(row, drawn, places)
    if like:
        found.log_probs_moved += 1
        found.log_probs_like = found.log_probs_like or like


def _shift_of(row: Row, drawn: dict[int, float], places: list[int]) -> str:
    """Which neighbour's log-probs a row has, in words; empty where they are no neighbour's."""
    numbers = row.log_probs or []
    for shift, name in _SHIFTS:
        of_handed = row.handed is not None and _equal(_shifted(row.handed, shift)[1:-1], numbers[1:-1])
        if of_handed or (len(places) >= FEWEST and _near(numbers, drawn, places, shift)):
            return f"those of the token {name} it"
    return ""


def _note_log_probs(found: Joined, like: str) -> None:
    """A row whose log-probs cannot be compared token by token."""
    found.log_probs_compared += 1
    found.log_probs_moved += 1
    found.log_probs_like = found.log_probs_like or like


def _note_length(found: Joined, like: str, of: _Comparison) -> None:
    """A row whose mask cannot be compared token by token."""
    found.masks_wrong += 1
    if not found.masks_like:
        found.masks_like, found.masks_at = like, _name(of)


def _drawn(of: _Comparison) -> dict[int, float]:
    """Place in the completion -> the log-prob with which a token was drawn, where it is known."""
    before, found = len(of.row.prompt), {}
    for request in of.chain:
        start = len(request.asked) - before
        for place, one in enumerate(request.log_probs or ()):
            if not math.isnan(one):
                found[start + place] = one
    return found


def _equal(one: list[float], other: list[float]) -> bool:
    """Whether two lists hold the same numbers; nan counts as equal to nan."""
    return len(one) == len(other) and all(a == b or (a != a and b != b) for a, b in zip(one, other, strict=True))


def _shifted(numbers: list[float], shift: int) -> list[float]:
    return [0.0, *numbers[:-1]] if shift > 0 else [*numbers[1:], 0.0]


def _near(numbers: list[float], drawn: dict[int, float], places: list[int], shift: int) -> bool:
    """Whether the log-probs are those with which tokens were drawn, each so many places from its own."""
    pairs = [(numbers[place], drawn[place - shift]) for place in places if place - shift in drawn]
    return len(pairs) >= FEWEST - 1 and all(abs(a - b) <= CLOSE for a, b in pairs)


def _compare_left_out(found: Joined, of: _Comparison) -> None:
    """A row of which nothing is trained where truncated rows are left out."""
    completion = of.chain[-1].whole[len(of.row.prompt) :][: of.rule.longest]
    if of.rule.exact and completion and completion[-1] in of.rule.closers:
        _note_mask(found, Difference("nothing of a row is trained that ended by itself", "all of it"), of)


def _note_tokens(found: Joined, problem: Difference, of: _Comparison | None = None) -> None:
    found.tokens_moved += 1
    if not found.tokens_like:
        found.tokens_like, found.tokens_at = problem.like, _at(problem, of)
    if of is not None:
        found.wrong_row = found.wrong_row or _shown(of)


def _note_mask(found: Joined, problem: Difference, of: _Comparison) -> None:
    found.masks_wrong += 1
    if not found.masks_like:
        found.masks_like, found.masks_at = problem.like, _at(problem, of)
    found.wrong_row = found.wrong_row or _shown(of)


def _at(problem: Difference, of: _Comparison | None) -> str:
    return problem.at if of is None else f"{_name(of)}: {problem.at}"


def _name(of: _Comparison) -> str:
    return of.row.name or f"sample {of.place}"


def _shown(of: _Comparison) -> TokenRow:
    """The row of a comparison, with neighbouring tokens of one kind together."""
    whole = of.row.whole
    trained = [0] * len(of.row.prompt) + of.row.trained
    is_left_out = _is_left_out(of)
    pieces, start = [], 0
    kinds = zip(_origins(of), map(bool, trained), strict=True)
    for ((origin, turn), is_trained), group in groupby(kinds):
        count = len(list(group))
        text = _clipped(of.rule, whole[start : start + count])
        missing = origin == "sampled" and not is_trained and of.rule.exact and not is_left_out
        extra = is_trained and (origin != "sampled" or is_left_out)
        pieces.append(Piece(origin, is_trained, count, text, turn, origin == "other" or missing or extra))
        start += count
    shown = pieces[:PIECES]
    return TokenRow(_name(of), tuple(shown), len(whole) - sum(piece.tokens for piece in shown))


def _origins(of: _Comparison) -> list[tuple[Origin, int]]:
    """For each token of a row its origin and the turn that it was sampled in; "other" from the first one on that is not as expected."""
    whole, found = of.row.whole, list[tuple[Origin, int]]()
    found += [("prompt", 0)] * len(of.row.prompt)
    for turn, request in enumerate(of.chain, 1):
        asked = common_length(request.asked, whole)
        found += [("written", 0)] * (asked - len(found))
        if asked < len(request.asked):
            break
        same = common_length(request.given, whole[asked:])
        found = found[:asked] + [("sampled", turn)] * same
        if same < len(request.given):
            break
    else:
        behind: tuple[Origin, int] = ("written" if of.rule.goes_on else "other", 0)
        return found + [behind] * (len(whole) - len(found))
    return found + [("other", 0)] * (len(whole) - len(found))


def _clipped(rule: RowRule, ids: Ids) -> str:
    """The text of token ids, without its middle where they are many."""
    if len(ids) <= HEAD + TAIL:
        return rule.decode(ids)
    return f"{rule.decode(ids[:HEAD])} … {rule.decode(ids[-TAIL:])}"


def _walk(of: _Comparison) -> tuple[Difference | None, Ids]:
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
        return Difference("it has tokens behind its last turn", _quoted(rule, whole[end:])), sampled[before:]
    return None, sampled[before:]


def _other_prompt(of: _Comparison, turn: int) -> Difference:
    """Say that a turn was asked for behind other tokens than those that stand before it in the row."""
    row, rule, asked = of.row, of.rule, of.chain[turn - 1].asked
    whole = row.whole
    same = common_length(asked, whole)
    texts = (
        f"asked behind {_quoted(rule, asked[same:])}, in the row {_quoted(rule, whole[same:])}, from token {same} on"
    )
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


def _other_turn(of: _Comparison, turn: int, same: int) -> Difference:
    """Say that the row has other tokens where those of a turn should stand.

    Args:
        of: The row.
        turn: The turn, from 1.
        same: Tokens of the turn that are as they were sampled.
    """
    rule, request = of.rule, of.chain[turn - 1]
    given, start = request.given, len(request.asked)
    stands = of.row.whole[start:]
    texts = f"sampled {_quoted(rule, given[same:])}, in the row {_quoted(rule, stands[same:])}, at token {same} of turn {turn}"
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


def _quoted(rule: RowRule, ids: Ids) -> str:
    return repr(rule.decode(ids[:SHOWN])) if ids else "nothing"


def _sampled_prompt(of: _Comparison) -> Difference | None:
    """Say that sampled tokens stand in the prompt of a row, None where none does."""
    begins, prompt = len(of.chain[0].asked), of.row.prompt
    if not of.rule.exact or begins >= len(prompt):
        return None
    return Difference("sampled tokens stand in its prompt, where none is trained", _quoted(of.rule, prompt[begins:]))


def _mask_difference(of: _Comparison, expected: Ids) -> Difference | None:
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
    at = f"first {_quoted(rule, row.completion[first : first + SHOWN])} at token {first} of the completion"
    if not any(expected):
        return Difference("it is truncated and trained", at)
    for shift, name in ((1, "late"), (-1, "early")):
        moved = [0] * shift + expected[:-shift] if shift > 0 else expected[-shift:] + [0] * -shift
        inner = slice(1, -1)
        if extra is not None and missing is not None and moved[inner] == trained[inner]:
            return Difference(f"its mask stands one token too {name}", at)
    if extra is None:
        return Difference("sampled tokens are not trained", at)
    other = " and sampled ones are not" if missing is not None and rule.exact else ""
    return Difference(f"tokens that a tool, an environment or the chat template wrote are trained{other}", at)
