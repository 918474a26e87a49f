"""Sentences that all views of a report share: the verdict, how training ended, what was not evaluated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.links import link_of, links_of
from rlstep_hooks.planning.finding import Where
from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.judge.links import LinkOutcome
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.finding import Finding


class NotEvaluated(msgspec.Struct, frozen=True):
    """What a report does not judge."""

    reasons: dict[str, str]
    """Parts of the run, in words, with the reason why they were not judged."""
    absent: list[str]
    """Parts that this run does not have."""


def verdict_words(report: Report) -> str:
    """The verdict as people read it: a run that passes with warnings says so."""
    words = report.verdict.replace("_", " ")
    warned = len({found.code for found in report.findings if found.severity == "warning" and not found.explained_by})
    return f"{words}, {number(warned, 'warnings')}" if warned and report.verdict == "PASS" else words


def first_problem(report: Report) -> Finding | None:
    """The finding to look at first: the first error, else the first warning."""
    return next((finding for finding in report.findings if finding.severity != "info"), None)


def rule_counts(report: Report) -> str:
    """How many rules passed, failed, warned or were not evaluated. A rule that only warned did not fail: a run with warnings passes."""
    errors = {finding.code for finding in report.findings if finding.severity == "error"}
    found = [rule.code for rule in report.rules if rule.verdict == "FAIL"]
    failed = sum(code in errors for code in found)
    passed = sum(rule.verdict == "PASS" for rule in report.rules)
    unknown = sum(rule.verdict == "NOT_EVALUATED" for rule in report.rules)
    warned = f", {len(found) - failed} warned" if len(found) > failed else ""
    return f"{passed} rules passed, {failed} failed{warned}, {unknown} not evaluated"


def shown(report: Report) -> str:
    """The outcome of the links in one line: which are wrong, how many are right, which were not observed."""
    links = links_of(report.rules, report.findings)
    by_state = {
        state: [link for link in links if link.state == state] for state in ("wrong", "warned", "right", "in part")
    }
    lacking = [link.name for link in links if link.state == "not observed"]
    parts = []
    if by_state["wrong"]:
        parts.append(f"wrong: {_named(by_state['wrong'])}")
    if by_state["warned"]:
        parts.append(f"to look at: {_named(by_state['warned'])}")
    right, noted = by_state["right"], [_noted(link) for link in by_state["right"] if link.note]
    if right:
        parts.append(f"{number(len(right), 'links')} right" + (f" ({', '.join(noted)})" if noted else ""))
    if by_state["in part"]:
        named = ", ".join(f"{_noted(link)} ({link.share})" for link in by_state["in part"])
        parts.append(f"{len(by_state['in part'])} right in part: {named}")
    if lacking:
        parts.append(f"not observed: {', '.join(lacking)}")
    return "; ".join(parts)


def _noted(link: LinkOutcome) -> str:
    return f"{link.name} {link.note}".rstrip()


def _named(links: Iterable[LinkOutcome]) -> str:
    return ", ".join(f"{link.name} ({', '.join(link.codes)})" for link in links)


def in_part(report: Report) -> list[str]:
    """Links of which only a part was compared, with how much of it and why: "loss (8 of 16 rollouts): ...". Of links that are wrong,
    the rules that could make only some of their checks."""
    links = links_of(report.rules, report.findings)
    by_reason: dict[str, list[str]] = {}
    for link in links:
        if link.state == "in part":
            by_reason.setdefault(link.reason, []).append(f"{_noted(link)} ({link.share})")
    partly = [f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()]
    names = {link.name for link in links if link.state in ("wrong", "warned")}
    rules = [rule for rule in report.rules if rule.part and link_of(rule.code).name in names]
    return partly + [f"{rule.code} {rule.title}: {rule.part}" for rule in rules]


def ending(report: Report) -> str:
    """How training ended and how far it came; empty if it reached its end."""
    came = how_far(report)
    return {
        "completed": "",
        "": f"training goes on: {came} so far",
        "stopped": f"training was stopped early, after {came}",
        "interrupted": f"training was interrupted, after {came}",
        "raised": f"training did not come to its end: it raised {report.error} after {came}",
        "cut": _cut(report, came),
        "exported": f"read from an export of {number(report.counts.rollouts, 'rollouts')}, which does not say how training ended",
    }[report.ending]


def _cut(report: Report, came: str) -> str:
    """What a record without an end tells of the end of training: nothing, where the disk took no more of it."""
    lost = report.not_evaluated.get("recording")
    if lost:
        return f"the record ends after {came}: {lost}"
    why = "interrupted, killed or still under way"
    return f"training did not come to its end, or could not be recorded to it ({why}): the record ends after {came}"


def how_far(report: Report) -> str:
    """Rollouts and updates made, including those before a resume: "5 of 16 rollouts and 10 of 32 updates"."""
    schedule, counts = report.schedule, report.counts
    updates = report.updates_before + counts.updates + counts.skipped_updates
    planned = (schedule.rollouts, schedule.updates) if schedule is not None else (None, None)
    most = "at most " if schedule is not None and schedule.updates_bound == "upper" else ""
    return f"{_of(report.rollouts_before + counts.rollouts, planned[0], 'rollouts')} and {_of(updates, planned[1], 'updates', most)}"


def _of(count: int, planned: int | None, unit: str, most: str = "") -> str:
    return number(count, unit) if planned is None else f"{number(count)} of {most}{number(planned, unit)}"


def sentence(report: Report) -> str:
    """The reason for the verdict."""
    problem, ended = first_problem(report), _as_sentence(ending(report))
    if report.verdict == "FAIL" and problem is not None:
        text = f"{problem.title}: expected {problem.expected}, observed {problem.observed}. {_place(problem)}".rstrip()
        return f"{text} {ended}".rstrip()
    if report.verdict == "NOT_EVALUATED":
        return _why_not_evaluated(report, ended)
    checks = sum(rule.checks for rule in report.rules if rule.verdict == "PASS")
    made = f"{number(report.counts.rollouts, 'rollouts')} and {number(report.counts.updates, 'updates')}"
    text = f"No difference from the plan in {made}, after {number(checks, 'comparisons')}. {ended}".rstrip()
    text = f"{text} {_as_sentence(shown(report))}".rstrip()
    text = f"{text} {far_from_published(report)}".rstrip()
    return text if problem is None else f"{text} To look at: {problem.title}. {_place(problem)}".rstrip()


def far_from_published(report: Report) -> str:
    """What was measured far outside of what published runs have, as sentences; empty if nothing was. The sources are said elsewhere."""
    return " ".join(f"Far from published runs: {line.words}." for line in report.health)


def _why_not_evaluated(report: Report, ended: str) -> str:
    reasons = report.not_evaluated
    compared = any(rule.verdict == "PASS" for rule in report.rules) and "order" not in reasons
    if report.ending in ("raised", "interrupted", "cut") and "order" not in reasons:
        first = _as_sentence(reasons.get("end", "")) if report.ending == "interrupted" else ""
        until = "Until then nothing differs from the plan." if compared else ""
        return " ".join(part for part in (ended, first, until) if part)
    reason = next((reasons[topic] for topic in ("order", "counts", "record", "samples") if topic in reasons), "")
    reason = reason or next(iter(reasons.values()), "nothing was observed that could be compared with a plan")
    return f"The run could not be compared with its plan: {reason}."


def _as_sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _place(finding: Finding) -> str:
    return "" if finding.where == Where() else f"First at {finding.where}."


def processes(report: Report) -> str:
    """The processes that recorded; empty if there was only one."""
    if report.processes < 2:
        return ""
    names = ", ".join(report.process_names)
    unnamed = report.processes - len(report.process_names)
    more = f" and {unnamed} more" if unnamed else ""
    return f"{number(report.processes)} processes" + (f": {names}{more}" if names else "")


_TOPIC_WORDS = {
    "order": "order of events",
    "counts": "counts beside the plan",
    "versions": "policy versions and lags",
    "log_ratio": "log ratio",
    "refresh": "old log-probs",
    "formula": "loss against its formula",
    "critic_loss": "critic's loss against its formula",
    "weights": "updates of the weights",
    "optimizer": "steps of the optimizer",
    "gradient": "gradients on their way",
    "trained_tokens": "tokens that get a gradient",
    "sampler": "weights of the sampler",
    "sampler_weights": "version of the sampler's weights",
    "drawn": "completions as draws from the policy",
    "entropies": "text against the policy's distribution",
    "clean_forward": "log-probs of rows against a forward of each alone",
    "clean_reference": "log-probs of the reference against its forward of a row alone",
    "layer_slope": "backward pass of the layers against their slope",
    "drawn_log_probs": "log-probs of the loss against those of the sampling",
    "delivery": "weights in the engine",
    "prefix_cache": "keys in the engine's prefix cache",
    "engine_distance": "cause of a distance from the engine",
    "learning_rate": "learning rate",
    "ranks": "other processes",
    "rows": "rows of the data set",
    "queue": "queue of samples",
    "correction": "importance weights",
    "recording": "record",
    "settings": "settings in force",
    "end": "rest of the run",
}


def not_evaluated(report: Report) -> NotEvaluated:
    """What could not be judged, with reasons: topics, quantities of the plan, links without any check, and single rules."""
    links = links_of(report.rules, report.findings)
    by_reason: dict[str, list[str]] = {}
    rules = {rule.code: rule for rule in report.rules}
    for name, reason in report.not_evaluated.items():
        if name not in rules:
            by_reason.setdefault(reason, []).append(_TOPIC_WORDS.get(name, name.replace("_", " ")))
    for link in links:
        if link.state == "not observed" and link.reason not in by_reason:
            by_reason[link.reason] = [link.name]
    partly = {link.name for link in links if link.state == "in part"}  # which says why
    for rule in report.rules:
        if link_of(rule.code).name in partly:
            continue
        if rule.verdict == "NOT_EVALUATED" and not rule.idle and rule.reason not in by_reason:
            by_reason[rule.reason] = [rule.title]
    reasons = {", ".join(dict.fromkeys(names)): reason for reason, names in by_reason.items()}
    return NotEvaluated(reasons, [link.name for link in links if link.state == "absent"])
