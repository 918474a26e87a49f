"""A row as a finding shows it: neighbouring tokens of one origin together."""

from __future__ import annotations

from itertools import groupby

from rlstep_hooks.observe.turn_rows import Comparison, Ids, RowRule, common_length
from rlstep_hooks.planning.token_row import Origin, Piece, TokenRow

PIECES = 24
"""Pieces of a row that are shown at most."""
HEAD, TAIL = 24, 12
"""Tokens at the beginning and the end of a piece whose text is shown."""


def shown(of: Comparison) -> TokenRow:
    """The row of a comparison, with neighbouring tokens of one kind together."""
    whole = of.row.whole
    trained = [0] * len(of.row.prompt) + of.row.trained
    is_left_out = of.is_left_out
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
    return TokenRow(of.name, tuple(shown), len(whole) - sum(piece.tokens for piece in shown))


def _origins(of: Comparison) -> list[tuple[Origin, int]]:
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
