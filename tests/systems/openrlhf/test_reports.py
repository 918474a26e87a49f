"""The reports for OpenRLHF: each script prints what the report says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.systems.openrlhf.rehearse.cpu import STUBS
from tests.contributions.reports import DraftReport, printed_by, reports

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("report", reports("openrlhf"), ids=lambda report: report.name)
def test_a_script_prints_what_its_report_says(
    report: DraftReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # OpenRLHF imports flash-attn, which needs a GPU's compiler to be installed.
    monkeypatch.setenv("PYTHONPATH", str(STUBS))
    assert printed_by(report, tmp_path) == report.printed
