"""The reports for SkyRL: each script prints what the report says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contributions.reports import DraftReport, printed_by, reports

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("report", reports("skyrl"), ids=lambda report: report.name)
def test_a_script_prints_what_its_report_says(report: DraftReport, tmp_path: Path) -> None:
    assert printed_by(report, tmp_path) == report.printed
