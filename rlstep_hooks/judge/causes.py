"""One cause, one headline: folds findings below the finding whose cause brings them about. Pure, and only a report does it.

A finding explains another one only if its rule declares that it can (`Rule.produces`), if it begins at the same event or before it,
and if the other one was seen in no rollout that the cause does not reach. A second fault therefore keeps its own headline as soon as
it is of another kind, begins earlier, or shows where the first one cannot be its reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.effects import DISAGREEMENT, MADE_DIFFERENTLY, Effects
from rlstep_hooks.planning.finding import LISTED_ROLLOUTS, SEVERITIES, Finding, Where

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A finding, and what its rule knows of its cause."""

    finding: Finding
    at: int
    """How many events had been judged when the finding was made."""
    variant: str = ""
    """Which of its rule's findings it is."""
    produces: tuple[Effects, ...] = ()
    """What the cause of the finding brings about."""
    exact: bool = True
    """Whether it is certain though it is a warning: a rule that compares values with a tolerance warns where it doubts."""


def fold(found: Sequence[Found]) -> list[Finding]:
    """The findings of one process: each headline, followed by the findings that it explains."""
    found = sorted(found, key=lambda each: (SEVERITIES.index(each.finding.severity), each.at))
    everything = range(len(found))
    effects = [[effect for effect in everything if _explains(found, cause, effect)] for cause in everything]
    heads = _headlines(effects)
    explained: dict[int, int] = {}
    for headline in heads:
        for effect in _reached(effects, headline):
            if effect not in heads:
                explained.setdefault(effect, headline)
    return _grouped([each.finding for each in found], explained)


def regroup(findings: Sequence[Finding]) -> list[Finding]:
    """Findings of several processes, each of which has been folded: what one explains stands below it, what nothing here explains any
    more is a headline, and a disagreement of the processes stands below what one of them did in that rollout."""
    ordered = sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
    heads = {finding.code: at for at, finding in reversed([*enumerate(ordered)]) if not finding.explained_by}
    explained = {at: heads[each.explained_by] for at, each in enumerate(ordered) if each.explained_by in heads}
    for at, disagreement in enumerate(ordered):
        if disagreement.code == DISAGREEMENT and disagreement.where.rollout is not None:
            places = (place for place, each in enumerate(ordered) if _makes_processes_differ(each, disagreement))
            cause = next(places, None)
            if cause is not None:
                explained[at] = explained.get(cause, cause)
    return _grouped(ordered, explained)


def _makes_processes_differ(finding: Finding, disagreement: Finding) -> bool:
    return finding.code in MADE_DIFFERENTLY and disagreement.where.rollout in _rollouts(finding)


def headed_by(findings: Sequence[Finding], head: int, echoes: Sequence[int]) -> list[Finding]:
    """Folded findings with some of them, and what those explain, below one of them."""
    places: list[int] = []
    for place, finding in enumerate(findings):
        places.append(places[-1] if finding.explained_by else place)
    explained = {at: headline for at, headline in enumerate(places) if at != headline}
    moved = {places[echo] for echo in echoes if not findings[echo].explained_by} - {head}
    explained |= {at: head for at, headline in enumerate(places) if headline in moved}
    return _grouped(findings, explained)


def groups(findings: Iterable[Finding]) -> list[tuple[Finding, list[Finding]]]:
    """Each headline with the findings that it explains. A finding whose headline was left out is one itself."""
    grouped: list[tuple[Finding, list[Finding]]] = []
    for finding in findings:
        if grouped and finding.explained_by == grouped[-1][0].code:
            grouped[-1][1].append(finding)
        else:
            grouped.append((finding, []))
    return grouped


def _headlines(effects: Sequence[Sequence[int]]) -> list[int]:
    """The findings that no other explains. Of those that explain each other in a circle, it is the first."""
    explained = {effect for of_cause in effects for effect in of_cause}
    heads = [each for each in range(len(effects)) if each not in explained]
    reached = {each for head in heads for each in (head, *_reached(effects, head))}
    for each in range(len(effects)):
        if each not in reached:
            heads.append(each)
            reached |= {each, *_reached(effects, each)}
    return heads


def _reached(effects: Sequence[Sequence[int]], cause: int) -> list[int]:
    """What a finding explains, and what that explains in turn: the nearest first."""
    reached = {cause}
    nearest = [cause]
    for each in nearest:
        new = [effect for effect in effects[each] if effect not in reached]
        reached.update(new)
        nearest += new
    return nearest[1:]


def _explains(found: Sequence[Found], cause: int, effect: int) -> bool:
    """Whether one finding explains another; of two that would explain each other, the first one found."""
    if cause == effect or not _can_explain(found[cause], found[effect]):
        return False
    return cause < effect or not _can_explain(found[effect], found[cause])


def _can_explain(cause: Found, effect: Found) -> bool:
    severities = cause.finding.severity, effect.finding.severity
    if "info" in severities or cause.finding.where.rank != effect.finding.where.rank:
        return False
    if severities == ("warning", "error") and not cause.exact:
        return False
    names = {effect.finding.code, f"{effect.finding.code} {effect.variant}"}
    return any(not names.isdisjoint(each.codes) and _reaches(each, cause, effect) for each in cause.produces)


def _reaches(effects: Effects, cause: Found, effect: Found) -> bool:
    """Whether a finding lies where the cause's effects can be."""
    if effects.first is None:
        return True
    of_cause, of_effect = _rollouts(cause.finding), _rollouts(effect.finding)
    if not of_effect:
        return cause.at <= effect.at
    if not of_cause:
        return True
    begins = of_cause[0] + effects.first
    if of_effect[0] < begins or (of_effect[0] == of_cause[0] and not effects.within and not _is_before(cause, effect)):
        return False
    if effects.last is None:
        return True
    # A finding lists its first rollouts only; what lies behind the last one that the cause lists is not known of it.
    known = of_cause[-1] + effects.last if len(of_cause) == LISTED_ROLLOUTS else None
    reach = {each + more for each in of_cause for more in range(effects.first, effects.last + 1)}
    return all(each in reach or (known is not None and each > known) for each in of_effect)


def _rollouts(finding: Finding) -> tuple[int, ...]:
    """The rollouts in which a finding was seen, in order; none if it is about no rollout."""
    first = () if finding.where.rollout is None else (finding.where.rollout,)
    return tuple(sorted({*first, *finding.rollouts}))


def _is_before(cause: Found, effect: Found) -> bool:
    """Whether the cause is at the same place within a rollout or before it. A number that a place lacks is not compared."""
    ours, theirs = _within(cause.finding.where), _within(effect.finding.where)
    for one, other in zip(ours, theirs, strict=True):
        if one is None or other is None:
            return True
        if one != other:
            return one < other
    return True


def _within(where: Where) -> tuple[int | None, int | None]:
    return where.update, where.microbatch


def _grouped(findings: Sequence[Finding], explained: dict[int, int]) -> list[Finding]:
    """Findings in groups, those with the worst first; within a group the headline, then what it explains."""
    members: dict[int, list[int]] = {at: [] for at in range(len(findings)) if at not in explained}
    for at, headline in sorted(explained.items()):
        members[headline].append(at)
    ordered = []
    # The findings come with the worst first, so a group stands where its worst member would.
    for head in sorted(members, key=lambda head: min([head, *members[head]])):
        code = findings[head].code
        ordered.append(msgspec.structs.replace(findings[head], explained_by=""))
        ordered += [msgspec.structs.replace(findings[at], explained_by=code) for at in members[head]]
    return ordered
