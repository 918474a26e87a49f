"""Samples of a rollout that fill no update, where the framework never trains them: those that data decide are named in the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from rlstep_hooks.record.events import MicroBatch, RunEnded, RunStarted, SampleRows
from tests.reports import report_of
from tests.scripted_phases import Live, PhaseCase, phase_plan, scripted_phases, write_records

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.finding import Finding
    from tests.scripted_phases import Script


def smaller(last: int, *, rollouts: int = 4, world_size: int = 1, known: bool = False, **fields: Any) -> Script:
    """A run whose every second rollout has fewer than 8 samples a process, of which 4 a process fill an update.

    Args:
        last: Samples of the smaller rollouts.
        rollouts: Rollouts of the run.
        world_size: Processes that train.
        known: Whether the plan knows the size of these rollouts.
        fields: More fields of the plan.
    """
    of_all = {"samples": 8 * world_size, "minibatches": (4 * world_size,) * 2, "microbatch": world_size}
    plan = phase_plan(
        world_size=world_size,
        rollouts=rollouts,
        last=last,
        per_epoch=2,
        remainder="drop",
        updates=None,
        rows_bound="data_dependent",
        **of_all,  # type: ignore[arg-type]
        **fields,
    )
    told = plan if known else msgspec.structs.replace(plan, samples_of_last_rollout=0, rollouts=None)
    return [
        (process, msgspec.structs.replace(event, schedule=told) if isinstance(event, RunStarted) else event)
        for process, event in scripted_phases(PhaseCase(schedule=plan))
    ]


def play(script: Script) -> list[Finding]:
    report = Live().play(script).run.report()
    return [finding for finding in report.findings if finding.severity != "info"]


def without_a_sample(script: Script) -> Script:
    """The first smaller rollout trains its third sample twice, in the place of its fourth."""
    changed: Script = []
    for process, event in script:
        if isinstance(event, MicroBatch) and event.trained and event.trained[0].rollout == 1:
            rows = tuple(min(row, 2) for row in event.trained[0].rows)
            event = msgspec.structs.replace(event, trained=(SampleRows(1, rows),))
        changed.append((process, event))
    return changed


def test_a_rollout_that_fills_one_update_and_a_half() -> None:
    (found,) = play(smaller(6))
    assert (found.code, found.severity, found.where.rollout, found.rollouts) == ("RLS502", "warning", 1, (1, 3))
    assert found.expected == "each sample trained 1 time on its process"
    assert found.observed == "2 of 6 samples left out of each pass: they do not fill an update of 4 samples"
    assert "never trained" in found.why


def test_the_last_rollout_of_a_run_is_looked_at_too() -> None:
    (found,) = play(smaller(6, rollouts=2))
    assert (found.code, found.where.rollout, found.occurrences) == ("RLS502", 1, 1)
    cut = [(p, msgspec.structs.replace(e, status="failed") if isinstance(e, RunEnded) else e) for p, e in smaller(6)]
    assert [found.occurrences for found in play(cut) if found.code == "RLS502"] == [1], "nobody knows what was to come"


def test_a_rollout_that_fills_no_update_at_all() -> None:
    (found,) = play(smaller(3))
    assert (found.code, found.severity, found.rollouts) == ("RLS502", "warning", (1, 3))
    assert found.observed.startswith("3 of 3 samples left out")


def test_every_pass_leaves_them_out() -> None:
    (found,) = play(smaller(7, reuse=2))
    assert (found.code, found.expected) == ("RLS502", "each sample trained 2 times on its process")
    assert found.observed.startswith("3 of 7 samples left out of each pass")


def test_processes_make_as_many_updates_as_the_one_with_fewest_samples() -> None:
    (found,) = play(smaller(12, world_size=2))
    assert found.observed.startswith("2 of 6 samples left out")
    assert found.where.rank is None


def test_a_rollout_that_updates_divide_is_right() -> None:
    assert play(smaller(4)) == []


def test_a_smaller_rollout_that_the_plan_knows() -> None:
    (found,) = play(smaller(6, known=True))
    assert (found.code, found.severity, found.rollouts) == ("RLS502", "warning", (1, 3))
    assert play(smaller(4, known=True)) == []


def test_a_sample_that_is_lost_beside_them_is_an_error() -> None:
    found = [
        (one.severity, one.where.rollout, one.observed)
        for one in play(without_a_sample(smaller(6)))
        if one.code == "RLS502"
    ]
    assert found[0] == ("error", 1, "a sample trained 2 times in 1 pass")
    assert ("error", 1, "3 of 6 samples trained less often (3 never)") not in found, "one finding for a rollout"
    assert [one[1] for one in found if one[0] == "warning"] == [3]


@pytest.mark.parametrize("known", [False, True])
def test_openrlhf_is_named_where_it_does_so(known: bool, tmp_path: Path) -> None:
    settings = {"train.dynamic_batch_enable": True}
    script = smaller(6, known=known, framework="OpenRLHF", version="0.11.2", settings=settings)
    write_records(tmp_path, script)
    (found,) = [one for one in report_of(tmp_path).findings if one.severity != "info"]
    assert (found.code, found.severity, found.deviation) == (
        "RLS502",
        "warning",
        "openrlhf-dynamic-batch-drops-the-rest",
    )
    assert "setup_dynamic_batch (trainer/ppo_utils/replay_buffer.py)" in found.why
    assert "train.batch_size" in found.fix


def test_a_sample_that_openrlhf_does_not_lose_itself_is_no_deviation(tmp_path: Path) -> None:
    settings = {"train.dynamic_batch_enable": True}
    script = without_a_sample(smaller(6, framework="OpenRLHF", version="0.11.2", settings=settings))
    write_records(tmp_path, script)
    found = [one for one in report_of(tmp_path).findings if one.code == "RLS502" and one.severity == "error"]
    assert [(one.deviation, one.where.rollout) for one in found] == [("", 1)]
