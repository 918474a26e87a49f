"""The links of a run: the parts of training, and the rules that check each part.

A verdict alone does not say what was checked. A report therefore says whether each link was right, wrong, or not observed, and why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from rlstep_hooks.judge.outcome import SAMPLED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rlstep_hooks.judge.outcome import RuleOutcome
    from rlstep_hooks.planning.finding import Finding

LinkState = Literal["right", "in part", "warned", "wrong", "not observed", "absent"]
"""The outcome of a link. It is right in part if some of it was not compared, and absent if the run never did what its rules check."""


class Link(msgspec.Struct, frozen=True):
    """One part of training."""

    name: str
    codes: tuple[str, ...]
    """Codes of the rules that look at the link, or beginnings of codes; a rule belongs to the longest one that fits."""
    matters: bool = True
    """Whether a run in which it was not observed is less than a full PASS."""


LINKS = (
    Link("counts and order", ("RLS2", "RLS307")),
    Link("samples", ("RLS306", "RLS5")),
    Link("ratio and old log-probs", ("RLS3",)),
    Link("forward of a row alone", ("RLS314",), matters=False),
    Link("reference log-probs", ("RLS308", "RLS311", "RLS315", "RLS411", "RLS414"), matters=False),
    Link("prompt groups and advantages", ("RLS501", "RLS505", "RLS508", "RLS515", "RLS516", "RLS517", "RLS518")),
    Link("loss", ("RLS8",)),
    Link(
        "gradient and optimizer",
        ("RLS803", "RLS806", "RLS807", "RLS808", "RLS809", "RLS810", "RLS811", "RLS812", "RLS813"),
        matters=False,
    ),
    Link("updates of the weights", ("RLS4",)),
    Link("learning rate", ("RLS6",)),
    Link(
        "weights of the sampler",
        ("RLS402", "RLS403", "RLS405", "RLS412", "RLS415", "RLS416", "RLS417", "RLS418", "RLS422"),
    ),
    Link("rows of the data set", ("RLS506",), matters=False),
    Link("evaluation", ("RLS504",), matters=False),
    Link("resume", ("RLS7",), matters=False),
    Link("checkpoints", ("RLS703",), matters=False),
    Link("agreement of the processes", ("RLS9", "RLS419"), matters=False),
    Link("configuration", ("RLS1",), matters=False),
)
"""All links, in the order in which they are shown."""


class LinkOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one link in one run."""

    name: str
    state: LinkState
    matters: bool = True
    codes: tuple[str, ...] = ()
    """Codes of the rules that found something wrong."""
    note: str = ""
    """What limits the checks of a right link."""
    share: str = ""
    """How much of a link in part was compared: "8 of 16 rollouts", "3 of 4 rules"."""
    reason: str = ""
    """Why the link, or a part of it, was not observed."""


def link_of(code: str) -> Link:
    """The link that a rule belongs to."""
    fitting = ((len(start), link) for link in LINKS for start in link.codes if code.startswith(start))
    return max(fitting, key=lambda found: found[0])[1]


def links_of(rules: Iterable[RuleOutcome], findings: Iterable[Finding]) -> list[LinkOutcome]:
    """The outcome of each link in a run with these outcomes and findings."""
    by_link: dict[str, list[RuleOutcome]] = {}
    for rule in rules:
        by_link.setdefault(link_of(rule.code).name, []).append(rule)
    wrong = {finding.code for finding in findings if finding.severity == "error"}
    return [_outcome(link, by_link[link.name], wrong) for link in LINKS if link.name in by_link]


def _outcome(link: Link, rules: Sequence[RuleOutcome], wrong: set[str]) -> LinkOutcome:
    found = [rule.code for rule in rules if rule.verdict == "FAIL"]
    errors = [code for code in found if code in wrong]
    if found:
        state: LinkState = "wrong" if errors else "warned"
        return LinkOutcome(name=link.name, state=state, matters=link.matters, codes=tuple(errors or found))
    # A rule that looks at a plan says nothing of what the run did, unless the link is about the plan alone.
    of_run = [rule for rule in rules if not rule.of_plan] or rules
    checked = [rule for rule in of_run if rule.verdict == "PASS"]
    unknown = [rule for rule in of_run if rule.verdict == "NOT_EVALUATED"]
    if not checked:
        # A reason that something could not be observed says more than a reason that there was nothing to observe.
        first = min(unknown, key=lambda rule: rule.idle)
        state = "absent" if first.idle and not link.matters else "not observed"
        return LinkOutcome(name=link.name, state=state, matters=link.matters, reason=first.reason)
    notes = ", ".join(dict.fromkeys(rule.note for rule in checked if rule.note))
    lacking = [rule for rule in unknown if not rule.idle]
    share, reason = _part(checked, lacking)
    state = "in part" if share else "right"
    return LinkOutcome(name=link.name, state=state, matters=link.matters, note=notes, share=share, reason=reason)


def _part(checked: Sequence[RuleOutcome], lacking: Sequence[RuleOutcome]) -> tuple[str, str]:
    """How much of a link was compared, and why not the rest; empty if all was."""
    shares, reasons = [], []
    if lacking:
        shares.append(f"{len(checked)} of {len(checked) + len(lacking)} rules")
        by_reason: dict[str, list[str]] = {}
        for rule in lacking:
            by_reason.setdefault(rule.reason, []).append(rule.code)
        reasons += [f"not {', '.join(codes)}: {reason}" for reason, codes in by_reason.items()]
    sampled = [rule.share for rule in checked if rule.share]
    if sampled:
        shares.append(min(sampled, key=lambda share: int(share.split()[0])))
        reasons.append(SAMPLED)
    for rule in checked:
        if rule.missed:
            shares.append(f"{rule.coverage} comparisons of {rule.code}")
            reasons.append(rule.reason)
    unproved = [rule for rule in checked if rule.unproved]
    if unproved:
        shares.append(f"{len(checked) - len(unproved)} of {len(checked)} rules proved here")
        reasons += dict.fromkeys(f"compared, but never proved in {rule.unproved}" for rule in unproved)
    return ", ".join(shares), "; ".join(dict.fromkeys(reasons))
