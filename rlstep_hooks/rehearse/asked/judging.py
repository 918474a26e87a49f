"""What a reward function gave to witnesses, judged. Pure.

Only what is wrong for every reward is accused: it raises or does not end; it gives a text without an answer as much as the right one
and is not raised by the right answer beside it; it does not follow its batch. A reward may be random, may look at the whole batch, may
be the same for all texts of a kind: that is said, and what it makes incomparable is not judged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlstep_hooks.rehearse.asked.asking import Answer
    from rlstep_hooks.rehearse.asked.witnesses import Witness

    Rewards = Sequence[float | None]
    Form = tuple[str, str, int]

Level = Literal["problem", "warning"]
_SLACK = 0.1
"""A share of what a right answer gets above a wrong one: differences below it are let pass."""
_NO_ANSWER = ("without an answer", "the prompt", "rare")


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One thing that is wrong or doubtful, in words that follow the function's name."""

    about: str
    """What two findings of two reviews share that are the same one: the order, an exception's name."""
    level: Level
    text: str


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What the function gave to the framework's own batch, asked again."""

    again: Sequence[Rewards]
    """The rewards of the batch as it is, asked for several times."""
    reversed: Rewards | None = None
    """The rewards of the batch asked for in reverse order, put back into the batch's own; None where the framework calls with one
    completion."""
    alone: Mapping[int, Answer] | None = None
    """Place -> the answer to that completion alone; None where the framework calls with one completion."""
    completions: Sequence[str] = ()

    @property
    def is_random(self) -> bool:
        """Whether the function gives the same batch other rewards each time: legal, and then values cannot be compared."""
        return any(not _all_close(self.again[0], other) for other in self.again[1:])

    @property
    def follows(self) -> bool:
        """Whether the rewards follow the completions where their order changes, as far as that can be told."""
        return self.is_random or self.reversed is None or _all_close(self.again[0], self.reversed)

    @property
    def is_relative(self) -> bool:
        """Whether a completion alone gets another reward or none: legal where the framework keeps groups together."""
        alone = self.alone or {}
        return any(
            not each.answered or not _close(self.again[0][place], each.rewards[0]) for place, each in alone.items()
        )

    @property
    def is_comparable(self) -> bool:
        """Whether what two texts get can be compared."""
        return not self.is_random and self.follows and not self.is_relative


def of_batch(batch: Batch) -> list[Judged]:
    """Whether rewards follow their completions."""
    if batch.follows or batch.reversed is None:
        return []
    place, one, other = next(
        (place, one, other)
        for place, (one, other) in enumerate(zip(batch.again[0], batch.reversed, strict=True))
        if not _close(one, other)
    )
    shown = f"completion {place + 1} of {len(batch.again[0])}"
    if place < len(batch.completions):
        shown += f" ({batch.completions[place][:60]!r})"
    text = f"{shown} gets {_number(one)}, and {_number(other)} when the batch comes in the reverse order"
    return [Judged(about="order", level="warning", text=f"does not follow its batch: {text}")]


def of_failures(given: Mapping[Witness, Answer], own_seconds: float) -> list[Judged]:
    """Texts on which it raises or does not end.

    Args:
        given: Each text that was asked about.
        own_seconds: What the framework's own call took.
    """
    found: list[Judged] = []
    raised: dict[str, list[Witness]] = {}
    for witness, answer in given.items():
        if answer.failed:
            raised.setdefault(answer.failed.partition(":")[0], []).append(witness)
    for about, those in raised.items():
        likely = [each for each in those if each.kind != "rare"]
        first = (likely or those)[0]
        words = given[first].failed.replace("raised ", "raises ", 1).replace("ended ", "ends ", 1)
        level: Level = "problem" if likely else "warning"
        found.append(Judged(about=about, level=level, text=f"{words} on {_told([first, *those])}"))
    hung = [witness for witness, answer in given.items() if answer.hung]
    if hung:
        seconds = given[hung[0]].hung
        text = (
            f"gave no answer within {seconds:.0f} s on {_told(hung)}, where the run's own call took {own_seconds:.2g} s"
        )
        found.append(Judged(about="time", level="warning", text=text))
    endless = [each for each, answer in given.items() if any(_is_endless(value) for value in answer.rewards)]
    if endless:
        text = f"gives {_number(given[endless[0]].rewards[0])} on {_told(endless)}"
        found.append(Judged(about="endless", level="warning", text=text))
    return found


@dataclass(frozen=True, kw_only=True)
class Right:
    """The form of the rows' own answer that the function rewards most, above another row's answer in the same form."""

    form: Form
    rewards: tuple[float, ...]
    """The reward of each row's own answer."""
    wrong: tuple[float, ...]
    """The reward of the other row's answer, in each row."""

    def slack(self, row: int) -> float:
        """What the reward of a right answer may differ by for other reasons, such as a small bonus for a length."""
        return _SLACK * (self.rewards[row] - self.wrong[row])


