"""Completions that several trainers have are joined: each of them sees the copies among its own alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from rlstep_hooks.judge.ranks.copies import MOST_KEPT, CopiesAmongRanks
from rlstep_hooks.judge.replay import report_of
from rlstep_hooks.observe.improbable import MOST_IMPROBABLE, PROVED, Improbable, text_of
from rlstep_hooks.record.events import Generated, Measured, Rollout, RolloutValues
from rlstep_hooks.record.wire import decode, encode
from tests.scripted_phases import Live, PhaseCase, phase_plan, scripted_phases, write_records

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scripted_phases import Script

SAMPLES = 8


def of_rollout(index: int, texts: dict[str, int], *, drawn: bool = True, **gap: float) -> list[Rollout | Measured]:
    """What one process tells of a rollout: the improbable completions with their nats."""
    kept = Improbable()
    for text, nats in texts.items():
        kept.add(text_of(text.encode()), float(nats))
    values = RolloutValues(index=index, improbable=str(kept), **gap)  # type: ignore[arg-type]
    measured = decode(encode(Measured(rollouts=(values,))))
    assert isinstance(measured, Measured)
    rollout = Rollout(
        at=0.0, index=index, samples=SAMPLES, policy_version=3, sampler_version=3, all_drawn=drawn, own_samples=4
    )
    return [rollout, measured]


def joined(*of_ranks: list[Rollout | Measured]) -> CopiesAmongRanks:
    """What was found in these events of each rank."""
    copies = CopiesAmongRanks(len(of_ranks))
    for rank, events in enumerate(of_ranks):
        for event in events:
            copies.take(rank, event)
    return copies


def test_a_completion_of_two_processes_is_found_at_its_rollout() -> None:
    first, later = of_rollout(4, {"one": 90, "other": 80}), of_rollout(5, {"other": 80})
    copies = joined([*first, *later], [*of_rollout(4, {"third": 70, "one": 90}), *of_rollout(5, {"other": 81})])
    (finding,) = copies.findings
    assert (finding.code, finding.where.rollout, finding.where.rank) == ("RLS519", 4, 1)
    assert finding.observed == "1 of rank 1 equal another of the rollout, of rank 0, token by token"
    assert "exp(-90)" in finding.why
    assert (finding.occurrences, finding.rollouts) == (2, (4, 5))


@pytest.mark.parametrize("gap", [{}, {"sampler_gap_max": 9.0, "sampler_gap_mean": 9.0, "sampler_gap_tokens": 40}])
def test_what_chance_or_another_engine_may_repeat_is_not_found(gap: dict[str, float]) -> None:
    """At most exp(-30) over the square of 8 samples, and the engine may have given it more."""
    nats = 90 if gap else 34
    of_each = of_rollout(0, {"one": nats}, **gap)
    assert joined(of_each, of_each).findings == []


def test_what_the_policy_did_not_draw_is_not_compared() -> None:
    of_each = of_rollout(0, {"one": 90}, drawn=False)
    assert joined(of_each, of_each).findings == []


def test_few_rollouts_are_kept() -> None:
    copies = joined([event for index in range(3 * MOST_KEPT) for event in of_rollout(index, {"one": 90})], [])
    assert len(copies._texts) == MOST_KEPT


def test_rollouts_that_are_not_compared_leave_nothing_behind() -> None:
    events = [event for index in range(100) for event in of_rollout(index, {}) if isinstance(event, Rollout)]
    assert len(joined(events, events)._samples) == 2 * MOST_KEPT


def test_processes_keep_the_same_ones_of_many_completions() -> None:
    texts = [number.to_bytes(4, "big") for number in range(4 * MOST_IMPROBABLE)]
    one, other = Improbable(), Improbable()
    for text in texts:
        one.add(text_of(text), PROVED + 20)
    for text in reversed(texts):
        other.add(text_of(text), PROVED + 20.4)
    assert str(one) == str(other)
    assert len(str(one).split()) == MOST_IMPROBABLE
    short = Improbable()
    short.add(text_of(texts[0]), PROVED)
    assert str(short) == ""


def recorded() -> Script:
    """A run of two trainers that have one improbable completion in common in rollout 1."""
    plan = phase_plan(world_size=2, samples=8, minibatches=(4, 4), microbatch=2, rollouts=3)
    script = []
    for process, event in scripted_phases(PhaseCase(schedule=plan)):
        now = msgspec.structs.replace(event, all_drawn=True) if isinstance(event, Generated) else event
        if isinstance(now, Measured):
            values = [msgspec.structs.replace(of, improbable="05:90") if of.index == 1 else of for of in now.rollouts]
            now = msgspec.structs.replace(now, rollouts=tuple(values))
        script.append((process, now))
    return script


def test_a_live_run_and_its_record_have_the_same_finding(tmp_path: Path) -> None:
    live = Live().play(recorded())
    report = live.run.report()
    assert [(finding.code, finding.where.rollout, finding.where.rank) for finding in report.findings] == [
        ("RLS519", 1, 1)
    ]
    assert [finding.code for finding in live.findings] == ["RLS519"]
    assert {rule.code: rule.verdict for rule in report.rules}["RLS519"] == "FAIL"
    write_records(tmp_path, recorded())
    assert report_of(tmp_path).findings == report.findings
