"""Damage to the records of a controller and its trainers accuses nobody, and does not pass where it hides an event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.judge.replay import report_of
from tests.examples import THOROUGH
from tests.scripted_phases import PhaseCase, phase_plan, scripted_phases, write_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def garbled(lines: list[bytes], number: int) -> list[bytes]:
    return [*lines[:number], lines[number][:9] + b"\n", *lines[number + 1 :]]


def repeated(lines: list[bytes], number: int) -> list[bytes]:
    return [*lines[:number], lines[number], *lines[number:]]


@pytest.mark.parametrize("process", ["controller", "rank0", "rank1"])
@pytest.mark.parametrize("damage", [garbled, repeated])
def test_a_damaged_line_accuses_nobody(
    tmp_path: Path, process: str, damage: Callable[[list[bytes], int], list[bytes]]
) -> None:
    paths = write_records(tmp_path, scripted_phases(PhaseCase(schedule=phase_plan(world_size=2))))
    whole = paths[process].read_bytes().splitlines(keepends=True)
    healthy = report_of(tmp_path)
    assert healthy.verdict == "PASS"
    for number in range(1, len(whole), 1 if THOROUGH else 2):
        paths[process].write_bytes(b"".join(damage(whole, number)))
        report = report_of(tmp_path)
        found = [finding.code for finding in report.findings if finding.severity != "info"]
        assert found == [], (number, whole[number])
        if report.verdict == "PASS":
            assert report.counts == healthy.counts, (number, whole[number])
