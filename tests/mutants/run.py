"""A tiny training that mutants are tried in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.mutants.training import Training

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Run:
    """A training of one configuration.

    Attributes:
        name: What it is called.
        train: Trains in a folder with these callbacks, writes what the trainer logged, and returns the weights at the end.
        audit: Makes the audit that is given to it as a callback.
    """

    name: str
    train: Callable[[Path, list[Any], Training], None]
    audit: Callable[[], Any]

    def bare(self, folder: Path) -> dict[str, Any]:
        """Train without an audit."""
        training = Training()
        training.watch()
        self.train(folder, [], training)
        return training.to_json()

    def audited(self, folder: Path) -> dict[str, Any]:
        """Train with an audit: the training, the verdict, and the findings that are more than information."""
        training, audit = Training(), self.audit()
        training.watch()
        self.train(folder, [audit], training)
        report = audit.report
        return {
            "training": training.to_json(),
            "verdict": report.verdict,
            "findings": [
                {"code": f.code, "severity": f.severity, "title": f.title, "text": str(f)}
                for f in report.findings
                if f.severity != "info"
            ],
            "not_evaluated": dict(report.not_evaluated),
        }


@dataclass(frozen=True)
class Target:
    """A framework whose source is mutated.

    Attributes:
        modules: Modules of its trainers, whose functions are mutated.
        runs: The trainings.
    """

    modules: tuple[str, ...]
    runs: tuple[Run, ...]
