"""The user's reward function and verl's own, called as they are in the reward workers.

What they gave is said by the trainer's process at the end.
"""

from __future__ import annotations

import inspect
from typing import Any

import wrapt

from rlstep_hooks.rehearse.messages import Rehearsal, said, say, settings

_SHOWN = 300
"""Characters of a completion that a message shows."""
_FORMS = ("{}", "#### {}", "\\boxed{{{}}}", "Answer: {}", "Answer: \\boxed{{{}}}", "<think>so</think><answer>{}</answer>",
          "<think>\nso\n</think>\n\\boxed{{{}}}", "The answer is {}.")  # fmt: skip
"""Forms in which completions usually give an answer."""

_probed = False


def watch_custom(module: Any) -> None:
    """`verl.trainer.ppo.reward`: the function of `reward.custom_reward_function`."""
    wrapt.wrap_function_wrapper(module, "get_custom_reward_fn", _around_custom)


def watch_default(module: Any) -> None:
    """`verl.utils.reward_score`: verl's rules for the data sources that it knows."""
    wrapt.wrap_function_wrapper(module, "default_compute_score", _around_default)


def _around_custom(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    try:
        function = wrapped(*args, **kwargs)
    except ImportError as error:
        say("reward", f"the reward function needs what is not here: {_described(error)}", level="impossible")
        raise
    except Exception as error:
        say("reward", f"it cannot be loaded: {_described(error)}", level="problem")
        raise
    if function is None:
        return None
    name = getattr(function.args[0], "__name__", "the reward function") if getattr(function, "args", None) else "reward"
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "func", None)):

        async def awaited(*args: Any, **given: Any) -> Any:
            try:
                found = await function(*args, **given)
            except ImportError as error:
                _raised(f"{name} needs what is not here: {_described(error)}", level="impossible")
                raise
            except Exception as error:
                _raised(f"{name} raised {_described(error)} on the completion {_shown(given)}")
                raise
            _look(name, found)
            return found

        return awaited

    def called(*args: Any, **given: Any) -> Any:
        return _called(function, name, args, given)

    return called


def _around_default(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return _called(wrapped, "verl's rule", args, kwargs)


def _called(function: Any, name: str, args: Any, given: dict[str, Any]) -> Any:
    global _probed
    try:
        found = function(*args, **given)
    except Exception as error:
        text = f"{name} raised {_described(error)}"
        if isinstance(error, ImportError):
            _raised(f"{name} needs what is not here: {_described(error)}", level="impossible")
        elif _made() and all(_raises(function, args, given, each) for each in ("", "42", *_answers(given))):
            _raised(f"{text} on every row, and the rows were made: give its files", level="impossible")
        else:
            _raised(f"{text} on the completion {_shown(given)}")
        raise
    _look(name, found)
    if not _probed:
        _probed = True
        _probe(function, name, args, given)
    return found


def _look(name: str, found: Any) -> None:
    score: Any = found.get("score") if isinstance(found, dict) else found
    if isinstance(found, dict) and "score" not in found:
        _raised(f'{name} returned a dict without "score": {sorted(found)}')
    elif not isinstance(score, int | float):
        try:
            score = float(score)  # numpy's, torch's
        except (TypeError, ValueError):
            _raised(f"{name} returned {type(score).__name__}, not a number")
            return
    if isinstance(score, int | float):
        say("rewarded", name=name, score=float(score))


def _probe(function: Any, name: str, args: Any, given: dict[str, Any]) -> None:
    """Call the function once more with an empty completion, and with the row's own answer; no part of the run."""
    try:
        function(*args, **{**given, "solution_str": ""})
    except Exception as error:  # noqa: BLE001 - of a call that verl did not make
        say("reward", f"{name} raises {_described(error)} on an empty completion", level="problem")
    for text in _answers(given):
        try:
            found = function(*args, **{**given, "solution_str": text})
            score: Any = found.get("score") if isinstance(found, dict) else found
            say("rewarded answer", name=name, score=float(score))
        except Exception:  # noqa: BLE001 - not an answer in this form
            continue


def _answers(given: dict[str, Any]) -> list[str]:
    answer = given.get("ground_truth")
    return [form.format(answer) for form in _FORMS] if isinstance(answer, str | int | float) else []


def _raises(function: Any, args: Any, given: dict[str, Any], completion: str) -> bool:
    try:
        function(*args, **{**given, "solution_str": completion})
    except Exception:  # noqa: BLE001 - that is the question
        return True
    return False


def _raised(text: str, *, level: Any = "problem") -> None:
    """Say it, and that the run need not go on: verl may wait for the sample without end."""
    say("reward", text, level=level)
    say("stop", text)


def _made() -> bool:
    return any("columns" in each.values for each in _told() if each.topic == "data")


def _told() -> list[Any]:
    rehearsal: Rehearsal = settings()
    return said(rehearsal)


def _shown(given: dict[str, Any]) -> str:
    return repr(str(given.get("solution_str", ""))[:_SHOWN])


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def conclude() -> None:
    """Say what the rewards of all workers were like."""
    told = _told()
    scores: dict[str, list[float]] = {}
    for each in told:
        if each.topic == "rewarded":
            scores.setdefault(each.values["name"], []).append(each.values["score"])
    on_answers = {each.values["score"] for each in told if each.topic == "rewarded answer"}
    for name, values in scores.items():
        if len(set(values)) > 1:
            say("reward", f"{name}: different rewards for {len(values)} completions", signal=True, name=name)
            continue
        differs = bool(on_answers - set(values))
        more = "; it does differ on the rows' own answers" if differs else ", and for the rows' own answers too"
        say(
            "reward",
            f"{name} gave {values[0]:g} for each of {len(values)} completions of a random model{more}",
            level="fact" if differs else "warning",
            signal=differs,
            name=name,
        )
