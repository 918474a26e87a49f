"""A rule's page: the sections of its docstring, when it is not evaluated, and what of it is compared in which system."""

from __future__ import annotations

import inspect
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.rules.base import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADINGS = ("What it checks", "Why it matters", "Example", "What to do", "Known limits", "Sources")
"""Sections that the docstring of each rule has, in this order, below the sentence that says what the rule finds."""

EXAMPLE = "Example"
LIMITS = "Known limits"
NOT_EVALUATED = "When it is not evaluated"


class Section(msgspec.Struct, frozen=True):
    """One section of a page."""

    heading: str
    """The heading of the section; empty for what stands above the first heading."""
    text: str
    """The text as it was written, without its indentation."""

    @property
    def blocks(self) -> list[str]:
        """Paragraphs and list items of the section, each as one line; items begin with "- "."""
        found: list[str] = []
        goes_on = False
        for line in self.text.splitlines():
            if goes_on and line.strip() and not line.startswith("- "):
                found[-1] += f" {line.strip()}"
            elif line.strip():
                found.append(line.strip())
            goes_on = bool(line.strip())
        return found


PLAN_ALONE = (
    "- Only plans of launches and of live configurations show it (`rlstep plan`, `assert_schedule`). The report of a run does not "
    "repeat it."
)


def page(rule: type[Rule]) -> list[Section]:
    """The sections of a rule's page. To its own limits come those of each system, of which the judge knows what its file says."""
    written = list(_sections(inspect.cleandoc(rule.__doc__ or "")))
    place = next((place for place, section in enumerate(written) if section.heading == LIMITS), len(written))
    if rule.seen_in == "plan":
        more = [PLAN_ALONE]
    else:
        more = [f"- {limit}" for limit in _of_systems().get(rule.code, ())]
        written.insert(place, Section(NOT_EVALUATED, _not_evaluated(rule)))
        place += 1
    if place < len(written) and more:
        written[place] = Section(LIMITS, "\n".join(filter(None, (written[place].text, *more))))
    return written


@lru_cache(maxsize=1)
def _of_systems() -> dict[str, list[str]]:
    return msgspec.json.decode(Path(__file__).with_name("limits.json").read_bytes(), type=dict[str, list[str]])


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
