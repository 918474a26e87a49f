"""Each report has the form of one, and its script is short and knows nothing of this package. Running them is for their frameworks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.contributions.reports import DraftReport, reports

SYSTEMS = Path(__file__).parents[1] / "systems"


@pytest.mark.parametrize("report", reports(), ids=lambda report: report.name)
def test_a_script_is_short_and_without_this_package(report: DraftReport) -> None:
    ast.parse(report.script)
    assert len(report.script.splitlines()) <= 40
    assert "rlstep" not in report.script
    assert report.printed


def test_each_report_is_run_by_a_session() -> None:
    """The `test_reports.py` of these folders."""
    folders = {"trl": "trl", "openrlhf": "openrlhf", "verl": "verl", "ranks-quick": "trl_ranks", "skyrl": "skyrl"}
    assert {report.environment for report in reports()} == set(folders)
    assert all((SYSTEMS / folder / "test_reports.py").exists() for folder in folders.values())
