"""A rule's page: the sections of its docstring, and when it is not evaluated."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.rules.base import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADINGS = ("What it checks", "Why it matters", "Example", "What to do", "Known limits", "Sources")
"""Sections that the docstring of each rule has, in this order, below the sentence that says what the rule finds."""

EXAMPLE = "Example"
NOT_EVALUATED = "When it is not evaluated"


class Section(msgspec.Struct, frozen=True):
    """One section of a page."""

    heading: str
    """Empty for what stands above the first heading."""
    text: str
    """As it was written, without its indentation."""

    @property
    def blocks(self) -> list[str]:
        """Its paragraphs and list items, each as one line; items begin with "- "."""
        found: list[str] = []
        goes_on = False
        for line in self.text.splitlines():
            if goes_on and line.strip() and not line.startswith("- "):
                found[-1] += f" {line.strip()}"
            elif line.strip():
                found.append(line.strip())
            goes_on = bool(line.strip())
        return found


def page(rule: type[Rule]) -> list[Section]:
    """The sections of a rule's page."""
    written = list(_sections(inspect.cleandoc(rule.__doc__ or "")))
    if rule.seen_in == "plan":
        return written
    limits = next((place for place, section in enumerate(written) if section.heading == "Known limits"), len(written))
    return [*written[:limits], Section(NOT_EVALUATED, _not_evaluated(rule)), *written[limits:]]


def _sections(text: str) -> Iterator[Section]:
    heading, *rest = re.split(rf"^({'|'.join(HEADINGS)}):$", text, flags=re.MULTILINE)
    yield Section("", heading.strip())
    for name, body in zip(rest[::2], rest[1::2], strict=True):
        yield Section(name, inspect.cleandoc(body).strip("\n"))


def _not_evaluated(rule: type[Rule]) -> str:
    reasons = [f"- {rule.nothing_seen}"]
    if rule.cannot_see != Rule.cannot_see:
        reasons.append(f"- {rule.cannot_see}")
    if rule.topics:
        names = ", ".join(f"`{topic}`" for topic in rule.topics)
        reasons.append(f"- the observer could not see {names}; the report then gives the reason")
    return "\n".join(reasons)
