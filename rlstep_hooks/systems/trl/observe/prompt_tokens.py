"""Whether the prompts of a rollout have the tokens that the tokenizer gives for their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.systems.trl.observe.generated import SEVERAL_TURNS
from rlstep_hooks.systems.trl.observe.limits import writes_tokens
from rlstep_hooks.systems.trl.releases import TrlRelease

if TYPE_CHECKING:
    from collections.abc import Sequence

PROMPTS = 2
"""Prompts of a rollout that are encoded again, since that costs time; they are others each time."""


class PromptTokens:
    """Encodes some prompts of a rollout as TRL 1.16 documents it, beside the trainer's own code.

    A text is encoded as the tokenizer does it by itself, and a conversation by the chat template with a generation prompt
    (grpo_trainer.py and rloo_trainer.py 1.16.0 `_tokenize_prompts`). Earlier releases cut prompts, and are not read.
    """

    def __init__(self, trainer: Any, version: str, group: int) -> None:
        self._trainer = trainer
        self._group = group
        self._known = TrlRelease(version, "").since("1.16") and _tokenizes_alone(trainer)
        self._turn = 0
        self._encoded: dict[int, list[int]] = {}

    def begin(self, rows: Any, *, looks: bool) -> None:
        """A rollout of these rows begins: encode some of their prompts now, since a reward function may write into them."""
        self._encoded = {}
        if looks and self._known and isinstance(rows, list) and rows and _of_text(rows[0]):
            chosen = chosen_places(len(rows), self._group, self._turn)
            self._turn += 1
            self._encoded = {place: self._tokens(rows[place]["prompt"]) for place in chosen}

    def _tokens(self, prompt: Any) -> list[int]:
        trainer, tokenizer = self._trainer, self._trainer.processing_class
        if isinstance(prompt, str):
            return list(tokenizer(text=[prompt])["input_ids"][0])
        encoded = tokenizer.apply_chat_template(
            conversation=[prompt],
            tools=getattr(trainer, "tools", None) or None,
            chat_template=getattr(trainer, "chat_template", None),  # RLOOTrainer has none of its own
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            **trainer.chat_template_kwargs,
        )
        return list(encoded["input_ids"][0])

    def others(self, part: dict[str, Any]) -> Tensor | None:
        """How many of these prompts have other tokens in the rollout; None where none was encoded.

        Args:
            part: The rollout by TRL's names.
        """
        encoded, self._encoded = self._encoded, {}
        ids, mask = part.get("prompt_ids"), part.get("prompt_mask")
        if not encoded or ids is None or mask is None or ids.shape != mask.shape or max(encoded) >= ids.shape[0]:
            return None
        places = list(encoded)
        return differing(ids[places], mask[places], list(encoded.values()))


def _of_text(row: dict[str, Any]) -> bool:
    return "prompt" in row and not any("image" in name for name in row)


def chosen_places(rows: int, group: int, turn: int) -> tuple[int, ...]:
    """Which rows are looked at: of other prompts each time, and at other places of their groups."""
    prompts = max(rows // group, 1)
    numbers = range(PROMPTS * turn, PROMPTS * (turn + 1))
    return tuple(dict.fromkeys((number * group + number // prompts % group) % rows for number in numbers))


def differing(ids: Tensor, mask: Tensor, expected: Sequence[Sequence[int]]) -> Tensor:
    """How many prompts (B, T), padded on the left, have other tokens than expected."""
    wide = ids.shape[1]
    whole = torch.full((len(expected), wide), -1, dtype=torch.int64)
    for row, tokens in zip(whole, expected, strict=True):
        if 0 < len(tokens) <= wide:
            row[wide - len(tokens) :] = torch.tensor(tokens, dtype=torch.int64)
    whole = whole.to(ids.device, non_blocking=True)
    real = mask.bool()
    too_long = sum(len(tokens) > wide for tokens in expected)
    return ((real != (whole >= 0)) | (real & (ids != whole))).any(1).sum().clamp(min=too_long)


def _tokenizes_alone(trainer: Any) -> bool:
    """Whether nothing but a tokenizer and TRL's own methods makes tokens of prompts."""
    from transformers import PreTrainedTokenizerBase

    # What an environment says first is part of its prompt, and a function of rollouts encodes prompts by itself.
    others = (*(name for name in SEVERAL_TURNS if name != "tools"), "environment_factories")
    several = any(getattr(trainer, name, None) for name in others)
    plain = isinstance(trainer.processing_class, PreTrainedTokenizerBase)
    return plain and not several and not writes_tokens(trainer)
