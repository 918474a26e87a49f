"""Each report has the form of one, and its script is short and knows nothing of this package. Running them is for their frameworks."""

from __future__ import annotations

import ast

import pytest

from tests.contributions.reports import DraftReport, reports


@pytest.mark.parametrize("report", reports(), ids=lambda report: report.name)
def test_a_script_is_short_and_without_this_package(report: DraftReport) -> None:
    ast.parse(report.script)
    assert len(report.script.splitlines()) <= 40
    assert "rlstep" not in report.script
    assert report.printed


def test_each_report_is_run_by_a_session() -> None:
    """tests/systems/trl/test_reports.py and tests/systems/openrlhf/test_reports.py."""
    assert {report.environment for report in reports()} == {"trl", "openrlhf"}
