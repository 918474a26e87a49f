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
    """The completions as the first function got them: texts or messages."""
    prompts: list[Any] | None = None
    """The prompts as the first function got them."""

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
        """How many of some completions were scored with another text than theirs.

        Args:
            tokenizer: Gives the texts. TRL leaves special tokens out of them (grpo_trainer.py 1.16.0:2243-2247; 0.16.1 to 1.15 alike).
            decoded: Whether nothing but it makes texts of tokens. Where something else may, a text is wrong if it is that of another
                sample: its own stands elsewhere, and not in its place.
        """
        tokens, texts = self.tokens, [_text(completion) for completion in self.texts or ()]
        if not texts or tokens is None or len(texts) != len(tokens) or None in texts:
            return 0
        decoded = decoded and not self._made_otherwise(tokenizer)
        places = range(0, len(texts), max(len(texts) // TEXTS, 1))
        own = {place: tokenizer.decode(tokens[place], skip_special_tokens=True) for place in places}
        return sum(texts[place] != text and (decoded or text in texts) for place, text in own.items())

    def _made_otherwise(self, tokenizer: Any) -> bool:
        """Whether messages hold more or less than the decoded tokens: they are parsed by a template of the tokenizer's (1.0 to 1.16),
        or go on with the last message of the prompt (0.16 to 1.16)."""
        parsed = any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema"))
        conversations = [prompt for prompt in self.prompts or () if isinstance(prompt, list)]
        return any(parsed or (prompt and prompt[-1].get("role") == "assistant") for prompt in conversations)


def _text(completion: Any) -> str | None:
    """The text of a completion, whether it is a text or a single message; None for anything else."""
    if isinstance(completion, list) and len(completion) == 1 and isinstance(completion[0], dict):
        [message] = completion
        completion = message.get("content") if message.keys() == {"role", "content"} else None
    return completion if isinstance(completion, str) else None


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
