"""Findings of launch files as SARIF 2.1.0, which code hosts and editors show at the line.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from rlstep_hooks.judge.rules.catalogue import BY_CODE
from rlstep_hooks.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.launch.text import Place
    from rlstep_hooks.planning.checked import Checked

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def sarif(checked: Sequence[Checked]) -> dict[str, Any]:
    """The log of one run over some files."""
    placed = [each for one in checked for each in one.findings]
    codes = sorted({each.finding.code for each in placed})
    results = [
        {
            "ruleId": each.finding.code,
            "ruleIndex": codes.index(each.finding.code),
            "level": _LEVELS[each.finding.severity],
            "message": {
                "text": f"{each.finding.title}: {each.finding.observed}. {each.finding.why}. Fix: {each.finding.fix}."
            },
            "locations": [_location(each.place)],
        }
        for each in placed
    ]
    driver = {"name": "rlstep", "version": __version__, "semanticVersion": __version__, "rules": [*map(_rule, codes)]}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _rule(code: str) -> dict[str, Any]:
    rule = BY_CODE[code]
    summary = (rule.__doc__ or rule.title).strip().splitlines()[0]
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in rule.title.replace("-", " ").split() if word.isalnum()),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": summary},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _location(place: Place) -> dict[str, Any]:
    region = {"startLine": max(place.line, 1), **({"startColumn": place.column} if place.line and place.column else {})}
    return {"physicalLocation": {"artifactLocation": {"uri": PurePath(place.source).as_posix()}, "region": region}}
