"""What ms-swift's reward functions are asked about, beside the tokens that the engine gave and the rows of the data set.

A function gets the text of each sample's last message, and as keywords the conversations ("messages") and the columns of the rows
(docs/source_en/Instruction/GRPO/DeveloperGuide/reward_function.md; 4.6.0 swift/rl_core/grpo_algorithm.py `compute_rewards_per_func`).
The text of a completion is that of its tokens without those that end it, behind what the template puts before each answer
(template/base.py 4.6.0:838 `decode_generate_ids`, :192 `response_prefix`: "<think>" of a model that thinks). GLM's templates take
newlines off its beginning (templates/glm.py:36); Kimi K3's and a few others write it anew, and no text of theirs is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.systems.trl.observe.given_rewards import TEXTS, Asked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.observe.turn_rows import Request

_OF_SAMPLES = (
    "messages",
    "response_token_ids",
    "request_id",
    "prompt_id",
    "finish_reason",
    "is_truncated",
    "rollout_infos",
)
"""What a function gets of each sample, beside the columns of its row."""


class AnswerForm(msgspec.Struct, frozen=True):
    """What a template makes of the text of a completion's tokens."""

    beginnings: tuple[str, ...] = ()
    """What may stand before it: a prompt ends with the same, and a tokenizer that has no token for it loses it there."""
    begins_at_text: bool = False
    """Whether newlines at its beginning are taken off."""


_FORMS = {"Template": False, "GLM4Template": True}
"""The classes whose `decode_generate_ids` was read, and whether they take newlines off."""


def answer_form(template: Any) -> AnswerForm | None:
    """What a template makes of a completion's text; None where its class writes the text anew."""
    writes = next(of.__name__ for of in type(template).__mro__ if "decode_generate_ids" in vars(of))
    if writes not in _FORMS:
        return None
    meta = template.template_meta
    beginnings = (template.response_prefix, meta.thinking_prefix, meta.non_thinking_prefix)
    return AnswerForm(
        tuple(of.strip() for of in beginnings if of), _FORMS[writes] and bool(getattr(template, "strip_newline", True))
    )


def asked_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asked:
    """What a function is asked about, from its arguments."""
    texts, messages = args[0] if args else kwargs.get("completions"), kwargs.get("messages")
    columns = {name: list(of) for name, of in kwargs.items() if name not in _OF_SAMPLES and isinstance(of, list)}
    lists = [list(of) if isinstance(of, list) else None for of in (texts, messages)]
    return Asked(None, lists[0], lists[1], columns, (id(None), id(texts), id(messages)))


def others_scored(
    tokenizer: Any, form: AnswerForm, turns: Sequence[Request], texts: Sequence[Any], *, turn: int = 0
) -> int:
    """How many of some samples were scored with another text than that of their tokens.

    Args:
        tokenizer: Gives the texts.
        form: What the template makes of them.
        turns: What was asked and given for each sample.
        texts: What was scored of each.
        turn: Which of the samples are looked at, where there are many: others with each number.
    """
    step = -(-len(texts) // TEXTS)
    places = range(turn % step, len(texts), step)
    return sum(
        isinstance(texts[place], str) and not _says(tokenizer, form, turns[place], texts[place]) for place in places
    )


def _says(tokenizer: Any, form: AnswerForm, turn: Request, text: str) -> bool:
    """Whether a text is that of the tokens that were given, perhaps behind the end of the prompt, which belongs to the answer."""
    asked = ""
    for own in _texts_of(tokenizer, turn.given):
        if text == own or (form.begins_at_text and text == own.lstrip("\n")):
            return True
        if text.endswith(own):
            # A tokenizer may lose the blanks around it.
            before = text.removesuffix(own).strip()
            asked = asked or str(tokenizer.decode(turn.asked, skip_special_tokens=False)).rstrip()
            if before in form.beginnings or asked.endswith(before):
                return True
    return False


def other_prompts(messages: Sequence[Any], rows: Sequence[dict[str, Any]]) -> int:
    """How many samples were scored with a conversation that does not begin with the prompt of their row. A system message may have
    been put before it.

    Args:
        messages: The conversations that were scored.
        rows: The rows of the samples.
    """
    if len(messages) != len(rows):
        return 0
    return sum(
        _contents(own)[: len(prompt)] != prompt
        for own, row in zip(messages, rows, strict=True)
        if isinstance(own, list) and (prompt := _contents(row.get("messages") or [], without_answer=True))
    )


def _contents(messages: list[dict[str, Any]], *, without_answer: bool = False) -> list[Any]:
    if without_answer and messages and messages[-1].get("role") == "assistant":
        messages = messages[:-1]
    return [message.get("content") for message in messages if message.get("role") != "system"]


def _texts_of(tokenizer: Any, tokens: list[int]) -> tuple[str, ...]:
    """The texts that the tokens of a turn may be scored as: with its last special tokens or without them, or without any."""
    end = len(tokens)
    while end and tokens[end - 1] in tokenizer.all_special_ids:
        end -= 1
    whole = [tokenizer.decode(tokens[:stop], skip_special_tokens=False) for stop in range(end, len(tokens) + 1)]
    return (*whole, tokenizer.decode(tokens, skip_special_tokens=True))
