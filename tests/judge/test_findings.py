"""What a finding says: which rollouts it covers, which faults are told apart, and why it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.count_rows import count_rows
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.links import LINKS, link_of, links_of
from rlstep_hooks.judge.ranks.disagreement import shape, why_it_matters
from rlstep_hooks.judge.rules import BY_CODE
from rlstep_hooks.judge.standing import Tally
from rlstep_hooks.judge.timeline import LoaderPosition
from rlstep_hooks.record.events import (
    EpochEnd,
    Evaluated,
    Measured,
    MicroBatch,
    Rollout,
    RunEnded,
    Unobserved,
    Update,
    WeightSync,
)
from rlstep_hooks.show.live import live_line
from rlstep_hooks.show.summary import shown
from tests.scripted import make_plan, scripted_run
from tests.scripted_phases import PhaseCase, composed, phase_plan, scripted_phases

if TYPE_CHECKING:
    from rlstep_hooks.judge.outcome import RuleOutcome
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import AnyEvent

PLAN = make_plan(iterations=2, max_steps=16)
"""8 rollouts of 2 updates."""


def judge(events: list[AnyEvent]) -> Report:
    judged = Judge()
    for event in events:
        judged.observe(event)
    return judged.report()


def found(events: list[AnyEvent], code: str) -> list[Finding]:
    return [finding for finding in judge(events).findings if finding.code == code]


def outcome(report: Report, code: str) -> RuleOutcome:
    (result,) = (rule for rule in report.rules if rule.code == code)
    return result


def gaps(values: dict[int, float], fits: dict[int, str] | None = None) -> list[AnyEvent]:
    """A run whose engine's log-probs are as far from the trainer's, rollout by rollout; 0.0001 in those not named. In some the cause
    was looked for and found."""
    events: list[AnyEvent] = []
    for event in scripted_run(PLAN):
        if isinstance(event, Measured):
            rollouts = (
                msgspec.structs.replace(
                    r, sampler_gap_mean=values.get(r.index, 1e-4), sampler_gap_fit=(fits or {}).get(r.index, "")
                )
                for r in event.rollouts
            )
            event = msgspec.structs.replace(event, rollouts=tuple(rollouts))
        events.append(event)
    return events


# One finding for one fault


def test_repetitions_are_listed_by_rollout() -> None:
    (finding,) = found(gaps({2: 0.06, 3: 0.07, 4: 0.06, 7: 0.08}), "RLS403")
    assert (finding.occurrences, finding.rollouts) == (4, (2, 3, 4, 7))
    assert finding.repeated == "4 times, in rollouts 2 to 4 and 7"
    assert "4 times, in rollouts 2 to 4 and 7" in str(finding)


def test_values_of_another_magnitude_are_another_finding() -> None:
    findings = found(gaps({1: 0.06, 3: 0.7, 4: 0.7, 6: 7.0}), "RLS403")
    assert sorted((f.where.rollout, f.occurrences) for f in findings) == [(1, 1), (3, 2), (6, 1)]


def test_a_value_that_no_rounding_explains_is_an_error() -> None:
    near, far = found(gaps({1: 4.9}), "RLS403"), found(gaps({1: 5.1}), "RLS403")
    assert [f.severity for f in near + far] == ["warning", "error"]


def test_a_cause_that_was_found_holds_in_later_rollouts_that_are_as_far_off() -> None:
    """A healthy run with top_k was an error from its ninth rollout on, the first in which no cause is looked for."""
    another, configured = found(gaps({1: 9.0, 3: 9.5, 5: 20.0}, {1: "top_k 5"}), "RLS403")
    assert (configured.severity, configured.rollouts) == ("warning", (1, 3))
    assert "the tokens that top_k 5 leaves" in configured.why
    assert (another.severity, another.where.rollout) == ("error", 5)


CRITIC = phase_plan(samples=8, minibatches=(8,), microbatch=4)


def with_critic(order: str) -> list[AnyEvent]:
    """Each rollout: one update of the critic and two of the policy."""
    plan = phase_plan(rollouts=8, critic=CRITIC, critic_order=order)
    return composed(scripted_phases(PhaseCase(schedule=plan)))


def of_critic(events: list[AnyEvent], rollout: int) -> list[int]:
    """Places of the critic's events on one rollout."""
    starts = [i for i, e in enumerate(events) if isinstance(e, Rollout)] + [len(events)]
    span = range(starts[rollout], starts[rollout + 1])
    return [i for i in span if isinstance(e := events[i], MicroBatch | Update) and e.role == "critic"]


