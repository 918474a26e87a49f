"""One review of a reward function: which questions it is asked, in which batches, and what is said of its answers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from rlstep_hooks.rehearse.asked.asking import Answer, Limits, answers
from rlstep_hooks.rehearse.asked.judging import Batch, of_batch, of_failures, of_suspects, right_of, summary, suspects
from rlstep_hooks.rehearse.asked.witnesses import witnesses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlstep_hooks.rehearse.asked.judging import Judged, Right
    from rlstep_hooks.rehearse.asked.witnesses import Row, Witness

    Ask = Callable[[Sequence[int], Sequence[str | None]], list[float | None]]
    Placed = Sequence[tuple[int, str]]

EACH = 20.0
"""Seconds that an answer may take, or so many times the framework's own call where that is longer."""
FIRST = 5.0
"""Seconds for an answer that the function has given before, or so many times the framework's own call where that is longer."""
_FORKS = 5
"""Processes that may hang or end before no more is asked."""
_ALONE = 4
"""Completions that are asked about alone."""
_REPEATS, _REPEATS_OF_ONE = 3, 8
"""Times that the same is asked: a reward drawn at random shows itself sooner in a batch than on one completion."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A call that the framework made, which can be made again with other texts."""

    ask: Ask
    """Places of the call's completions, and a text for each (None: as it was) -> rewards. It raises what the function raises."""
    completions: Sequence[str]
    seconds: float
    """What the call took."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A row in which texts are asked about."""

    call: Asked
    place: int
    row: Row


@dataclass(kw_only=True)
class Review:
    """What a review found."""

    judged: list[Judged] = field(default_factory=list)
    summary: str = ""
    refused: str = ""
    """Why nothing could be asked; empty if it could."""
    given: dict[Witness, float | None] = field(default_factory=dict)
    """What each text got that got something."""


def review(subjects: Sequence[Subject], *, longest: int, seconds: float, forms: Sequence[str] = ()) -> Review:
    """Ask a function about other texts in the place of completions that it was called with.

    Args:
        subjects: One row, or two with different answers.
        longest: Tokens that a completion of the real launch may have.
        seconds: How long all of it may take.
        forms: Forms of answers that the function names.
    """
    call = subjects[0].call
    first, each = max(FIRST, EACH * call.seconds), max(EACH, EACH * call.seconds)
    limits = Limits(each=each, first=first, until=time.monotonic() + seconds)
    size = len(call.completions)
    every = tuple(range(size))
    alone = every[:_ALONE] if size > 1 else ()
    repeats = _REPEATS if size > 1 else _REPEATS_OF_ONE
    again = answers([partial(call.ask, every, [None] * size)] * repeats, limits)
    failed = next((each for each in again if each is None or not each.answered), again[0])
    if failed is None or not failed.answered:
        return Review(refused=_refusal(failed))
    backwards, *singles = _restarting(
        call,
        [
            partial(call.ask, every[::-1], [None] * size),
            *(partial(call.ask, [place], [None]) for place in alone),
        ],
        limits,
    )
    batch = Batch(
        again=[each.rewards for each in again if each is not None],
        reversed=backwards.rewards[::-1] if size > 1 and backwards is not None and backwards.answered else None,
        alone={place: each for place, each in zip(alone, singles, strict=True) if each is not None}
        if size > 1
        else None,
        completions=call.completions,
    )
    given = _asked_about(subjects, witnesses([each.row for each in subjects], longest=longest, forms=forms), limits)
    right = right_of(given) if batch.is_comparable and len(subjects) > 1 else None
    judged = [*of_batch(batch), *of_failures(given, call.seconds)]
    if right is not None:
        judged += of_suspects(given, right, _beside(subjects, suspects(given, right), right, limits))
    return Review(
        judged=judged,
        summary=summary(batch, given, right, len(subjects)),
        given={each: answer.rewards[0] for each, answer in given.items() if answer.rewards},
    )


def _refusal(answer: Answer | None) -> str:
    if answer is None:
        return "it was not asked about other texts: there was no time"
    why = answer.failed or f"gave no answer within {answer.hung:.0f} s"
    return f"it cannot be asked about other texts: called again in a process of its own, it {why}"


