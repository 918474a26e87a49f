"""What a policy's tokens say as a message: text and calls of tools, as the tokenizer of transformers reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.turn_rows import Ids, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def message_of(message: dict[str, Any]) -> Message | None:
    """A message of a conversation; None where its calls are not whole."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return None
        calls.append((function["name"], function.get("arguments") or {}))
    content = message.get("content") or ""
    return Message(content.strip(), calls) if isinstance(content, str) else None


def reader(tokenizer: Any, tools: Sequence[Any] | None) -> Callable[[Ids, Ids], Message | None]:
    """A function that reads the tokens of a turn behind those of its prompt; it gives None where transformers cannot.

    `parse_response` of transformers takes prompt and tools from 5.15 on. GRPOTrainer decodes what it cannot read as a text
    (chat_template_utils.py 1.16.0:1294), which is not compared.

    Args:
        tokenizer: Has the response template.
        tools: Those that the policy was told of, whose schemas say the types of arguments.
    """

    def read(given: Ids, asked: Ids) -> Message | None:
        try:
            parsed = tokenizer.parse_response(given, prefix=asked, tools=tools)
        except Exception:  # noqa: BLE001 - whatever a template of somebody makes of tokens that a policy drew
            return None
        if not isinstance(parsed, dict):
            return None
        content = parsed.get("content")
        if isinstance(content, str) and tokenizer.eos_token:
            parsed = parsed | {"content": content.removesuffix(tokenizer.eos_token)}
        return message_of(parsed)

    return read
