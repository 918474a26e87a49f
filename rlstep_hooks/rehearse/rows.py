"""Rows made in the place of a data set that is not here: small sums, under the columns that are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MADE = 512
"""Rows of a made set."""

KNOWN: dict[str, tuple[str, ...]] = {
    "openai/gsm8k": ("question", "answer"),
    "gsm8k": ("question", "answer"),
    "trl-lib/deepmath-103k": ("prompt[]", "solution"),
    "trl-lib/tldr": ("prompt", "completion"),
    "trl-lib/ultrafeedback-prompt": ("prompt[]",),
    "trl-lib/ultrafeedback_binarized": ("prompt[]", "chosen[]", "rejected[]"),
    "ai-mo/numinamath-tir": ("problem", "solution", "messages[]"),
    "open-r1/openr1-math-220k": ("problem", "solution", "answer", "messages[]"),
    "open-r1/dapo-math-17k-processed": ("prompt", "solution"),
    "agentica-org/deepscaler-preview-dataset": ("problem", "answer", "solution"),
    "hiyouga/math12k": ("problem", "answer"),
    "jiayi-pan/countdown-tasks-3to4": ("target", "nums"),
    "mlabonne/smoltldr": ("prompt", "completion"),
}
"""Columns of public sets, as their pages list them; "[]" marks lists of messages."""

_QUESTIONS = ("question", "problem", "query", "instruction", "text", "prompt", "input", "task")
_ANSWERS = (
    "answer",
    "solution",
    "ground_truth",
    "gold",
    "label",
    "final_answer",
    "gt",
    "reference",
    "completion",
    "response",
)


def columns_of(name: str) -> tuple[str, ...]:
    """The columns of a public set; empty if it is not listed here."""
    return KNOWN.get(name.lower(), ())


def made_rows(
    columns: Sequence[str],
    count: int = MADE,
    *,
    conversational: bool = False,
    marked: bool = False,
    beginnings: Mapping[str, str] | None = None,
    like: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Rows of small sums.

    Args:
        columns: The columns; one that ends with "[]" holds messages.
        count: How many.
        conversational: Whether a prompt is a list of messages.
        marked: Whether an answer ends with "#### 42", as in GSM8K.
        beginnings: Column -> what its texts begin with.
        like: Column -> the usual column whose values it holds.
    """

    def value(name: str, index: int) -> Any:
        messages = name.endswith("[]") or (conversational and name == "prompt")
        usual = (like or {}).get(name, name.removesuffix("[]").lower())
        found = _value(usual, index, messages=messages, marked=marked)
        begin = (beginnings or {}).get(name, "")
        return begin + found if begin and isinstance(found, str) else found

    return [{name.removesuffix("[]"): value(name, index) for name in columns} for index in range(count)]


def _value(name: str, index: int, *, messages: bool, marked: bool) -> Any:
    one, other = 3 + index % 17, 5 + index % 23
    question = f"What is {one} + {other} + {index // 17}?"
    total = one + other + index // 17
    if name in ("messages", "conversation", "conversations"):
        return [{"role": "user", "content": question}, {"role": "assistant", "content": str(total)}]
    if messages:
        return [
            {
                "role": "user" if name == "prompt" else "assistant",
                "content": question if name == "prompt" else str(total),
            }
        ]
    if name in ("nums", "numbers"):
        return [one, other, index // 17]
    if name == "target":
        return total
    if name in _QUESTIONS:
        return question
    if name == "solution":
        return f"${total}$"
    if name in _ANSWERS:
        return f"{one} + {other} + {index // 17} = {total}\n#### {total}" if marked else str(total)
    return f"{name} {index}"