def _asked_about(subjects: Sequence[Subject], texts: Sequence[Witness], limits: Limits) -> dict[Witness, Answer]:
    """Ask the function about all texts, as many at a time as the framework does; about each alone where that fails."""
    found: dict[Witness, Answer] = {}
    again: list[Witness] = []
    for chunk, answer in zip(chunks := list(_chunks(subjects, texts)), _in_turn(subjects, chunks, limits), strict=True):
        if answer is not None and answer.answered:
            rewards = zip(chunk, answer.rewards, strict=False)
            found |= {witness: Answer(rewards=(value,)) for witness, value in rewards}
        elif answer is not None and len(chunk) == 1 == len(subjects[chunk[0].row].call.completions):
            found[chunk[0]] = answer
        elif answer is not None:
            again += chunk
    singles = [[each] for each in again]
    for (witness,), answer in zip(singles, _in_turn(subjects, singles, limits), strict=True):
        if answer is not None:
            found[witness] = Answer(rewards=answer.rewards[:1]) if answer.answered else answer
    return {witness: found[witness] for witness in texts if witness in found}


def _chunks(subjects: Sequence[Subject], texts: Sequence[Witness]) -> list[list[Witness]]:
    """Texts that are asked about in one call; those of different calls never are."""
    found: list[list[Witness]] = []
    for witness in texts:
        call = subjects[witness.row].call
        # A call without the texts that few models give and that may never end, so that they spoil none of the others.
        fits = found and len(found[-1]) < len(call.completions) and subjects[found[-1][0].row].call is call
        if fits and (found[-1][0].kind == "rare") == (witness.kind == "rare"):
            found[-1].append(witness)
        else:
            found.append([witness])
    return found


def _in_turn(subjects: Sequence[Subject], chunks: Sequence[Sequence[Witness]], limits: Limits) -> list[Answer | None]:
    """An answer for each, with a new process after one that hung or ended."""
    questions = [partial(_answered, subjects, [(each.row, each.text) for each in chunk]) for chunk in chunks]
    return _restarting(subjects[0].call, questions, limits)


def _restarting(
    call: Asked, questions: Sequence[Callable[[], list[float | None]]], limits: Limits
) -> list[Answer | None]:
    found: list[Answer | None] = []
    every = tuple(range(len(call.completions)))
    for _ in range(_FORKS):
        if len(found) == len(questions):
            break
        # First a question whose answer is known: what fails after it is not put down to the fork.
        control, *rest = answers([partial(call.ask, every, [None] * len(every)), *questions[len(found) :]], limits)
        if control is None or not control.answered:
            break
        here = [each for each in rest if each is not None]
        if not here:
            break
        found += here
    return [*found, *[None] * (len(questions) - len(found))]


def _answered(subjects: Sequence[Subject], placed: Placed) -> list[float | None]:
    """One call of the framework's own size: these texts in their rows, and its own completions behind them.

    One text alone takes the place of its row's completion, so that the batch keeps its groups.
    """
    subject = subjects[placed[0][0]]
    size = len(subject.call.completions)
    if len(placed) == 1:
        before, behind = [None] * subject.place, [None] * (size - subject.place - 1)
        return [subject.call.ask(range(size), [*before, placed[0][1], *behind])[subject.place]]
    rest = range(len(placed), size)
    places = [subjects[row].place for row, _ in placed] + list(rest)
    texts: list[str | None] = [text for _, text in placed]
    return subject.call.ask(places, texts + [None] * len(rest))[: len(placed)]


def _beside(
    subjects: Sequence[Subject], those: Sequence[Witness], right: Right, limits: Limits
) -> dict[Witness, list[Answer]]:
    """What suspects get with the row's own answer before them and behind them."""
    form, name, reading = right.form
    answer_of = [form.format(each.row.answers()[name][reading]) for each in subjects]
    asked = [
        (each, text)
        for each in those
        for text in (f"{each.text}\n{answer_of[each.row]}", f"{answer_of[each.row]}\n{each.text}")
    ]
    questions = [partial(_answered, subjects, [(each.row, text)]) for each, text in asked]
    found: dict[Witness, list[Answer]] = {}
    for (witness, _), answer in zip(asked, _restarting(subjects[0].call, questions, limits), strict=True):
        if answer is not None and answer.answered:
            found.setdefault(witness, []).append(answer)
    return found
