"""The user's reward functions, called as they are: an exception with the completion that caused it, the number of rewards, a signal."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from rlstep_hooks.rehearse import data
from rlstep_hooks.rehearse.messages import say

if TYPE_CHECKING:
    from collections.abc import Callable

_SHOWN = 300
"""Characters of a completion that a message shows."""


class Watched:
    """What one reward function did."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.name = name
        self._function = function
        self._probed = False
        self._last: dict[str, Any] = {}
        self._values: set[float] = set()
        self._calls = 0
        self._completions = 0
        self._none = 0

    def called(self, arguments: dict[str, Any]) -> Any:
        """Call the function, and look at what it gives."""
        completions = arguments.get("completions") or []
        try:
            found = self._function(**arguments)
        except Exception as error:
            self._raised(error, arguments)
            raise
        self._look(found, len(completions))
        self._last = arguments
        if not self._probed:
            self._probed = True
            self._probe(arguments)
        return found

    async def awaited(self, arguments: dict[str, Any]) -> Any:
        """Await a coroutine function, and look at what it gives."""
        try:
            found = await self._function(**arguments)
        except Exception as error:
            if not self._lacks(error):
                say("reward", f"{self.name} raised {_described(error)}", level="problem")
            raise
        self._look(found, len(arguments.get("completions") or []))
        return found

    def _look(self, found: Any, wanted: int) -> None:
        self._calls += 1
        self._completions += wanted
        values = found.tolist() if hasattr(found, "tolist") else found
        if not isinstance(values, list | tuple):
            say(
                "reward",
                f"{self.name} returned {type(found).__name__}, not a list of {wanted} numbers",
                level="problem",
            )
            return
        if len(values) != wanted:
            say("reward", f"{self.name} returned {len(values)} numbers for {wanted} completions", level="problem")
        self._none += sum(value is None for value in values)
        for value in values:
            if value is not None and len(self._values) < 3:
                self._values.add(float(value))

    def _probe(self, arguments: dict[str, Any]) -> None:
        """Call the function once more with an empty completion: a model may always end at once."""
        empty = arguments | {"completions": [_empty(arguments["completions"][0]), *arguments["completions"][1:]]}
        try:
            self._function(**empty)
        except Exception as error:  # noqa: BLE001 - this call is no part of the run
            say("reward", f"{self.name} raises {_described(error)} on an empty completion", level="problem")

    def _raised(self, error: Exception, arguments: dict[str, Any]) -> None:
        """Say what the function raised; on rows that were made, only what some completions raise is its own fault."""
        if self._lacks(error):
            return
        text = f"{self.name} raised {_described(error)}"
        culprits = self._culprits(arguments, type(error))
        if data.made and len(culprits) == len(arguments.get("completions") or []):
            say(
                "reward",
                f"{text} on every row, and the rows were made: give its files, --columns or --online",
                level="impossible",
            )
            return
        say("reward", text + (f" on the completion {str(culprits[0])[:_SHOWN]!r}" if culprits else ""), level="problem")

    def _lacks(self, error: Exception) -> bool:
        """Whether the function needs a package that is not here, which is said."""
        if isinstance(error, ImportError):
            say("reward", f"{self.name} needs what is not here: {_described(error)}", level="impossible")
        return isinstance(error, ImportError)

    def _culprits(self, arguments: dict[str, Any], kind: type[BaseException]) -> list[Any]:
        """The completions that alone raise such an exception."""
        completions = arguments.get("completions") or []
        found = []
        for index, completion in enumerate(completions):
            one = {
                name: value[index : index + 1] if isinstance(value, list) and len(value) == len(completions) else value
                for name, value in arguments.items()
            }
            try:
                self._function(**one)
            except kind:
                found.append(completion)
            except Exception:  # noqa: BLE001 - another fault, of calling it with one row
                continue
        return found

    def end(self) -> None:
        """Say what the rewards were like."""
        if not self._calls:
            return
        if len(self._values) > 1:
            say(
                "reward",
                f"{self.name}: different rewards for {self._completions} completions",
                signal=True,
                name=self.name,
            )
            return
        value = f"{next(iter(self._values)):g}" if self._values else "none"
        on_answers = self._on_answers()
        more = "; it does differ on the rows' own answers" if on_answers else ", and for the rows' own answers too"
        say(
            "reward",
            f"{self.name} gave {value} for each of {self._completions} completions of a random model{more}",
            level="fact" if on_answers else "warning",
            signal=bool(on_answers),
            name=self.name,
        )

    def _on_answers(self) -> bool:
        """Whether the function tells the rows' own answers, in the usual forms, from other completions."""
        arguments = self._last
        completions = arguments.get("completions")
        if not completions or inspect.iscoroutinefunction(self._function):
            return False
        forms = ("{}", "<think>so</think>\n{}", "<think>\nso\n</think>\n<answer>\n{}\n</answer>", "\\boxed{{{}}}",
                 "<reasoning>\nso\n</reasoning>\n<answer>\n{}\n</answer>\n", "<think>\nso\n</think>\n\\boxed{{{}}}")  # fmt: skip
        seen: set[float] = set(self._values)
        for name, column in arguments.items():
            if (
                name in ("prompts", "completions", "completion_ids")
                or not isinstance(column, list)
                or len(column) != len(completions)
            ):
                continue
            for form in forms:
                texts = [form.format(str(value).rpartition("#### ")[2].strip("$")) for value in column]
                given = arguments | {
                    "completions": [_with(old, text) for old, text in zip(completions, texts, strict=True)]
                }
                try:
                    found = self._function(**given)
                    seen |= {float(value) for value in found if value is not None}
                except Exception:  # noqa: BLE001 - not an answer in this form
                    continue
                if len(seen) > 1:
                    return True
        return False


def watch(function: Any, watched: list[Watched]) -> Any:
    """A reward function that is watched; a reward model stays what it is."""
    if isinstance(function, str) or not callable(function) or hasattr(function, "parameters"):
        return function
    name = getattr(function, "__name__", type(function).__name__)
    record = Watched(function, name)
    watched.append(record)

    def arguments_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(("prompts", "completions", "completion_ids"), args, strict=False)) | kwargs

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await record.awaited(arguments_of(args, kwargs))

        return awaited

    def called(*args: Any, **kwargs: Any) -> Any:
        return record.called(arguments_of(args, kwargs))

    functools.update_wrapper(called, function)
    called.__name__ = name
    return called


def _empty(completion: Any) -> Any:
    return "" if isinstance(completion, str) else _with(completion, "")


def _with(completion: Any, text: str) -> Any:
    return text if isinstance(completion, str) else [{"role": "assistant", "content": text}]


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
