"""What verl's reward managers ask the reward function about each sample, and what they make of its answer, where they run.

Sources: verl 0.9.1, docs/preparation/reward_function.rst, experimental/reward_loop/reward_loop.py and reward_manager/naive.py. A
function gets the text of the completion without special tokens and the ground truth of the sample's row. Its answer, or the "score" in
it, is the reward. What the comparison finds goes to a file that the controller reads (`rlstep_hooks.observe.reward_records`).
"""

from __future__ import annotations

import functools
import inspect
import math
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.identity import checksum_of
from rlstep_hooks.observe.processes import run_of_ray
from rlstep_hooks.observe.reward_records import Scored, write
from rlstep_hooks.record import cadence
from rlstep_hooks.systems.verl.observe.process import folder

if TYPE_CHECKING:
    from rlstep_hooks.observe.patches import Patches

_DECODING = ("NaiveRewardManager", "DAPORewardManager")
"""Managers that decode the completion and leave out special tokens (reward_manager/naive.py:38, dapo.py:55)."""
_ASKED = 4096
"""Answers of the reward function that are remembered."""
ALL_OF_FIRST = 4096
"""Samples at the beginning of which each has its text decoded again; later one of `cadence.ONE_OF`."""


def place_hooks(patches: Patches, module: Any) -> None:
    """Put the hook on what makes a reward manager in the processes that score (reward_loop.py 0.9.1:130)."""
    patches.wrap(module, "load_reward_manager", _made)


def _made(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    manager = wrapped(*args, **kwargs)
    try:
        if inspect.iscoroutinefunction(manager.run_single):
            ScoringWatch(manager).place()
    except Exception:  # noqa: BLE001 - nothing here may reach verl; the controller misses the lines of this process
        return manager
    return manager


class ScoringWatch:
    """Looks at the samples that one reward manager scores.

    Args:
        manager: verl's, one sample a call.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._decodes = type(manager).__name__ in _DECODING and type(manager).__module__.startswith(
            "verl.experimental."
        )
        # With a penalty for long completions the reward is more than the function's answer.
        self._keeps_answer = getattr(getattr(manager, "overlong_buffer_cfg", None), "enable", False) is False
        self._asked: dict[tuple[str, str], list[float]] = {}
        """Text and ground truth that the function was asked about -> its answers."""
        self._samples = 0

    def place(self) -> None:
        """Put the hooks on the manager."""
        run_single, function = self._manager.run_single, getattr(self._manager, "compute_score", None)

        @functools.wraps(run_single)
        async def scored(data: Any, *args: Any, **kwargs: Any) -> Any:
            sample = self._sample(data)
            result = await run_single(data, *args, **kwargs)
            self._compare(sample, result)
            return result

        self._manager.run_single = scored
        if self._decodes and callable(function):
            self._manager.compute_score = self._listening(function)

    def _listening(self, function: Any) -> Any:
        """The reward function, whose questions and answers are remembered."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def answer(*args: Any, **kwargs: Any) -> Any:
                result = await function(*args, **kwargs)
                self._remember(kwargs, result)
                return result
        else:

            @functools.wraps(function)
            def answer(*args: Any, **kwargs: Any) -> Any:
                result = function(*args, **kwargs)
                self._remember(kwargs, result)
                return result

        return answer

    def _remember(self, asked: dict[str, Any], result: Any) -> None:
        try:
            score = float(result["score"] if isinstance(result, dict) else result)
            key = str(asked["solution_str"]), str(asked["ground_truth"])
            self._asked.setdefault(key, []).append(score)
            while len(self._asked) > _ASKED:
                del self._asked[next(iter(self._asked))]
        except Exception:  # noqa: BLE001 - nothing here may reach the reward function's caller
            self._decodes = False

    def _sample(self, data: Any) -> tuple[int, tuple[str, str] | None] | None:
        """The checksum of a sample's tokens, and what the function should be asked about it; before anything can write to it.

        None where the sample cannot be read, and no question where none is compared.
        """
        try:
            item = data[-1]  # of several rows of one session the last is scored (naive.py:40)
            known = item.non_tensor_batch
            prompt, completion = int(known["prompt_len"]), int(known["response_len"])
            tokens = item.batch["responses"][:completion]
            row = checksum_of(tokens, checksum_of(item.batch["prompts"][:prompt]))
            self._samples += 1
            looks = self._samples <= ALL_OF_FIRST or self._samples % cadence.ONE_OF == 0
            if not (self._decodes and looks):
                return row, None
            text = str(self._manager.tokenizer.decode(tokens, skip_special_tokens=True))
            return row, (text, str(known["reward_model"]["ground_truth"]))
        except Exception:  # noqa: BLE001 - nothing here may reach verl; the controller misses the line of this sample
            return None

    def _compare(self, sample: tuple[int, tuple[str, str] | None] | None, result: Any) -> None:
        try:
            if sample is not None:
                row, question = sample
                score = float(result["reward_score"])
                like = self._wrong(question, score) if question is not None and self._decodes else ""
                write(folder(), run_of_ray(), Scored(row, score if math.isfinite(score) else None, like))
        except Exception:  # noqa: BLE001 - nothing here may reach verl; the controller misses the line of this sample
            return

    def _wrong(self, question: tuple[str, str], score: float) -> str:
        answers = self._asked.get(question)
        if answers is None:
            text, truth = question
            if any(asked == text for asked, _ in self._asked):
                return "asked about its text with another ground truth"
            return (
                "asked about another text with its ground truth"
                if any(of == truth for _, of in self._asked)
                else "asked about another text and another ground truth"
            )
        if self._keeps_answer and math.isfinite(score) and score not in answers:
            return "given another score than the function answered"
        return ""
