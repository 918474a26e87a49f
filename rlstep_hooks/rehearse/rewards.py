"""The user's reward functions, watched where their framework calls them, and asked about texts that any model may give.

A system says how its framework calls them (`Call`) and what they must give. What they gave is said line by line, because they may be
called in many processes; `sum_up` says at the end what it was like.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlstep_hooks.rehearse.asked.asking import is_asked
from rlstep_hooks.rehearse.asked.forms import forms_in
from rlstep_hooks.rehearse.asked.review import Asked, Subject, review
from rlstep_hooks.rehearse.asked.witnesses import Row, witnesses
from rlstep_hooks.rehearse.messages import described, said, say, say_once, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rlstep_hooks.rehearse.messages import Level

_SHOWN = 300
"""Characters of a completion that a message shows."""
_LATER = 64
"""Completions among which a second row with another answer is looked for."""
_LONGEST = 8192
"""Tokens of the longest text that is asked about, however long completions may be."""
_SHARE = 0.5
"""The share of the budget that the questions to one function may take; half of it where only one answer was seen yet."""
_USUAL = 1024
"""Tokens of a completion where the launch's own limit is not known."""


class WrongRewardsError(ValueError):
    """What a function gave and its framework cannot take, in words that follow the function's name."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call that the framework makes of a reward function."""

    completions: Sequence[Any]
    rows: Sequence[Row] = ()
    """The row of each completion; none where they are not known."""
    ask: Callable[[Sequence[int], Sequence[str | None]], Any] | None = None
    """What the function gives to some of these completions, by their places, with texts in their stead (None: as it is).

    None for what is not asked: an agent's conversation with a model."""
    is_coroutine: bool = False
    """Whether asking starts an event loop, which only a process of its own has room for."""

    def raises(self, place: int, text: str | None, kind: type[Exception] = Exception) -> bool:
        """Whether the function raises on one completion alone."""
        try:
            if self.ask is not None and not self.is_coroutine:
                self.ask([place], [text])
        except Exception as error:  # noqa: BLE001 - that is the question
            return isinstance(error, kind)
        return False

    def culprits(self, kind: type[Exception]) -> list[int]:
        """The completions on which the function raised, each asked alone where there are several."""
        places = range(len(self.completions))
        return [place for place in places if len(places) == 1 or self.raises(place, None, kind)]


