"""One cause, one headline: what a finding explains is folded below it, and nothing else is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.judge.causes import Found, fold, groups, regroup
from rlstep_hooks.judge.effects import Effects, here, lasting, of_rollout
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.rules import BY_CODE
from rlstep_hooks.planning.finding import SEVERITIES, Finding, Severity, Where
from rlstep_hooks.record.events import (
    EVALUATION_MODE,
    AnyEvent,
    ConfigChanged,
    Evaluated,
    Measured,
    MicroBatch,
    Refresh,
    Rollout,
    Update,
)
from tests.scripted import make_plan, scripted_run
from tests.scripted_phases import Live, PhaseCase, phase_plan, scripted_phases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.judge.report import Report

PLAN = make_plan(iterations=2, max_steps=16)
"""8 rollouts of 2 updates, each of 2 micro-batches."""


def judged(events: Sequence[AnyEvent]) -> Report:
    judge = Judge()
    for event in events:
        judge.observe(event)
    return judge.report()


def headlines(report: Report) -> dict[str, list[str]]:
    """The codes of errors and warnings: what each headline explains."""
    alarms = [finding for finding in report.findings if finding.severity != "info"]
    return {head.code: [each.code for each in explained] for head, explained in groups(alarms)}


def made(
    code: str,
    rollout: int | None,
    update: int | None = None,
    microbatch: int | None = None,
    *,
    at: int = 0,
    severity: Severity = "error",
    rollouts: tuple[int, ...] = (),
    produces: tuple[Effects, ...] = (),
    exact: bool = True,
    rank: int | None = None,
) -> Found:
    """A finding of a rule that exists only here."""
    where = Where(rollout=rollout, update=update, microbatch=microbatch, rank=rank)
    times = max(len(rollouts), 1)
    finding = Finding(
        code=code,
        severity=severity,
        title=code,
        expected="one thing",
        observed="another",
        where=where,
        why="why",
        fix="fix",
        occurrences=times,
        rollouts=rollouts,
    )
    return Found(finding=finding, at=at, produces=produces, exact=exact)


def folded(*found: Found) -> list[tuple[str, str]]:
    return [(each.code, each.explained_by) for each in fold(found)]


# What may be folded


def test_the_cause_stands_first_and_its_effects_below_it() -> None:
    cause = made("cause", 2, 4, severity="warning", produces=(lasting("echo"),))
    assert folded(made("echo", 2, 4, 8, at=3), cause) == [("cause", ""), ("echo", "cause")]


@pytest.mark.parametrize(
    ("cause", "other"),
    [
        pytest.param(made("cause", 2, produces=(lasting("echo"),)), made("fault", 2), id="of another kind"),
        pytest.param(made("cause", 2, produces=(lasting("echo"),)), made("echo", 1), id="in a rollout before"),
        pytest.param(made("cause", 2, 5, produces=(lasting("echo"),)), made("echo", 2, 4), id="at an update before"),
        pytest.param(
            made("cause", 2, 5, 9, produces=(here("echo"),)), made("echo", 2, 5, 8), id="a micro-batch before"
        ),
        pytest.param(made("cause", 2, produces=(here("echo"),)), made("echo", 3), id="where the cause is over"),
        pytest.param(
            made("cause", 2, produces=(here("echo"),)), made("echo", 2, rollouts=(2, 5)), id="once more, later"
        ),
        pytest.param(made("cause", 2, produces=(lasting("echo"),)), made("echo", 2, severity="info"), id="no fault"),
        pytest.param(made("cause", 2, severity="info", produces=(lasting("echo"),)), made("echo", 2), id="of no fault"),
        pytest.param(
            made("cause", 2, severity="warning", exact=False, produces=(lasting("echo"),)),
            made("echo", 2),
            id="of a doubt",
        ),
        pytest.param(
            made("cause", 2, produces=(lasting("echo"),), rank=0), made("echo", 2, rank=1), id="of another process"
        ),
        pytest.param(made("cause", 2, at=9, produces=(lasting("echo"),)), made("echo", None, at=0), id="of the plan"),
    ],
)
def test_a_second_fault_keeps_its_headline(cause: Found, other: Found) -> None:
    assert all(not explained for _, explained in folded(cause, other))


def test_a_rollout_that_was_wrong_from_its_beginning_explains_what_is_found_before_it_in_the_rollout() -> None:
    cause = made("cause", 2, 5, 9, produces=(of_rollout("echo"),))
    assert folded(made("echo", 2, 4, 8), cause) == [("cause", ""), ("echo", "cause")]
    assert ("echo", "") in folded(made("echo", 1, 3, 6), cause)


def test_effects_of_effects_belong_to_the_first_cause() -> None:
    first = made("first", 2, produces=(here("second"),))
    second = made("second", 2, produces=(here("third"),))
    assert folded(made("third", 2), second, first) == [("first", ""), ("third", "first"), ("second", "first")]


def test_of_two_that_explain_each_other_the_first_is_the_headline() -> None:
    one, other = made("one", 2, at=1, produces=(here("other"),)), made("other", 2, at=2, produces=(here("one"),))
    assert folded(other, one) == [("one", ""), ("other", "one")]


def test_three_in_a_circle_have_one_headline() -> None:
    circle = [made(code, 2, produces=(here(next_),)) for code, next_ in (("a", "b"), ("b", "c"), ("c", "a"))]
    assert folded(*circle) == [("a", ""), ("b", "a"), ("c", "a")]


def test_a_list_of_rollouts_that_is_full_says_nothing_of_later_ones() -> None:
    cause = made("cause", 0, rollouts=tuple(range(64)), produces=(here("echo"),))
    assert ("echo", "cause") in folded(cause, made("echo", 1, rollouts=tuple(range(1, 65))))
    short = made("cause", 0, rollouts=tuple(range(63)), produces=(here("echo"),))
    assert ("echo", "") in folded(short, made("echo", 1, rollouts=tuple(range(1, 65))))


FOUND = st.builds(
    made,
    st.sampled_from(["a", "b", "c", "d"]),
    st.none() | st.integers(0, 3),
    st.none() | st.integers(0, 3),
    st.none() | st.integers(0, 3),
    at=st.integers(0, 5),
    severity=st.sampled_from(SEVERITIES),
    produces=st.lists(
        st.builds(
            Effects,
            st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=3).map(tuple),
            first=st.none() | st.integers(-1, 0),
            last=st.none() | st.integers(0, 1),
            within=st.booleans(),
        ),
        max_size=2,
    ).map(tuple),
    exact=st.booleans(),
)


@given(st.lists(FOUND, max_size=8))
def test_whatever_explains_what_nothing_is_lost_and_each_echo_stands_below_its_headline(found: list[Found]) -> None:
    result = fold(found)
    bare = [msgspec.structs.replace(each, explained_by="") for each in result]
    key = msgspec.json.encode
    assert sorted(map(key, bare)) == sorted(key(each.finding) for each in found)
    for head, explained in groups(result):
        assert not head.explained_by
        assert all(each.explained_by == head.code and each.severity != "info" for each in explained)
    worst = [min(SEVERITIES.index(each.severity) for each in (head, *explained)) for head, explained in groups(result)]
    assert worst == sorted(worst)


def test_findings_of_several_processes_are_put_together_in_groups() -> None:
    cause = made("cause", 2, severity="warning", produces=(lasting("echo", "more"),))
    own = fold([cause, made("echo", 3)])
    others = [msgspec.structs.replace(made("more", 3, rank=1).finding, explained_by="cause"), made("fault", 0).finding]
    both = [("cause", ""), ("echo", "cause"), ("more", "cause"), ("fault", "")]
    assert [(f.code, f.explained_by) for f in regroup([*own, *others])] == both
    assert [(f.code, f.explained_by) for f in regroup(others)] == [("more", ""), ("fault", "")]


@pytest.mark.parametrize(("rollout", "explained"), [(2, True), (3, False)])
def test_processes_disagree_where_one_of_them_left_its_plan(rollout: int, explained: bool) -> None:
    cause = made("RLS101", 2, severity="warning", produces=(lasting("RLS204"),))
    own = fold([cause, made("RLS204", 2)])
    found = {each.code: each.explained_by for each in regroup([*own, made("RLS902", rollout, rank=1).finding])}
    assert found == {"RLS101": "", "RLS204": "RLS101", "RLS902": "RLS101" if explained else ""}


def test_rules_declare_codes_of_rules() -> None:
    for code, rule in BY_CODE.items():
        for effects in rule.produces:
            assert {each.split()[0] for each in effects.codes} <= set(BY_CODE), code
            assert effects.codes, code


# Runs


def spoiled(plan_events: Sequence[AnyEvent], rollout: int, spoil: type[AnyEvent]) -> list[AnyEvent]:
    """The run without the first event of a kind on a rollout."""
    made_ = -1
    left: list[AnyEvent] = []
    done = False
    for event in plan_events:
        made_ += isinstance(event, Rollout)
        if made_ == rollout and isinstance(event, spoil) and not done:
            done = True
            continue
        left.append(event)
    return left


@pytest.mark.parametrize("rollout", range(8))
@pytest.mark.parametrize(("kind", "code"), [(Update, "RLS204"), (Refresh, "RLS303"), (MicroBatch, "RLS203")])
def test_an_event_that_is_left_out_has_one_headline(rollout: int, kind: type[AnyEvent], code: str) -> None:
    events = [event for event in scripted_run(PLAN) if not isinstance(event, Measured)]
    report = judged(spoiled(events, rollout, kind))
    assert report.verdict == "FAIL"
    assert next(iter(headlines(report))) == code, report.findings


@pytest.mark.parametrize("rollout", range(1, 7))
def test_a_size_that_is_rewritten_explains_the_order_of_events(rollout: int) -> None:
    """Accumulation 1 for 2 from a rollout on: each micro-batch is an update."""
    healthy = [event for event in scripted_run(PLAN) if not isinstance(event, Measured)]
    at = [place for place, event in enumerate(healthy) if isinstance(event, Rollout)][rollout]
    changed = ConfigChanged(name="gradient_accumulation_steps", before=2, after=1, since="train_begin")
    events: list[AnyEvent] = [*healthy[: at + 1], changed]
    for event in healthy[at + 1 :]:
        if isinstance(event, MicroBatch):
            events += [event, Update(index=event.index, applied=True, version=event.policy_version + 1, microbatches=1)]
        elif not isinstance(event, Update):
            events.append(event)
    assert list(headlines(judged(events))) == ["RLS101"]
    # The same change of something that decides no size explains none of it.
    other = msgspec.structs.replace(changed, name="logging_steps")
    assert len(headlines(judged([other if event is changed else event for event in events]))) > 1


def test_a_model_that_evaluates_in_training_mode_explains_the_batches_of_evaluation() -> None:
    healthy = [event for event in scripted_run(PLAN) if not isinstance(event, Measured)]
    at = [place for place, event in enumerate(healthy) if isinstance(event, Rollout)][2]
    changed = ConfigChanged(name=EVALUATION_MODE, before=False, after=True, since="configuration")
    found = headlines(judged([*healthy[:at], changed, Evaluated(batches=4, rollouts=0), *healthy[at:]]))
    assert list(found) == ["RLS101"]
    (told,) = (
        finding for finding in judged([*healthy[:at], changed, *healthy[at:]]).findings if finding.code == "RLS101"
    )
    assert "model.eval()" in told.fix
    assert "training ones" in told.why


def test_a_fault_before_the_change_keeps_its_headline() -> None:
    healthy = [event for event in scripted_run(PLAN) if not isinstance(event, Measured)]
    events = spoiled(healthy, 1, Update)
    at = [place for place, event in enumerate(events) if isinstance(event, Rollout)][4]
    changed = ConfigChanged(name="num_iterations", before=2, after=3, since="train_begin")
    found = headlines(judged([*events[:at], changed, *events[at:]]))
    assert set(found) == {"RLS204", "RLS101"}


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_skipped_update_explains_what_follows_it_in_phases(world_size: int) -> None:
    """As in verl and OpenRLHF: the trainer goes on as if the update had been made, and so does the scheduler."""
    plan = phase_plan(world_size=world_size, rollouts=6, reuse=2, syncs="after_updates")
    script = []
    skipped = 0
    made_of: dict[str, int] = {}
    for process, event in scripted_phases(PhaseCase(schedule=plan)):
        if isinstance(event, Update):
            made_of[process] = made_of.get(process, -1) + 1
            if made_of[process] == 9:
                skipped += 1
                event = msgspec.structs.replace(event, applied=False, skip_reason="the gradient norm is not finite")
        script.append((process, event))
    assert skipped == world_size
    report = Live().play(script).run.report()
    found = headlines(report)
    assert found, report.verdict
    assert next(iter(found)) == "RLS210"
    assert len(found) == 1, found
