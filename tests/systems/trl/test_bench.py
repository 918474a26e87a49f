"""The benchmark measures what it says: cycles with the audit and without it, and what its hooks take."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from rlstep_hooks import StepAuditCallback
from tests.bench.hook_meter import Stopwatch, watched
from tests.bench.trl_overhead import ONE_PASS, Cycles, TakesTurns, Turns, quiet, train, trainer_with

if TYPE_CHECKING:
    from pathlib import Path


def test_neighbouring_cycles_are_compared_with_the_audit_and_without_it(tmp_path: Path) -> None:
    (group,) = train(tmp_path, ONE_PASS, TakesTurns.SETTLING + TakesTurns.GROUP // 2)
    assert min(*group.wall, *group.processor) > 0


def test_two_threads_go_on_in_turns_until_one_leaves() -> None:
    turns, said = Turns(), []

    def goes_on(*, audited: bool, steps: int) -> None:
        for _ in range(steps):
            turns.wait(audited=audited)
            said.append(audited)
            turns.end()
        turns.leave()

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(goes_on, audited=True, steps=5), threads.submit(goes_on, audited=False, steps=8)]:
            done.result(timeout=30)
    assert said == [True, False, False, True, True, False, False, True, True, False, False, False, False]


def test_hooks_that_wrap_and_hooks_that_torch_calls_are_timed(tmp_path: Path) -> None:
    watches: list[Stopwatch] = []
    cycles = Cycles(watches, ONE_PASS.updates_per_cycle)
    with watched(watches), quiet():
        trainer_with(tmp_path, ONE_PASS, 4, [StepAuditCallback(log_dir=tmp_path / "log"), cycles]).train()
    assert len(cycles.cycles) == 4
    assert all(0 < processor < whole for whole, _, processor in cycles.cycles)