class Watched:
    """What one reward function does in this process."""

    def __init__(
        self,
        name: str,
        rewards_of: Callable[[Any, int], list[float | None]],
        *,
        function: Any = None,
        waits: bool = False,
    ) -> None:
        """Watch a function.

        Args:
            name: What messages call it.
            rewards_of: What it gave, and for how many completions -> the rewards. Raises `WrongRewardsError`.
            function: The user's own, whose texts may name the form of an answer; None where there is none.
            waits: Whether the framework may wait without end for a reward that never comes, so that the run must be stopped.
        """
        self._name = name
        self._rewards_of = rewards_of
        self._forms = forms_in(function)
        self._waits = waits
        self._seen = 0
        self._first: Subject | None = None
        self._done = False
        self._found: set[str] = set()
        self._spent = 0.0
        self._asking = threading.Lock()

    @contextmanager
    def calling(self, call: Call) -> Iterator[None]:
        """Hold one call of the function: what it raises is said, and passes on."""
        try:
            yield
        except Exception as error:
            if not is_asked():
                self._raised(call, error)
            raise

    def gave(self, call: Call, found: Any, seconds: float = 0.0) -> None:
        """Look at what the call gave, and ask about other texts.

        Args:
            call: The call.
            found: What the function returned.
            seconds: How long it took.
        """
        if is_asked():  # a function of the framework's that the user's own calls
            return
        try:
            rewards = self._rewards_of(found, len(call.completions))
        except WrongRewardsError as error:
            self._wrong(str(error))
            return
        say("rewarded", name=self._name, rewards=rewards)
        # Frameworks call from many threads; one of them asks.
        if call.ask is None or self._done or not self._asking.acquire(blocking=False):
            return
        try:
            self._ask(call, seconds)
        finally:
            self._asking.release()

    def _ask(self, call: Call, seconds: float) -> None:
        """Ask in one row at the first call, and in two as soon as a row with another answer is there, which is wrong in the first."""
        subjects = self._subjects(call, seconds)
        first = self._first or subjects[0]
        other = next((each for each in subjects if _differ(first.row, each.row)), None)
        self._seen += len(call.completions)
        self._done = other is not None or self._seen >= _LATER
        if other is None and self._first is not None:
            return
        self._first = first
        longest = min(longest_completion(), _LONGEST)
        began, share = time.monotonic(), _SHARE if other else _SHARE / 2
        found = review(
            [first, other] if other else [first],
            longest=longest,
            seconds=settings().budget * share - self._spent,
            forms=self._forms,
        )
        self._spent += time.monotonic() - began
        if found.refused:
            self._done = True
            say("asked", found.refused, name=self._name, refused=True, rewards=self._ask_here(call, first))
            return
        values = [(each.told, each.kind == "right", value) for each, value in found.given.items()]
        say("asked", found.summary, name=self._name, refused=False, rewards=values)
        for each in found.judged:
            if each.about in self._found:
                continue
            self._found.add(each.about)
            text = f"{self._name} {each.text}"
            say_once("reward", text, level=each.level, name=self._name, asked=True)

    def _ask_here(self, call: Call, subject: Subject) -> list[tuple[str, bool, float | None]]:
        """Ask in this process what cannot be asked elsewhere: about nothing, and about the row's own answers until they tell something.

        There is no time limit here, and what the function remembers is not put back.
        """
        if call.is_coroutine:
            return []
        until = time.monotonic() + settings().budget * _SHARE - self._spent
        texts = witnesses([subject.row], longest=1, forms=self._forms)
        given: list[tuple[str, bool, float | None]] = []
        for each in [each for each in texts if not each.text or each.kind == "right"]:
            rest = len(subject.call.completions) - 1
            try:
                value = subject.call.ask(range(rest + 1), [each.text, *[None] * rest])[0]
            except Exception as error:  # noqa: BLE001 - this call is no part of the run
                if not each.text:
                    self._say(f"raises {described(error)} on {each.told}", "problem")
                continue
            if each.kind == "right":
                given.append((each.told, True, value))
            if len({value for *_, value in given}) > 1 or time.monotonic() > until:
                break
        return given

    def _subjects(self, call: Call, seconds: float) -> list[Subject]:
        asked = Asked(
            ask=lambda places, texts: self._rewards_of(call.ask(places, texts) if call.ask else None, len(places)),
            completions=[str(each) for each in call.completions],
            seconds=seconds,
        )
        rows = call.rows or [Row()] * len(call.completions)
        return [Subject(call=asked, place=place, row=row) for place, row in enumerate(rows)]

    def _raised(self, call: Call, error: Exception) -> None:
        """Say what the function raised; on rows that were made, only what some completions raise is its own fault."""
        if isinstance(error, ImportError):
            self._wrong(f"needs what is not here: {described(error)}", "impossible")
            return
        text, culprits = f"raised {described(error)}", call.culprits(type(error))
        if _made() and call.ask is not None and not call.is_coroutine and len(culprits) == len(call.completions):
            texts = {each.text for each in witnesses(call.rows[:1], longest=1) if each.kind == "right"}
            if all(call.raises(0, text) for text in ("", "42", *texts)):
                remedy = "give its files, --columns or --online"
                self._wrong(f"{text} on every row, and the rows were made: {remedy}", "impossible")
                return
        shown = f" on the completion {str(call.completions[culprits[0]])[:_SHOWN]!r}" if culprits else ""
        self._wrong(text + shown)

    def _wrong(self, text: str, level: Level = "problem") -> None:
        self._say(text, level)
        if self._waits:
            say_once("stop", f"{self._name} {text}")

    def _say(self, text: str, level: Level) -> None:
        say_once("reward", f"{self._name} {text}", level=level, name=self._name)


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Give a function that counts the seconds since this context was entered."""
    began = time.monotonic()
    yield lambda: time.monotonic() - began


def completions_may_have(tokens: int) -> None:
    """Say how long a completion of the real launch may be."""
    say("completions", tokens=tokens)


def longest_completion() -> int:
    """Tokens that a completion of the real launch may have."""
    told = [each.values["tokens"] for each in said(settings()) if each.topic == "completions"]
    return int(told[-1]) if told else _USUAL


def _differ(one: Row, other: Row) -> bool:
    """Whether two rows have different answers under one name."""
    ones, others = one.answers(), other.answers()
    return any(ones[name][0] != others[name][0] for name in ones if name in others)


def _made() -> bool:
    """Whether any process of the run made rows."""
    return any("columns" in each.values for each in said(settings()) if each.topic == "data")


def sum_up() -> None:
    """Say what the rewards were like that each function gave in all processes; nothing of one that was wrong."""
    told = said(settings())
    wrong = {each.values.get("name") for each in told if each.topic == "reward" and each.level == "problem"}
    given: dict[str, list[float | None]] = {}
    for each in told:
        if each.topic == "rewarded" and each.values["name"] not in wrong:
            given.setdefault(each.values["name"], []).extend(each.values["rewards"])
    for name, rewards in given.items():
        values = {value for value in rewards if value is not None}
        if len(values) > 1:
            say("reward", f"{name}: different rewards for {len(rewards)} completions", signal=True, name=name)
            continue
        value = f"{min(values):g}" if values else "none"
        asked = [
            pair
            for each in told
            if each.topic == "asked" and each.values["name"] == name
            for pair in each.values.get("rewards", ())
        ]
        differs, more = _beyond(values, asked)
        say(
            "reward",
            f"{name} gave {value} for each of {len(rewards)} completions of a random model{more}",
            level="fact" if differs else "warning",
            signal=differs,
            name=name,
        )


def _beyond(values: set[float], asked: Sequence[Sequence[Any]]) -> tuple[bool, str]:
    """Whether a function that gave one value to all completions gave another one to any text that it was asked about, in words."""
    if any(right and value is not None and value not in values for _, right, value in asked):
        return True, "; it does differ on the rows' own answers"
    other = next((told for told, _, value in asked if value is not None and value not in values), None)
    if other is not None:
        return True, f"; it does differ on {other}"
    if any(right for _, right, _ in asked):
        return False, ", and for the rows' own answers too"
    return False, "; it was not asked about the rows' own answers"
