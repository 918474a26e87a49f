"""What several test modules of real training share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.ledger import MemoryLedger

if TYPE_CHECKING:
    from rlstep_hooks import StepAuditCallback
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.events import AnyEvent


def events_of(audit: StepAuditCallback) -> list[AnyEvent]:
    """The events of an audit that keeps them in memory."""
    assert audit._session.recorder is not None
    ledger = audit._session.recorder.ledger
    assert isinstance(ledger, MemoryLedger)
    return list(ledger.events)


def problems(report: Report) -> list[str]:
    """Errors and warnings as text, and hooks that failed though no test broke them, for a readable assertion."""
    failed = [
        f"{what}: {why}"
        for what, why in report.not_evaluated.items()
        if "a hook failed" in why and "broken on purpose" not in why
    ]
    return [*(str(finding) for finding in report.findings if finding.severity != "info"), *failed]


def codes(report: Report) -> set[str]:
    """Codes of errors and warnings."""
    return {finding.code for finding in report.findings if finding.severity != "info"}


def explained(report: Report) -> set[str]:
    """Names of the known deviations that explain findings."""
    return {finding.deviation for finding in report.findings if finding.deviation}


def trained(trainer: Any, **arguments: Any) -> None:
    """Train; a helper so that one place can silence what transformers prints."""
    trainer.train(**arguments)
