"""The reports for TRL and accelerate: each script prints what the report says, with a tiny model in the place of the hub's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.testing.tiny_trl import tiny_model, tiny_tokenizer
from tests.contributions.reports import DraftReport, printed_by, reports
from tests.systems.trl.conftest import RELEASE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(RELEASE.release < (1, 16), reason="the reports are about the newest release")


@pytest.mark.parametrize("report", reports("trl"), ids=lambda report: report.name)
def test_a_script_prints_what_its_report_says(report: DraftReport, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    for part in (tiny_model(tokenizer), tokenizer):
        part.save_pretrained(tmp_path / "model")
    assert printed_by(report, tmp_path, str(tmp_path / "model")) == report.printed
