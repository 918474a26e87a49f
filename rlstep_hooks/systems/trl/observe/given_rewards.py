"""What the reward functions really got and gave, beside the samples and the rewards that advantages are computed from."""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_TOKENS = 32
"""Tokens of each completion that are compared; a sample that stands in another's place shows in these."""
TEXTS = 4
"""Completions whose text is compared with their tokens, since decoding them costs time."""


class GivenRewards(msgspec.Struct):
    """The calls of the reward functions for one rollout, on this process."""

    columns: dict[int, list[Any]] = {}
    """Place of a function -> what it gave."""
    tokens: list[Any] | None = None
    """The tokens of the completions that the first function was asked about."""
    texts: list[Any] | None = None
    """These completions, as it got them: texts or messages."""
    prompts: list[Any] | None = None
    """Their prompts, as it got them."""

    def moved(self, rewards: Tensor, first: int) -> Tensor | None:
        """How many rewards of this process, from row `first` on, are not what the functions gave; None where none was seen.

        Args:
            rewards: (N, F), of all processes.
            first: The first row of this process.
        """
        found = []
        for place, values in self.columns.items():
            given = torch.tensor([torch.nan if one is None else float(one) for one in values], dtype=torch.float32)
            kept = rewards[first : first + len(values), place]
            if kept.shape != given.shape:
                continue
            given = given.to(rewards.device, non_blocking=True)
            found.append(((kept != given) & ~(kept.isnan() & given.isnan())).sum())
        return torch.stack(found).sum() if found else None

    def others(self, completion_ids: Tensor) -> Tensor | None:
        """How many samples of a rollout have other tokens than the completions that were scored; None where they were not seen.

        Args:
            completion_ids: (B, T).
        """
        if self.tokens is None or len(self.tokens) != completion_ids.shape[0]:
            return None
        width = min(FIRST_TOKENS, completion_ids.shape[1])
        scored = torch.full((len(self.tokens), width), -1, dtype=torch.int64)
        for row, tokens in zip(scored, self.tokens, strict=True):
            start = torch.tensor(list(tokens[:width]), dtype=torch.int64)
            row[: len(start)] = start
        scored = scored.to(completion_ids.device, non_blocking=True)
        return ((scored != completion_ids[:, :width]) & (scored >= 0)).any(1).sum()

    def of_other_kind(self) -> int:
        """How many completions came as another kind of thing than their prompts: they are texts where prompts are texts, and messages
        where prompts are (docs/source/grpo_trainer.md 0.20 to 1.16, "Using a custom reward function")."""
        if self.prompts is None or self.texts is None or len(self.prompts) != len(self.texts):
            return 0
        return sum(
            isinstance(prompt, str) != isinstance(text, str)
            for prompt, text in zip(self.prompts, self.texts, strict=True)
        )

    def misplaced(self, tokenizer: Any, *, decoded: bool) -> int:
        """How many of some completions were scored with the text of another sample: theirs stands elsewhere, and not in its place.

        Args:
            tokenizer: Gives the texts.
            decoded: Whether nothing but it makes texts of tokens, so that all are wrong where none is right.
        """
        texts, tokens = self.texts, self.tokens
        if not texts or tokens is None or len(texts) != len(tokens) or not all(isinstance(text, str) for text in texts):
            return 0
        places = range(0, len(texts), max(len(texts) // TEXTS, 1))
        own = {place: tokenizer.decode(tokens[place], skip_special_tokens=True) for place in places}
        if decoded and all(texts[place] != text for place, text in own.items()):
            return len(texts)
        return sum(texts[place] != text and text in texts for place, text in own.items())


class RewardFunctions:
    """Looks at a trainer's reward functions while they are called; between the calls the trainer has its own.

    Models are not looked at, nor functions that are coroutines.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    @contextlib.contextmanager
    def seen(self) -> Iterator[GivenRewards]:
        """A call of `_calculate_rewards`, which takes the functions from `reward_funcs` (0.20 to 1.16.0)."""
        given, own = GivenRewards({}), self._trainer.reward_funcs
        self._trainer.reward_funcs = [
            _seen(function, place, given) if _is_plain(function) else function for place, function in enumerate(own)
        ]
        try:
            yield given
        finally:
            self._trainer.reward_funcs = own


def _is_plain(function: Any) -> bool:
    called = function if inspect.isroutine(function) else type(function).__call__
    return callable(function) and not isinstance(function, torch.nn.Module) and not inspect.iscoroutinefunction(called)


def _seen(function: Any, place: int, given: GivenRewards) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if given.texts is None:  # copies, because a function may write to the lists that it and the next ones get
            given.tokens, given.texts, given.prompts = (
                list(kwargs[name]) if name in kwargs else None for name in ("completion_ids", "completions", "prompts")
            )
        result = function(*args, **kwargs)
        if isinstance(result, list):
            given.columns[place] = list(result)
        elif isinstance(result, Tensor) and result.device.type == "cpu":
            given.columns[place] = result.tolist()
        return result

    call.__name__ = getattr(function, "__name__", type(function).__name__)
    return call
