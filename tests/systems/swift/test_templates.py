"""The chat templates that people train with, with tokenizers that have tokens for their marks: healthy runs say nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.systems.swift import tiny
from tests.systems.swift.test_turns import ASKS, audited, outcome
from tests.systems.trl.helpers import codes, explained, problems

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEMPLATES = (
    "qwen2_5",
    "qwen3",
    "llama3",
    "glm4_5",
    "glm4_7",
    "kimi_k2",
    "deepseek_r1",
    "minimax",
    "gemma3_text",
    "mistral_2501",
)
WRITE_TEXTS_ANEW = ("kimi_k3",)
_MARK = re.compile(r"<[^<>\s]{1,40}>|\[[A-Za-z_/]+\]")
_PARTS = (
    "prefix",
    "prompt",
    "chat_sep",
    "suffix",
    "system_prefix",
    "stop_words",
    "thinking_prefix",
    "non_thinking_prefix",
)


def marks(name: str) -> list[str]:
    """What a model's tokenizer has a token of its own for."""
    from swift.template import TEMPLATE_MAPPING

    def of(part: Any) -> Iterator[str]:
        if isinstance(part, str):
            yield from _MARK.findall(part)
        elif isinstance(part, list | tuple):
            for one in part:
                yield from of(one)

    parts = [getattr(TEMPLATE_MAPPING[name], part, None) for part in _PARTS]
    return sorted({"<think>", "</think>", *of(parts)})


@pytest.mark.parametrize("name", [*TEMPLATES, *WRITE_TEXTS_ANEW])
def test_a_template_says_nothing(name: str, tmp_path: Path) -> None:
    size = tiny.files(tmp_path, tokens=marks(name))
    report = audited(tmp_path, template=name, top_k=size)
    assert problems(report) == []
    for code in ("RLS306", "RLS515", "RLS518"):
        assert outcome(report, code).verdict == "PASS", (code, outcome(report, code))
    assert bool(outcome(report, "RLS515").missed) == (name in WRITE_TEXTS_ANEW), (
        "texts that are written anew are not compared"
    )


@pytest.mark.parametrize("name", ["qwen3", "llama3", "glm4_7"])
def test_in_two_turns_the_ends_of_cut_turns_are_what_is_said(name: str, tmp_path: Path) -> None:
    size = tiny.files(tmp_path, tokens=marks(name))
    report = audited(tmp_path, template=name, top_k=size, **{of: ASKS[of] for of in ASKS if of != "template"})
    assert codes(report) == {"RLS518"}, problems(report)
    assert explained(report) == {"swift-ends-of-cut-turns"}
