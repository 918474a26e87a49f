"""What verl's reward managers ask the reward function about each sample, and what they make of its answer, where they run.

Sources: verl 0.9.1, docs/preparation/reward_function.rst, experimental/reward_loop/reward_loop.py and reward_manager/naive.py. A
function gets the text of the completion without special tokens, and the ground truth, the data source and `extra_info` of the sample's
row. To the last the manager adds what tools and turns tell (naive.py:49-54, dapo.py). Its answer, or the "score" in it, is the reward;
the manager dapo takes a penalty for long completions off, where one is configured (dapo.py:117-121). What the comparison finds goes to
a file that the controller reads (`rlstep_hooks.observe.reward_records`).
"""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.observe.hooks import Call, Hooks, LateRecorder
from rlstep_hooks.observe.identity import checksum_of
from rlstep_hooks.observe.processes import run_of_ray
from rlstep_hooks.observe.reward_records import Scored, write
from rlstep_hooks.record import cadence
from rlstep_hooks.systems.verl.observe.process import folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.patches import Patches

_DECODING = ("NaiveRewardManager", "DAPORewardManager")
"""Managers that decode the completion and leave out special tokens (reward_manager/naive.py:38, dapo.py:55)."""
_ASKED = 4096
"""Answers of the reward function that are remembered."""
ALL_OF_FIRST = 4096
"""Samples at the beginning of which each has its text decoded again; later one of `cadence.ONE_OF`."""


def place_hooks(patches: Patches, module: Any) -> None:
    """Put the hook on what makes a reward manager in the processes that score (reward_loop.py 0.9.1:130)."""
    # These processes have no record: where the hook fails, the controller misses their lines.
    Hooks(LateRecorder(lambda: None), patches).wrap(module, "load_reward_manager", after=_made, topics=("samples",))


def _made(call: Call) -> None:
    if inspect.iscoroutinefunction(call.result.run_single):
        ScoringWatch(call.result).place()


_ADDED = frozenset({"num_turns", "rollout_reward_scores"})
"""Parts of `extra_info` that the manager writes (naive.py 0.9.1:53, 54)."""


class _Question(msgspec.Struct, frozen=True):
    """What the reward function should be asked about one sample."""

    text: str
    truth: str
    source: str
    info: dict[Any, Any]
    """`extra_info` of its row, which others may write to."""
    extra: frozenset[tuple[str, str]]
    """The parts of `info` before the function was asked, with their values as text."""
    tokens: int
    """Tokens of the completion."""

    def unchanged(self) -> _Question:
        """The question with those parts alone that nobody has written to."""
        return msgspec.structs.replace(self, extra=self.extra & _parts(self.info))


class _Answer(msgspec.Struct, frozen=True):
    """One answer of the reward function, with what else it was asked about than text and ground truth."""

    score: float
    source: str | None
    """None, as the next, where it was not looked at."""
    extra: frozenset[tuple[str, str]] | None

    def suits(self, question: _Question) -> bool:
        """Whether it was asked about this sample's row, as far as that was looked at."""
        return (self.source in (None, question.source)) and (self.extra is None or question.extra <= self.extra)


class _Penalty(msgspec.Struct, frozen=True):
    """What is added to the reward of a long completion; never above 0."""

    longest: float
    """Tokens of the longest completion."""
    buffer: float
    """Tokens before that over which the penalty grows."""
    factor: float

    def of(self, tokens: int) -> float:
        """What is added to the reward of a completion of so many tokens."""
        return min(-(tokens - (self.longest - self.buffer)) / self.buffer * self.factor, 0.0)


