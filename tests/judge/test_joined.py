"""What the trainers of a controlled run gave to their gradients and hold is joined, role by role, while the run goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from rlstep_hooks.judge.controlled.joined import MOST_WAITING, JoinedTrainers
from rlstep_hooks.judge.replay import report_of
from rlstep_hooks.record.events import Measured, Phase, ReplicaSums, Unobserved
from rlstep_hooks.record.ledger import CONTROLLER
from tests.judge.gradients import Run
from tests.scripted_phases import Live, PhaseCase, phase_plan, scripted_phases, write_records

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.events import AnyEvent, GradientParts
    from rlstep_hooks.record.values import Role
    from tests.scripted_phases import Script

PLAN = phase_plan(
    world_size=2,
    samples=8,
    minibatches=(4, 4),
    microbatch=2,
    rollouts=3,
    critic=phase_plan(world_size=2, samples=8, minibatches=(8,), microbatch=4),
)
"""Each rollout: 1 update of the critic and 2 of the policy, on 2 trainers."""
UPDATES: dict[Role, int] = {"policy": 6, "critic": 3}
CODES = ("RLS811", "RLS812", "RLS419")


def held(update: int, *of_ranks: int, role: Role = "policy") -> list[ReplicaSums]:
    """What trainers hold after an update."""
    return [ReplicaSums(update=update, moment="after", kind="weights", role=role, sums=(of,)) for of in of_ranks]


def recorded(faulty: Role | None = None, *, drifts: bool = False, without: tuple[str, int] | None = None) -> Script:
    """A run whose trainers record these with their numbers.

    Args:
        faulty: The role of which rank 1 gives no gradients from its second update on.
        drifts: Whether rank 1 holds other weights after the policy's fourth update.
        without: A trainer, and the update of the policy of which it records nothing.
    """
    events: dict[str, list[GradientParts | ReplicaSums]] = {"rank0": [], "rank1": []}
    for role, count in UPDATES.items():
        run = Run(
            limit=0.5,
            local=lambda update, rank, one, number, role=role: (  # type: ignore[misc]
                0.0 if role == faulty and update and rank == 1 else number
            ),
        )
        for update, parts in enumerate(run.updates(count)):
            looks = held(update, update, update + (drifts and role == "policy" and update == 3), role=role)
            for process, part, look in zip(events, parts, looks, strict=True):
                if role == "critic" or (process, update) != without:
                    events[process] += [msgspec.structs.replace(part, role=role), look]
    script = scripted_phases(PhaseCase(schedule=PLAN))
    for process, given in events.items():
        last = max(i for i, (p, e) in enumerate(script) if p == process and isinstance(e, Measured))
        script = [*script[:last], *((process, event) for event in given), *script[last:]]
    return script


def verdicts(report: Report) -> list[str]:
    """The outcomes of the rules that join trainers."""
    outcomes = {outcome.code: outcome.verdict for outcome in report.rules}
    return [outcomes[code] for code in CODES]


def test_trainers_that_reduce_and_hold_the_same_pass() -> None:
    report = Live().play(recorded()).run.report()
    assert (report.verdict, report.findings, verdicts(report)) == ("PASS", [], ["PASS"] * 3)
    outcomes = {outcome.code: outcome for outcome in report.rules}
    # Of each update of both roles 12 elements on 2 ranks, and one look.
    assert [outcomes[code].checks for code in CODES] == [216, 216, 9]
    assert not {outcomes[code].missed for code in CODES} - {0}


@pytest.mark.parametrize(("role", "rollout"), [("policy", 0), ("critic", 1)])
def test_a_rank_without_gradients_is_named_with_its_update(role: Role, rollout: int, tmp_path: Path) -> None:
    script = recorded(role)
    live = Live().play(script)
    (finding,) = [of for of in live.run.report().findings if of.code == "RLS811"]
    assert (finding.where.rank, finding.where.update, finding.where.rollout) == (1, 1, rollout)
    assert ("critic" in finding.expected) == (role == "critic")
    assert [of.code for of in live.findings] == ["RLS811"], "found while it runs, once"
    assert live.run.failed
    write_records(tmp_path, script)
    assert report_of(tmp_path).findings == live.run.report().findings


def test_a_trainer_that_drifts_is_named() -> None:
    report = Live().play(recorded(drifts=True)).run.report()
    (finding,) = report.findings
    assert (finding.code, finding.where.rank, finding.where.update, report.verdict) == ("RLS419", 1, 3, "FAIL")


@pytest.mark.parametrize("update", [2, 5])
def test_what_one_trainer_did_not_record_is_said(update: int) -> None:
    report = Live().play(recorded(without=("rank1", update))).run.report()
    outcomes = {outcome.code: outcome for outcome in report.rules}
    assert (report.verdict, verdicts(report)) == ("PASS", ["PASS"] * 3)
    assert outcomes["RLS811"].missed == 24
    assert outcomes["RLS419"].missed == 1
    assert "not all trainers" in outcomes["RLS811"].reason


def test_trainers_that_record_nothing_are_not_evaluated() -> None:
    script = scripted_phases(PhaseCase(schedule=PLAN))
    report = Live().play(script).run.report()
    assert (report.verdict, verdicts(report)) == ("PASS", ["NOT_EVALUATED"] * 3)
    first = next(i for i, (p, _) in enumerate(script) if p == "rank1")
    gone = Unobserved(what="reduction", why="swapped to a disk")
    told = Live().play([*script[: first + 1], ("rank1", gone), *script[first + 1 :]]).run.report()
    assert told.not_evaluated["RLS811"] == "trainer 1: swapped to a disk"


def test_one_trainer_joins_nothing() -> None:
    report = Live().play(scripted_phases(PhaseCase(schedule=phase_plan(rollouts=2)))).run.report()
    assert not {outcome.code for outcome in report.rules} & set(CODES)


def test_what_never_comes_of_one_trainer_is_kept_within_bounds() -> None:
    joined = JoinedTrainers(2, None)
    for update in range(3 * MOST_WAITING):
        joined.take(0, held(update, 1)[0])
    assert len(joined._waiting) == MOST_WAITING
    assert joined.outcomes([], ended=True)[-1].verdict == "NOT_EVALUATED"


def test_what_trainers_write_within_a_sync_for_an_evaluation_counts_too() -> None:
    script = recorded()
    last = max(i for i, (process, event) in enumerate(script) if process == CONTROLLER and isinstance(event, Phase))
    numbers = [event.number for process, event in script if process == CONTROLLER and _is_sync(event)]
    extra: Script = []
    for rank, part in enumerate(Run().updates(1)[0]):
        sync = Phase(name="sync", number=max(numbers) + 1)
        extra += [(f"rank{rank}", sync), (f"rank{rank}", msgspec.structs.replace(part, update=6))]
    extra.append((CONTROLLER, msgspec.structs.replace(sync, purpose="evaluation")))
    report = Live().play([*script[: last + 1], *extra, *script[last + 1 :]]).run.report()
    outcomes = {outcome.code: outcome for outcome in report.rules}
    assert (report.findings, outcomes["RLS811"].checks, outcomes["RLS811"].missed) == ([], 240, 0)


def _is_sync(event: AnyEvent) -> bool:
    return isinstance(event, Phase) and event.name == "sync"