def right_of(given: Mapping[Witness, Answer]) -> Right | None:
    """The form in which the function tells right answers from wrong ones; None if there is none among those that were asked.

    Each of two rows must get more for its own answer than for the other's, in the same form. A reward that depends on a text and on a
    row but not on whether they belong together (a length, a difficulty) cannot do that in both rows.
    """
    right: dict[tuple[Form, int], float] = {}
    wrong: dict[tuple[Form, int], float] = {}
    for witness, answer in given.items():
        value = answer.rewards[0] if answer.rewards else None
        if value is not None and witness.kind in ("right", "wrong"):
            (right if witness.kind == "right" else wrong)[witness.form, witness.row] = value
    found = [
        Right(form=form, rewards=(right[form, 0], right[form, 1]), wrong=(wrong[form, 0], wrong[form, 1]))
        for form, row in right
        if not row and all((form, place) in right and (form, place) in wrong for place in (0, 1))
    ]
    told = [
        each for each in found if all(_more(one, other) for one, other in zip(each.rewards, each.wrong, strict=True))
    ]
    return max(told, key=lambda each: sum(each.rewards)) if told else None


def suspects(given: Mapping[Witness, Answer], right: Right) -> list[Witness]:
    """Texts without an answer that get as much as the right one; whether they get still more with it is asked next."""
    return [
        witness
        for witness, answer in given.items()
        if witness.kind in _NO_ANSWER
        and answer.rewards
        and (value := answer.rewards[0]) is not None
        and value >= right.rewards[witness.row] - right.slack(witness.row)
    ]


def of_suspects(
    given: Mapping[Witness, Answer], right: Right, beside: Mapping[Witness, Sequence[Answer]]
) -> list[Judged]:
    """Texts without an answer that are rewarded as the right one is.

    Args:
        given: What each text got.
        right: The form of right answers.
        beside: A suspect -> what it got with the right answer before it and behind it. One that gets more then is not accused: the
            function sees the answer, and rewards something else besides.
    """
    guilty: list[Witness] = []
    for witness, answers in beside.items():
        own = given[witness].rewards[0]
        values = [answer.rewards[0] for answer in answers if answer.rewards]
        slack = right.slack(witness.row)
        if own is not None and values and not any(value is not None and value > own + slack for value in values):
            guilty.append(witness)
    found = []
    for kinds in (("the prompt",), ("without an answer", "rare")):
        those = [each for each in guilty if each.kind in kinds]
        if those:
            value = given[those[0]].rewards[0] or 0.0
            own = right.rewards[those[0].row]
            word = "nearly as much as" if _more(own, value) else "as much as"
            text = f"rewards {_told(those)} with {_number(value)}, {word} the row's own answer ({_number(own)})"
            found.append(Judged(about=kinds[0], level="warning", text=text))
    return found


def summary(batch: Batch, given: Mapping[Witness, Answer], right: Right | None, rows: int) -> str:
    """What was asked and what came of it, in words that follow the function's name."""
    parts = [f"asked about {len({each.told for each in given})} other texts"]
    if batch.reversed is not None and batch.follows and not batch.is_random:
        parts.append("its rewards follow the order of the batch")
    if batch.is_random:
        parts.append("it gives the same completions other rewards when asked again, so values were not compared")
    elif batch.is_relative:
        parts.append(_relative(batch))
    elif right is not None:
        shown = right.form[0].format("...")
        numbers = f"{_number(right.rewards[0])} against {_number(right.wrong[0])}"
        parts.append(f"it tells the rows' own answers from others' ({shown!r}: {numbers})")
        parts += _more_lenient(given, right)
    elif rows > 1 and batch.is_comparable:
        parts.append("it gives the rows' own answers no more than others', in the usual forms")
    elif rows < 2:
        parts.append("only one answer was seen, so right was not compared with wrong")
    return "; ".join(parts)


def _more_lenient(given: Mapping[Witness, Answer], right: Right) -> list[str]:
    """What is legal and worth knowing: a right answer between wrong ones counts, or one in no form."""
    found = []
    words = {"among others": "between two of another row", "in noise": "within other words, in no form"}
    for kind, told in words.items():
        those = [
            answer.rewards[0]
            for witness, answer in given.items()
            if witness.kind == kind and answer.rewards and witness.form[1:] == right.form[1:]
            and (kind == "in noise" or witness.form == right.form)
            and answer.rewards[0] is not None
            and not _more(right.rewards[witness.row], answer.rewards[0])
        ]  # fmt: skip
        if those:
            found.append(f"also {told}")
    return found


def _relative(batch: Batch) -> str:
    failed = next((each.failed for each in (batch.alone or {}).values() if each.failed), "")
    if failed:
        return f"on a batch of one completion it {failed.replace('raised ', 'raises ', 1)}, so values were not compared"
    return "a completion gets another reward alone than in its batch, so values were not compared"


def _told(witnesses: Sequence[Witness]) -> str:
    told = list(dict.fromkeys(each.told for each in witnesses))
    more = len(told) - 1
    return (
        told[0]
        if not more
        else f"{told[0]} and {'one other text' if more == 1 else f'{more} other texts'}, such as {told[-1]}"
    )


def _number(value: float | None) -> str:
    return "no reward" if value is None else f"{value:.4g}"


def _is_endless(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    if not (math.isfinite(one) and math.isfinite(other)):
        return repr(one) == repr(other)
    return abs(one - other) <= _tolerance(one, other)


def _more(one: float, other: float) -> bool:
    return one - other > _tolerance(one, other)


def _tolerance(one: float, other: float) -> float:
    """What a model that is given its texts in other batches may differ by."""
    return 1e-4 + 1e-3 * max(abs(one), abs(other)) if math.isfinite(one) and math.isfinite(other) else 0.0


def _all_close(ones: Rewards, others: Rewards) -> bool:
    return len(ones) == len(others) and all(map(_close, ones, others))
