"""The benchmark measures what it says: cycles with the audit and without it, and what its hooks take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks import StepAuditCallback
from tests.bench.hook_meter import Stopwatch, watched
from tests.bench.trl_overhead import ONE_PASS, Alternate, Cycles, train, train_with

if TYPE_CHECKING:
    from pathlib import Path


def test_neighbouring_cycles_are_compared_with_the_audit_and_without_it(tmp_path: Path) -> None:
    (group,) = train(tmp_path, ONE_PASS, Alternate.SETTLING + 2 + Alternate.GROUP)
    assert min(*group.wall, *group.processor) > 0


def test_hooks_that_wrap_and_hooks_that_torch_calls_are_timed(tmp_path: Path) -> None:
    watches: list[Stopwatch] = []
    cycles = Cycles(watches, ONE_PASS.updates_per_cycle)
    with watched(watches):
        train_with(tmp_path, ONE_PASS, 4, [StepAuditCallback(log_dir=tmp_path / "log"), cycles])
    assert len(cycles.cycles) == 4
    assert all(0 < processor < whole for whole, _, processor in cycles.cycles)
