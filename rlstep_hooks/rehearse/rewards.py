"""The user's reward functions, called as they are, and asked once more about what any model may give: nothing, and a row's own answer.

A system says how its framework calls them (`Call`) and what they must give. What they gave is said line by line, because they may be
called in many processes; `sum_up` says at the end what it was like.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlstep_hooks.rehearse.messages import described, said, say, say_once, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rlstep_hooks.rehearse.messages import Level

    Ask = Callable[[Sequence[int], Sequence[str | None]], Any]

FORMS = (
    "{}",
    "#### {}",
    "\\boxed{{{}}}",
    "Answer: {}",
    "Answer: \\boxed{{{}}}",
    "The answer is {}.",
    "<think>so</think>\n{}",
    "<think>so</think><answer>{}</answer>",
    "<think>\nso\n</think>\n\\boxed{{{}}}",
    "<think>\nso\n</think>\n<answer>\n{}\n</answer>",
    "<reasoning>\nso\n</reasoning>\n<answer>\n{}\n</answer>\n",
)
"""Forms in which completions usually give an answer."""
_SHOWN = 300
"""Characters of a completion that a message shows."""
_ASKED = 4
"""Completions after which a function is not asked about more rows' own answers."""


class WrongRewardsError(ValueError):
    """What a function gave and its framework cannot take, in words that follow the function's name."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call that the framework makes of a reward function."""

    completions: Sequence[Any]
    columns: Sequence[Sequence[Any]] = ()
    """Columns of the rows, any of which may hold the answers: of each, a value for each completion."""
    ask: Ask | None = None
    """What the function gives to some of these completions, by their places, with texts in their stead (None: as it is).

    None for what is not asked: a coroutine."""

    def answers(self) -> Iterator[list[str]]:
        """Texts that give each row's own answer, in one form and of one column after another."""
        for column in self.columns:
            for form in FORMS:
                yield [form.format(str(value).rpartition("#### ")[2].strip("$")) for value in column]
            yield [str(value) for value in column]

    def raises(self, row: int, text: str | None, kind: type[Exception] = Exception) -> bool:
        """Whether the function raises on one row alone."""
        try:
            if self.ask is not None:
                self.ask([row], [text])
        except Exception as error:  # noqa: BLE001 - that is the question
            return isinstance(error, kind)
        return False

    def culprits(self, kind: type[Exception]) -> list[int]:
        """The rows on which the function raised, each asked alone where there are several."""
        rows = range(len(self.completions))
        return [row for row in rows if len(rows) == 1 or self.raises(row, None, kind)]


class Watched:
    """What one reward function does in this process."""

    def __init__(self, name: str, rewards_of: Callable[[Any, int], list[float | None]], *, waits: bool = False) -> None:
        """Watch a function.

        Args:
            name: What messages call it.
            rewards_of: What it gave, and for how many completions -> the rewards. Raises `WrongRewardsError`.
            waits: Whether the framework may wait without end for a reward that never comes, so that the run must be stopped.
        """
        self._name = name
        self._rewards_of = rewards_of
        self._waits = waits
        self._asked = 0
        self._seen: set[float] = set()

    @contextmanager
    def calling(self, call: Call) -> Iterator[None]:
        """The call itself: what it raises is said, and passes."""
        try:
            yield
        except Exception as error:
            self._raised(call, error)
            raise

    def gave(self, call: Call, found: Any) -> None:
        """Look at what the call gave, and ask once more."""
        try:
            rewards = self._rewards_of(found, len(call.completions))
        except WrongRewardsError as error:
            self._wrong(str(error))
            return
        say("rewarded", name=self._name, rewards=rewards)
        self._seen.update(value for value in rewards if value is not None)
        if call.ask is None:
            return
        if not self._asked:
            self._ask_about_nothing(call.ask, len(rewards))
        if self._asked < _ASKED:
            self._ask_about_answers(call.ask, call)
        self._asked += len(call.completions)

    def _ask_about_nothing(self, ask: Ask, rows: int) -> None:
        """A model may always end at once."""
        try:
            ask(range(rows), ["", *[None] * (rows - 1)])
        except Exception as error:  # noqa: BLE001 - this call is no part of the run
            self._say(f"raises {described(error)} on an empty completion", "problem")

    def _ask_about_answers(self, ask: Ask, call: Call) -> None:
        """Whether the function tells the rows' own answers from other completions; not asked where it told those apart."""
        given: set[float] | None = None
        for texts in call.answers():
            if len(self._seen) > 1:
                break
            try:
                rewards = self._rewards_of(ask(range(len(texts)), texts), len(texts))
            except Exception:  # noqa: BLE001 - not an answer in this form
                continue
            given = {value for value in rewards if value is not None} | (given or set())
            self._seen |= given
        if given is not None:
            say("rewarded answers", name=self._name, rewards=sorted(given))

    def _raised(self, call: Call, error: Exception) -> None:
        """Say what the function raised; on rows that were made, only what some completions raise is its own fault."""
        if isinstance(error, ImportError):
            self._wrong(f"needs what is not here: {described(error)}", "impossible")
            return
        text, culprits = f"raised {described(error)}", call.culprits(type(error))
        if _made() and call.ask is not None and len(culprits) == len(call.completions):
            texts = {text for texts in call.answers() for text in texts[:1]}
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
        answers = [each for each in told if each.topic == "rewarded answers" and each.values["name"] == name]
        differs = any(set(each.values["rewards"]) - values for each in answers)
        value = f"{min(values):g}" if values else "none"
        more = ", and for the rows' own answers too" if answers else "; it was not asked about the rows' own answers"
        more = "; it does differ on the rows' own answers" if differs else more
        say(
            "reward",
            f"{name} gave {value} for each of {len(rewards)} completions of a random model{more}",
            level="fact" if differs else "warning",
            signal=differs,
            name=name,
        )