def test_surplus_updates_of_the_critic_are_said_of_the_critic() -> None:
    events = with_critic("before")
    places = of_critic(events, 2)
    spoiled = [*events[: places[-1] + 1], *(events[i] for i in places), *events[places[-1] + 1 :]]
    (finding,) = found(spoiled, "RLS211")
    assert (
        finding.why == "the critic, which is trained first, is to make 1 update on each rollout; it goes on after those"
    )


def test_missing_updates_of_the_critic_are_said_of_the_critic_and_are_another_finding() -> None:
    events = with_critic("before")
    surplus, missing = of_critic(events, 2), of_critic(events, 5)
    spoiled = [e for i, e in enumerate(events) if i not in missing]
    spoiled[surplus[-1] + 1 : surplus[-1] + 1] = [events[i] for i in surplus]
    findings = found(spoiled, "RLS211")
    assert [f.where.rollout for f in findings] == [2, 5]
    assert "it ended before those" in findings[1].why


# Why


SYNCED = phase_plan(rollouts=4, syncs="after_updates")


def synced() -> list[AnyEvent]:
    return composed(scripted_phases(PhaseCase(schedule=SYNCED)))


def test_a_sync_before_the_updates_is_early_and_no_update_is_missing() -> None:
    events = synced()
    sync = [i for i, e in enumerate(events) if isinstance(e, WeightSync)][1]
    first = max(i for i, e in enumerate(events[:sync]) if isinstance(e, Rollout)) + 2
    moved = events[sync]
    spoiled = [*events[:first], moved, *events[first:sync], *events[sync + 1 :]]
    codes = {finding.code for finding in judge(spoiled).findings if finding.severity == "error"}
    assert "RLS405" in codes
    assert "RLS204" not in codes
    assert "before updates of the same rollout" in found(spoiled, "RLS405")[0].observed


def test_a_sync_after_too_few_updates_is_missing_updates() -> None:
    events = synced()
    sync = [i for i, e in enumerate(events) if isinstance(e, WeightSync)][1]
    spoiled = [*events[: sync - 3], *events[sync:]]
    (finding,) = found(spoiled, "RLS204")
    assert "not all made" in finding.why


def test_an_update_on_more_micro_batches_than_planned_did_not_come_too_early() -> None:
    events = scripted_run(make_plan(iterations=2, max_steps=8))
    update = next(i for i, e in enumerate(events) if isinstance(e, Update) and e.index == 2)
    late = [*events[:update], *events[update + 1 : update + 2], events[update], *events[update + 2 :]]
    for finding in found(late, "RLS203"):
        assert "not full" not in finding.why


def test_the_length_of_a_resumed_pass_mentions_the_resume() -> None:
    plan = make_plan(rows=36, max_steps=30)
    start = LoaderPosition(updates=4, version=4, epoch=0, epoch_microbatches=8)
    events = scripted_run(plan, start=start)
    end = next(i for i, e in enumerate(events) if isinstance(e, EpochEnd))
    short = [*events[: end - 6], *events[end:]]
    first = found(short, "RLS205")[0]
    assert "resumed after update 4" in first.why


def test_a_rate_of_zero_throughout_is_an_error() -> None:
    events = [msgspec.structs.replace(e, learning_rate=0.0) if isinstance(e, Update) else e for e in scripted_run(PLAN)]
    (finding,) = found(events, "RLS603")
    assert (finding.severity, judge(events).verdict) == ("error", "FAIL")
    interrupted = [*events[:30], RunEnded(status="raised", updates=2, error="KeyboardInterrupt")]
    assert not found(interrupted, "RLS603")


# How much was looked at


def test_a_rule_that_could_look_at_a_part_says_how_much() -> None:
    events = [
        msgspec.structs.replace(e, sampler_version=None) if isinstance(e, Rollout) and e.index in (1, 5) else e
        for e in scripted_run(PLAN)
    ]
    assert outcome(judge(events), "RLS402").coverage == "6 of 8"
    assert outcome(judge(scripted_run(PLAN)), "RLS402").coverage == ""


