"""Faults of whole trainers that an audit is attached to (AReaL, RLlib, SkyRL), and how one of them is found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.planning.finding import Where
from tests.detection.outcomes import Detected, delay_of, note

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.events import AnyEvent


@dataclass(frozen=True)
class Fault:
    """One mistake."""

    name: str
    breaks: Callable[[Any, pytest.MonkeyPatch], None]
    """Gets the trainer, and what undoes patches after the test."""
    code: str
    says: str = ""
    """Words of the finding's cause or observation."""
    settings: dict[str, Any] = field(default_factory=dict)
    first: int | None = 0
    """The rollout in which it is first seen; None where the data decide it."""
    keeps: bool = False
    """Whether the server that samples keeps its first weights."""


def nothing(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    """The settings, or the server that samples, are the fault."""


class Events:
    """Keeps the events of a run."""

    def __init__(self) -> None:
        self.heard_so_far: list[AnyEvent] = []

    def heard(self, event: AnyEvent, judge: Any) -> None:
        self.heard_so_far.append(event)


def find(fault: Fault, framework: str, train: Callable[..., Report], patch: pytest.MonkeyPatch) -> None:
    """Train with a fault: it is found by its rule, at its rollout, with its cause.

    Args:
        fault: The fault.
        framework: The framework's name, for the table of what was detected.
        train: Trains with keywords: what breaks the trainer, whether the server keeps its weights, the audit's options, settings.
        patch: Undoes patches after the test.
    """
    patch.setattr("rlstep_hooks.session.session.INTERVAL", 0.0)  # numbers come with each rollout
    events = Events()
    report = train(
        breaks=lambda trainer: fault.breaks(trainer, patch),
        keeps=fault.keeps,
        options={"listeners": (events,)},
        **fault.settings,
    )
    # A rule may have several findings, of different causes.
    found = [finding for finding in report.findings if finding.severity == "error" and finding.code == fault.code]
    where = Where(rollout=fault.first or 0)
    note(
        Detected(
            framework=framework,
            fault=fault.name,
            report="textbook PPO",
            code=fault.code,
            found=bool(found),
            delay=delay_of(events.heard_so_far, Judge(), fault.code, where),
            early=0,  # each is there from the first rollout on
        )
    )
    assert report.verdict == "FAIL", report.not_evaluated
    assert any(
        fault.says in f"{finding.why} {finding.observed} {finding.fix}"
        and (fault.first is None or finding.where.rollout == fault.first)
        for finding in found
    ), "\n".join(map(str, report.findings))