def _penalty_of(manager: Any) -> _Penalty | None:
    """The penalty that a manager's configuration asks for; None without one."""
    if type(manager).__name__ != "DAPORewardManager":
        return None
    given = manager.config.reward.get("reward_kwargs") or {}
    buffer = given.get("overlong_buffer_cfg")
    if buffer is None or not buffer.get("enable"):
        return None
    return _Penalty(float(given["max_resp_len"]), float(buffer["len"]), float(buffer["penalty_factor"]))


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
        self._penalty = _penalty_of(manager) if self._decodes else None
        self._asked: dict[tuple[str, str], list[_Answer]] = {}
        """Text and ground truth that the function was asked about -> its answers."""
        self._samples = 0

    def place(self) -> None:
        """Put the hooks on the manager."""
        hooks = Hooks(self)
        hooks.wrap(self._manager, "run_single", around=self._scored, topics=("samples",))
        if self._decodes and callable(getattr(self._manager, "compute_score", None)):
            hooks.wrap(self._manager, "compute_score", around=self._answered, topics=("rewards",))

    def cannot(self, what: str, why: str) -> None:
        """Compare no questions any more where an answer was not seen. Of a sample that was not, the controller misses the line."""
        self._decodes = self._decodes and what != "rewards"

    def _answered(self, call: Call) -> Iterator[None]:
        """Remember what the reward function is asked, and what it answers."""
        asked = call.kwargs
        about = self._about(asked)
        yield
        result = call.result
        score = float(result["score"] if isinstance(result, dict) else result)
        key = str(asked["solution_str"]), str(asked["ground_truth"])
        self._asked.setdefault(key, []).append(_Answer(score, *about))
        while len(self._asked) > _ASKED:
            del self._asked[next(iter(self._asked))]

    def _about(self, asked: dict[str, Any]) -> tuple[str | None, frozenset[tuple[str, str]] | None]:
        """The data source and the parts of `extra_info` that the function is asked about; None where they are not looked at."""
        if not self._looks() or "data_source" not in asked:
            return None, None
        info = asked.get("extra_info")
        return str(asked["data_source"]), _parts(info) if isinstance(info, dict) else None

    def _looks(self) -> bool:
        """Whether what is asked about the latest sample is looked at."""
        return self._samples <= ALL_OF_FIRST or self._samples % cadence.ONE_OF == 0

    def _scored(self, call: Call) -> Iterator[None]:
        """Compare what a sample is given with the function's answer, and write down what was found."""
        row, question = self._sample(call.argument("data", 0))
        yield
        score = float(call.result["reward_score"])
        like = self._wrong(question.unchanged(), score) if question is not None and self._decodes else ""
        write(folder(), run_of_ray(), Scored(row, score if math.isfinite(score) else None, like))

    def _sample(self, data: Any) -> tuple[int, _Question | None]:
        """The checksum of a sample's tokens, and what the function should be asked about it; before anything can write to it.

        There is no question where none is compared.
        """
        item = data[-1]  # of several rows of one session the last is scored (naive.py:40)
        known = item.non_tensor_batch
        prompt, completion = int(known["prompt_len"]), int(known["response_len"])
        tokens = item.batch["responses"][:completion]
        row = checksum_of(tokens, checksum_of(item.batch["prompts"][:prompt]))
        self._samples += 1
        if not (self._decodes and self._looks()):
            return row, None
        text = str(self._manager.tokenizer.decode(tokens, skip_special_tokens=True))
        written = {*_ADDED, *(known.get("tool_extra_fields") or {})}
        info = known.get("extra_info") or {}
        extra = frozenset(part for part in _parts(info) if part[0] not in written)
        truth, source = str(known["reward_model"]["ground_truth"]), str(known["data_source"])
        return row, _Question(text, truth, source, info, extra, completion)

    def _wrong(self, question: _Question, score: float) -> str:
        answers = self._asked.get((question.text, question.truth))
        if answers is None:
            if any(asked == question.text for asked, _ in self._asked):
                return "asked about its text with another ground truth"
            return (
                "asked about another text with its ground truth"
                if any(of == question.truth for _, of in self._asked)
                else "asked about another text and another ground truth"
            )
        answers = [answer for answer in answers if answer.suits(question)]
        if not answers:
            return "asked about its text with another data_source or extra_info"
        if not math.isfinite(score) or (self._penalty is None and any(score == answer.score for answer in answers)):
            return ""
        if self._penalty is None:
            return "given another score than the function answered"
        penalty = self._penalty.of(question.tokens)
        # The length is a tensor, so the sum may be in float32.
        if any(math.isclose(score, answer.score + penalty, rel_tol=1e-5, abs_tol=1e-6) for answer in answers):
            return ""
        if any(score == answer.score for answer in answers):
            return "given the function's answer without the penalty for its length"
        return "given another score than the function's answer less the penalty for its length"


def _parts(extra_info: dict[Any, Any]) -> frozenset[tuple[str, str]]:
    return frozenset((str(name), str(value)) for name, value in extra_info.items())
