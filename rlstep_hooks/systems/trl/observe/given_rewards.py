"""What the reward functions really got and gave, beside the samples and the rewards that advantages are computed from."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FIRST_TOKENS = 32
"""Tokens of each completion that are compared; a sample that stands in another's place shows in these."""
TEXTS = 16
"""Completions of a rollout whose text is compared with their tokens, since decoding them costs time. Of a larger rollout they are
others each time."""


class Asked(msgspec.Struct, frozen=True):
    """What one reward function was asked about: copies, because a function may write to the lists that it and the next ones get."""

    tokens: list[Any] | None
    """The tokens of the completions."""
    texts: list[Any] | None
    """The completions: texts or messages."""
    prompts: list[Any] | None
    columns: dict[str, list[Any]] = {}
    """What it got for each sample beside these: the other columns of the rows."""
    lists: tuple[int, ...] = ()
    """Identities of the lists themselves, tokens, texts and prompts, by which a list shows that an earlier function wrote to."""


class GivenRewards(msgspec.Struct):
    """The calls of the reward functions for one rollout, on this process."""

    functions: int = 0
    """How many reward functions the trainer has."""
    columns: dict[int, list[Any] | Tensor] = {}
    """Place of a function -> what it gave."""
    asked: dict[int, Asked] = {}
    """Place of a function -> what it was asked, in the order of the calls."""

    @property
    def texts(self) -> list[Any]:
        """What the first function was asked to score."""
        return self._first.texts or []

    @property
    def messages(self) -> list[Any]:
        """The conversations, or prompts, that the first function got beside that."""
        return self._first.prompts or []

    @property
    def _first(self) -> Asked:
        return next(iter(self.asked.values()), Asked(None, None, None))

    def moved(self, rewards: Tensor, first: int) -> Tensor | None:
        """How many rewards of this process, from row `first` on, are not what the functions gave; None where none was seen.

        Args:
            rewards: (N, F), of all processes.
            first: The first row of this process.
        """
        found = []
        for place, values in self.columns.items():
            given = _in_float32(values)
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
        tokens = self._first.tokens
        if tokens is None or len(tokens) != completion_ids.shape[0]:
            return None
        width = min(FIRST_TOKENS, completion_ids.shape[1])
        scored = torch.full((len(tokens), width), -1, dtype=torch.int64)
        for row, of_sample in zip(scored, tokens, strict=True):
            start = torch.tensor(list(of_sample[:width]), dtype=torch.int64)
            row[: len(start)] = start
        scored = scored.to(completion_ids.device, non_blocking=True)
        return ((scored != completion_ids[:, :width]) & (scored >= 0)).any(1).sum()

    def of_other_kind(self) -> int:
        """How many completions came as another kind of thing than their prompts: they are texts where prompts are texts, and messages
        where prompts are (docs/source/grpo_trainer.md 0.20 to 1.16, "Using a custom reward function")."""
        prompts, texts = self._first.prompts, self._first.texts
        if prompts is None or texts is None or len(prompts) != len(texts):
            return 0
        return sum(
            isinstance(prompt, str) != isinstance(text, str) for prompt, text in zip(prompts, texts, strict=True)
        )

    def misplaced(self, tokenizer: Any, *, decoded: bool, turn: int = 0) -> int:
        """How many of some completions were scored with another text than theirs.

        Args:
            tokenizer: Gives the texts. TRL leaves special tokens out of them (grpo_trainer.py 1.16.0:2243-2247; 0.16.1 to 1.15 alike).
            decoded: Whether nothing but it makes texts of tokens. Where something else may, a text is wrong if it is that of another
                sample: its own stands elsewhere, and not in its place.
            turn: Which of the completions are looked at, where there are many: others with each number.
        """
        tokens, texts = self._first.tokens, self._texts()
        if not texts or tokens is None or len(texts) != len(tokens):
            return 0
        decoded = decoded and not self._made_otherwise(tokenizer)
        step = -(-len(texts) // TEXTS)
        places = [place for place in range(turn % step, len(texts), step) if texts[place] is not None]
        own = {place: tokenizer.decode(tokens[place], skip_special_tokens=True) for place in places}
        return sum(texts[place] != text and (decoded or text in texts) for place, text in own.items())

    def asked_otherwise(self) -> int:
        """How many samples some function was asked about with another completion or prompt than the first function.

        All are asked about the same. A function may write to the lists that the next one gets: then a sample is wrong only if it has
        what belongs to another.
        """
        first, *later = self.asked.values() if self.asked else (self._first,)
        return max((_wrong_places(first, each) for each in later), default=0)

    def of_other_rows(self, rows: Sequence[dict[str, Any]], *, prompts: bool) -> int:
        """How many samples the first function was asked about with columns of another row than theirs: a function gets each column of
        the data set (docs/source/grpo_trainer.md 0.20 to 1.16, "Using a custom reward function").

        Args:
            rows: The rows of this process's samples, as the loader gave them.
            prompts: Whether their prompts are scored as they are. Images and what an environment says are put into them.
        """
        wrong: set[int] = set()
        for asked in itertools.islice(self.asked.values(), 1):
            named = dict(asked.columns)
            if prompts and asked.prompts is not None:
                named["prompt"] = asked.prompts
            for name, values in named.items():
                if len(values) == len(rows):
                    pairs = enumerate(zip(values, rows, strict=True))
                    wrong |= {place for place, (one, row) in pairs if name in row and _differ(one, row[name])}
        return len(wrong)

    def of_other_conversations(self, conversations: Sequence[Sequence[dict[str, Any]]]) -> int:
        """How many samples the first function was asked about with other messages than those of their turns.

        Args:
            conversations: What the policy and its tools said in each sample.
        """
        texts = self.texts
        if len(texts) != len(conversations):
            return 0
        return sum(_same(list(text), list(own)) is False for text, own in zip(texts, conversations, strict=True))

    def of_other_environments(self, environments: Sequence[Any]) -> int:
        """How many samples the first function got the environment of another one for (`environments`, 1.0 to 1.16)."""
        given = self._first.columns.get("environments", [])
        if len(given) != len(environments):
            return 0
        return sum(one is not own for one, own in zip(given, environments, strict=True))

    def uncompared(self, *, conversations: bool = False) -> int:
        """Of how many functions it was not compared what they got, or what they gave.

        Args:
            conversations: Whether the messages of all samples were compared.
        """
        unread = None in self._texts() and not conversations
        return sum(unread or place not in self.columns or place not in self.asked for place in range(self.functions))

    def _texts(self) -> list[str | None]:
        return [_text(completion) for completion in self._first.texts or ()]

    def _made_otherwise(self, tokenizer: Any) -> bool:
        """Whether messages hold more or less than the decoded tokens: they are parsed by a template of the tokenizer's (1.0 to 1.16),
        or go on with the last message of the prompt (0.16 to 1.16)."""
        parsed = any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema"))
        conversations = [prompt for prompt in self._first.prompts or () if isinstance(prompt, list)]
        return any(parsed or (prompt and prompt[-1].get("role") == "assistant") for prompt in conversations)


def _in_float32(values: list[Any] | Tensor) -> Tensor:
    """(B,): rewards as a trainer keeps them, NaN where a function gave none."""
    if isinstance(values, Tensor):
        return values.detach().float()
    return torch.tensor([torch.nan if one is None else float(one) for one in values], dtype=torch.float32)


def _wrong_places(first: Asked, later: Asked) -> int:
    """How many samples a later function was asked about with what is not theirs."""
    wrong: set[int] = set()
    of_first = (first.tokens, first.texts, first.prompts)
    for kind, (own, other) in enumerate(zip(of_first, (later.tokens, later.texts, later.prompts), strict=True)):
        if own is None or other is None or own == other:
            continue
        if len(own) != len(other):
            return max(len(own), len(other))
        written = first.lists[kind : kind + 1] == later.lists[kind : kind + 1]
        wrong |= {place for place, one in enumerate(other) if one != own[place] and (not written or one in own)}
    return len(wrong)


def _differ(one: Any, other: Any) -> bool:
    """Whether two values of a column are known to differ: arrays and other things that do not compare as one may be equal."""
    if one is other or type(one) is not type(other):
        return False
    return isinstance(one, str | int | float | bool | list | dict) and _same(one, other) is False


def _same(one: Any, other: Any) -> bool | None:
    """Whether two values are equal; None where that cannot be said."""
    try:
        return bool(one == other) or _has_nan((one, other))
    except (TypeError, ValueError, RuntimeError):
        return None


def _has_nan(values: Iterable[Any]) -> bool:
    return any(isinstance(value, float) and value != value for value in values)


def _text(completion: Any) -> str | None:
    """The text of a completion, whether it is a text or a single message; None for anything else."""
    if isinstance(completion, list) and len(completion) == 1 and isinstance(completion[0], dict):
        [message] = completion
        completion = message.get("content") if message.keys() == {"role", "content"} else None
    return completion if isinstance(completion, str) else None
