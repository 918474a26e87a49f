"""Where each token of a trained row comes from: the prompt, one of the turns that were sampled, or what stands between them.

Requests are what a framework asked a generation for and what it got back. Those of one conversation are joined to a chain, which is
compared with the row that is trained: integers, exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.observe.conversations import by_prompt, chains_of, in_order
from rlstep_hooks.observe.row_differences import (
    mask_difference,
    other_between,
    other_message,
    quoted,
    sampled_prompt,
    walk,
)
from rlstep_hooks.observe.row_log_probs import compare_log_probs, drawn_of, note_log_probs
from rlstep_hooks.observe.row_pieces import shown
from rlstep_hooks.observe.turn_rows import Comparison, Difference, Joined, Request, Row, RowRule

if TYPE_CHECKING:
    from collections.abc import Sequence


def join(calls: Sequence[Sequence[Request]], rows: Sequence[Row], rule: RowRule) -> Joined:
    """Compare the rows of one rollout with what was sampled for them."""
    found = Joined()
    chains = chains_of(calls, [row.prompt for row in rows], rule.decode)
    of_rows = in_order(chains, len(rows)) if rule.exact else by_prompt(chains, rows)
    for place, row in enumerate(rows):
        chain = of_rows[place]
        if chain is not None:
            _compare(found, Comparison(place, row, chain, chains, rule))
    for chain in chains[len(rows) :] if rule.exact else ():
        like = "a turn was sampled behind a prompt that goes on from no turn before it"
        _note_tokens(found, Difference(like, quoted(rule, chain[0].asked)))
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
    of = Comparison(0, row, turns, [turns], rule)
    if row.log_probs is None and any(turn.log_probs for turn in turns):
        note_log_probs(found, "none, although the engine gave them")
    elif row.log_probs is not None and len(row.log_probs) == len(row.completion):
        # The framework hands over what the engine gave, bit for bit. What it puts at other tokens has no meaning.
        own = {place: one for place, one in drawn_of(of).items() if place < len(row.completion)}
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


def _compare(found: Joined, of: Comparison) -> None:
    row, rule = of.row, of.rule
    found.rows += 1
    found.turns += len(of.chain)
    tokens = len(row.completion)
    if row.log_probs is not None and len(row.log_probs) != tokens:
        note_log_probs(found, f"{len(row.log_probs)} log-probs for {tokens} tokens")
        row = msgspec.structs.replace(row, log_probs=None, handed=None)
        of = msgspec.structs.replace(of, row=row)
    if len(row.trained) != tokens:
        _note_length(found, f"its mask has {len(row.trained)} entries for {tokens} tokens", of)
        return
    if rule.masks_truncated and not any(row.trained):
        _compare_left_out(found, of)
        return
    if rule.hands_over and row.log_probs is not None and row.handed is None:
        of = _with_told(of)
    problem, sampled = walk(of)
    found.sampled += sum(sampled)
    found.written += len(sampled) - sum(sampled)
    problem = problem or row.wrong or other_between(of) or other_message(of)
    if problem:
        _note_tokens(found, problem, of)
        return
    compare_log_probs(found, of, sampled)
    expected = [0] * len(sampled) if of.is_left_out else sampled
    difference = mask_difference(of, expected) or sampled_prompt(of)
    if difference is not None:
        _note_mask(found, difference, of)


def _with_told(of: Comparison) -> Comparison:
    """Give the row the log-probs that the engine told with the tokens that are trained, as those that the loss should get."""
    row, told = of.row, drawn_of(of)
    own = row.log_probs or []
    handed = [told.get(place, one) if row.trained[place] else one for place, one in enumerate(own)]
    return msgspec.structs.replace(of, row=msgspec.structs.replace(row, handed=handed))


def _note_length(found: Joined, like: str, of: Comparison) -> None:
    """A row whose mask cannot be compared token by token."""
    found.masks_wrong += 1
    if not found.masks_like:
        found.masks_like, found.masks_at = like, of.name


def _compare_left_out(found: Joined, of: Comparison) -> None:
    """A row of which nothing is trained where truncated rows are left out."""
    completion = of.chain[-1].whole[len(of.row.prompt) :][: of.rule.longest]
    if of.rule.exact and completion and completion[-1] in of.rule.closers:
        _note_mask(found, Difference("nothing of a row is trained that ended by itself", "all of it"), of)


def _note_tokens(found: Joined, problem: Difference, of: Comparison | None = None) -> None:
    found.tokens_moved += 1
    if not found.tokens_like:
        found.tokens_like, found.tokens_at = problem.like, _at(problem, of)
    if of is not None:
        found.wrong_row = found.wrong_row or shown(of)


def _note_mask(found: Joined, problem: Difference, of: Comparison) -> None:
    found.masks_wrong += 1
    if not found.masks_like:
        found.masks_like, found.masks_at = problem.like, _at(problem, of)
    found.wrong_row = found.wrong_row or shown(of)


def _at(problem: Difference, of: Comparison | None) -> str:
    return problem.at if of is None else f"{of.name}: {problem.at}"
