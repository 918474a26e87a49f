"""What mends a launch, in a terminal: each finding with the edits that take it away, and the plan before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from rich.console import Group
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from rlstep_hooks.launch.edits import Edit
from rlstep_hooks.planning.comparison import compare
from rlstep_hooks.planning.launched import Plan
from rlstep_hooks.show.difference import quantities

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from rlstep_hooks.planning.finding import Finding

_STYLES = {"error": "bold red", "warning": "bold yellow", "info": "bold cyan"}


class ShownOffer(msgspec.Struct, frozen=True, kw_only=True):
    """One way to mend a finding, in words and plans."""

    changes: tuple[str, ...]
    """Each change in words: "num_generations = 8 instead of 6"."""
    edits: tuple[Edit, ...]
    kept: tuple[str, ...]
    lost: tuple[str, ...]
    after: Plan


def fixes(before: Plan, found: Sequence[tuple[Finding, Sequence[ShownOffer]]]) -> RenderableType:
    """All findings of a plan with what mends them."""
    if not found:
        return Text("nothing to mend: the plan has no finding")
    return Group(*(_finding(before, finding, offers) for finding, offers in found))


def _finding(before: Plan, finding: Finding, offers: Sequence[ShownOffer]) -> RenderableType:
    head = Text.assemble((f"{finding.severity.upper()} {finding.code} ", _STYLES[finding.severity]), finding.title)
    parts: list[RenderableType] = [head, Padding(Text(finding.observed, style="dim"), (0, 0, 0, 2))]
    if not offers:
        parts.append(Padding(f"no change of one or two settings mends it: {escape(finding.fix)}", (0, 0, 0, 2)))
    for number, offer in enumerate(offers, 1):
        parts.append(Padding(_offer(before, offer, f"{number}. " if len(offers) > 1 else ""), (1, 0, 0, 2)))
    return Group(*parts, "")


def _offer(before: Plan, offer: ShownOffer, number: str) -> RenderableType:
    parts: list[RenderableType] = [Text(f"{number}{' and '.join(offer.changes)}", style="bold")]
    if offer.kept:
        parts.append(Text(f"keeps {_listed(offer.kept)}" + (f"; changes {_listed(offer.lost)}" if offer.lost else "")))
    new = [finding for finding in offer.after.findings if finding.code not in {each.code for each in before.findings}]
    parts += [
        Text(f"then {each.severity.upper()} {each.code} {each.title}", style="yellow")
        for each in new
        if each.severity != "info"
    ]
    parts += [_edit(edit) for edit in offer.edits]
    if not offer.edits:
        parts.append(Text("write it yourself: the value is not a plain one where it stands", style="yellow"))
    shown = msgspec.structs.replace(before, schedule=before.shown)
    if before.shown is not None and (differences := compare(shown, offer.after)):
        parts.append(quantities(differences, "before", "after"))
    return Group(*parts)


def _edit(edit: Edit) -> RenderableType:
    lines = [Text(edit.place, style="dim")]
    if edit.before:
        lines.append(Text(f"- {edit.before.strip()}", style="red"))
    if edit.after:
        lines.append(Text(f"+ {edit.after.strip()}", style="green"))
    return Group(*lines)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else names[0]