def test_samples_that_are_not_recognised_are_counted_and_no_sample_is_missed_for_them() -> None:
    events = [
        msgspec.structs.replace(e, trained=None) if isinstance(e, MicroBatch) and e.index in (1, 9) else e
        for e in scripted_run(PLAN)
    ]
    report = judge(events)
    assert outcome(report, "RLS503").coverage == "30 of 32"
    assert outcome(report, "RLS502").missed
    assert outcome(report, "RLS502").checks
    assert not found(events, "RLS502")


def test_reasons_are_true() -> None:
    events = [
        msgspec.structs.replace(e, groups_intact=None) if isinstance(e, Rollout) else e for e in scripted_run(PLAN)
    ]
    assert "process" not in outcome(judge(events), "RLS501").reason
    evaluation = Rollout(index=99, samples=8, policy_version=1, purpose="evaluation")
    assert "no evaluation" not in outcome(judge([*events[:20], evaluation, *events[20:]]), "RLS504").reason
    both = judge([*events[:20], evaluation, Evaluated(batches=1, rollouts=1), *events[20:]])
    assert outcome(both, "RLS504").verdict == "PASS"


# Links


def test_an_engine_is_right_by_label_only() -> None:
    report = judge(synced())
    assert outcome(report, "RLS402").note == "by label only"
    assert "weights of the sampler by label only" in shown(report)
    assert '"by label only"' in report.to_json()


def test_the_headline_names_what_was_not_observed() -> None:
    report = judge([*scripted_run(PLAN)[:1], Unobserved(what="loss", why="the loss is fused"), *scripted_run(PLAN)[1:]])
    assert report.verdict == "PASS"
    assert "not observed: loss" in shown(report)
    (link,) = (link for link in links_of(report.rules, report.findings) if link.name == "loss")
    assert (link.state, link.reason) == ("not observed", "the loss is fused")


def test_every_rule_belongs_to_a_link() -> None:
    assert {link_of(code).name for code in BY_CODE} <= {link.name for link in LINKS}


# Places after a resume


def test_places_after_a_resume_say_what_they_count_from() -> None:
    plan = make_plan(iterations=2, max_steps=16)
    start = LoaderPosition(updates=4, version=4, epoch_microbatches=8)
    events = scripted_run(plan, start=start)
    lost = next(i for i, e in enumerate(events) if isinstance(e, Update) and e.index == 8)
    (finding,) = found([*events[:lost], *events[lost + 1 :]], "RLS204")
    assert finding.where.rollout == 4
    assert finding.where.update == 8
    assert str(finding.where).endswith("since the resume")


def test_what_was_planned_is_that_of_the_resumed_run() -> None:
    plan = make_plan(iterations=2, max_steps=16)
    rows = {row.name: row for row in count_rows(judge(scripted_run(plan)))}
    assert (rows["micro-batches"].planned, rows["micro-batches"].observed) == (32, 32)
    resumed = judge(scripted_run(plan, start=LoaderPosition(updates=4, version=4, epoch_microbatches=8)))
    for row in count_rows(resumed):
        assert row.planned in (None, row.observed), row


# Processes that disagree


def test_why_processes_disagree_is_what_was_seen() -> None:
    one = MicroBatch(index=0, samples=4, policy_version=3, old_version=3)
    stranger = msgspec.structs.replace(one, old_version=None)
    ahead = msgspec.structs.replace(one, policy_version=4)
    assert "None" not in shape(stranger)
    assert "not known to it" in why_it_matters(shape(one), shape(stranger))
    assert "different versions" in why_it_matters(shape(one), shape(ahead))
    assert "different versions" not in why_it_matters(shape(one), "nothing")


def test_nothing_is_said_of_a_run_that_only_began() -> None:
    tally = Tally()
    events = scripted_run(PLAN)
    tally.hear(events[0])
    assert live_line(tally.standing, "NOT_EVALUATED").endswith("starting")
    for event in events[1:4]:
        tally.hear(event)
    assert live_line(tally.standing, "PASS").endswith("PASS so far")


def test_a_rule_that_every_run_feeds_is_never_silent() -> None:
    """Where its system says that each run gives it something to compare, a run without a comparison says that nothing was seen."""
    begun, *events = scripted_run(PLAN)
    declared = {"in_every_run": {"RLS516": "advantages"}}
    told = outcome(judge([msgspec.structs.replace(begun, facts={**begun.facts, **declared}), *events]), "RLS516")
    assert (told.verdict, told.idle) == ("NOT_EVALUATED", False)
    assert told.reason == "no rollout showed its rewards beside its advantages"
    assert outcome(judge([begun, *events]), "RLS516").idle
