"""What the page of each rule says of each system, made of the table (`rlstep_hooks.systems.engine.links`) as plain sentences.

The judge knows no system, so `limits.json` beside its rules keeps them for the pages:

    python -m rlstep_hooks.systems.engine.limits
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import rlstep_hooks.judge.rules
from rlstep_hooks.record.cadence import (
    ADAPTER_REQUESTS,
    ALL_OF_FIRST,
    FEWEST_TURNS,
    MOST_TURNS,
    PARTS,
    PROBED_PER_TENSOR,
    PROBED_TENSORS,
    READ_WHOLE,
    WHOLE_ONE_OF,
    WHOLE_SYNCS,
)
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.links import AS_SAID, RULES, in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rlstep_hooks.systems.engine.declaration import System
    from rlstep_hooks.systems.engine.links import Link

FILE = Path(rlstep_hooks.judge.rules.__file__).with_name("limits.json")

PROVED = "All of this is proved where one process trains a role, and in other deployments only where they are named."
PROBE = (
    f"A probe reads up to {PROBED_PER_TENSOR} weights of each of up to {PROBED_TENSORS} tensors. A fault that leaves all of these "
    "alone is not seen."
)
PROBED = ("RLS401", "RLS404", "RLS406", "RLS412", "RLS702", "RLS803", "RLS806", "RLS809")
"""Rules that look through the probe of weights."""
TURNS = (
    f"The first {WHOLE_SYNCS} syncs read all tensors. Later a single wrong tensor is found at its turn: within {FEWEST_TURNS} syncs, "
    f"in a model of many tensors within {MOST_TURNS}. What concerns many tensors is found at once."
)
REQUESTS = (
    "It looks with these requests after a delivery, counted from 1: "
    f"{', '.join(map(str, ADAPTER_REQUESTS[:-1]))} and {ADAPTER_REQUESTS[-1]}."
)
IN_PARTS = (
    f"Of a model of more than {READ_WHOLE // 10**6} million numbers all weights are read in the first cycle of rollouts and later in "
    f"one of {WHOLE_ONE_OF}. In cycles 2 to {ALL_OF_FIRST} each look reads one part of {PARTS} of each tensor of more than 4096 "
    "numbers, and the next update the next part: a write to a whole tensor shows at once there, a write to single weights within "
    f"{PARTS} updates."
)
HOW_FAR = {
    **dict.fromkeys(PROBED, (PROBE,)),
    "RLS404": (IN_PARTS, PROBE),
    "RLS415": (TURNS,),
    "RLS418": (REQUESTS,),
    "RLS419": (IN_PARTS,),
}
"""How far a rule sees in every system."""


def limits(systems: Iterable[System]) -> dict[str, list[str]]:
    """What the page of each rule says of each system, as sentences."""
    known = sorted(systems, key=lambda system: system.title.lower())
    codes = {code for of in RULES.values() for code in of} | {code for system in known for code in system.rules}
    found = {code: list(_limits(code, known)) for code in codes | {*HOW_FAR}}
    return dict(sorted(found.items()))


def cell(system: System, code: str) -> Link | None:
    """What a system says of a rule, else of a link that is this rule's alone or is not compared; None where it says nothing."""
    name = next((name for name in system.links if code in RULES[name]), None)
    link, of_rule = system.links[name] if name else None, system.rules.get(code)
    if of_rule is not None:
        return (
            of_rule
            if link is None
            else msgspec.structs.replace(of_rule, proved=tuple(dict.fromkeys((*link.proved, *of_rule.proved))))
        )
    return link if name and link and (len(RULES[name]) == 1 or not link.compared) else None


def _limits(code: str, systems: list[System]) -> Iterator[str]:
    cells = {system.title: found for system in systems if (found := cell(system, code)) is not None}
    compared = {title: link for title, link in cells.items() if link.compared}
    said = _grouped({title: in_words(link) for title, link in compared.items()})
    yield from (
        f"{titles.replace('a loop', 'A loop', titles.startswith('a loop'))}: {words}." for words, titles in said
    )
    reasons = _grouped({title: link.not_compared for title, link in cells.items() if not link.compared and link.exists})
    if reasons:
        yield f"Not compared: {'; '.join(f'{titles} ({why})' for why, titles in reasons)}."
    only = compared and all(link.compared != AS_SAID for link in compared.values())
    if only and len(cells) < len(systems):
        yield "No other system is known to show it."
    if only and any(code in of for of in RULES.values()):
        yield PROVED
    yield from HOW_FAR.get(code, ())


def _grouped(said: Mapping[str, str]) -> list[tuple[str, str]]:
    """What is said, each once, with all of which it is said."""
    found: dict[str, list[str]] = {}
    for title, words in said.items():
        found.setdefault(words, []).append(title)
    return [
        (words, " and ".join(filter(None, (", ".join(titles[:-1]), titles[-1])))) for words, titles in found.items()
    ]


def text_of(found: Mapping[str, list[str]]) -> str:
    """What the file holds."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1).decode() + "\n"


if __name__ == "__main__":
    FILE.write_text(text_of(limits(index.observed())), encoding="utf-8")
