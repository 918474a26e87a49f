"""Faults of controlled runs: each is found by the right rule, at its rollout and on its trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.judge.causes import groups
from rlstep_hooks.record.events import (
    AnyEvent,
    EpochEnd,
    Generated,
    Measured,
    MicroBatch,
    Phase,
    Refresh,
    RunEnded,
    SampleRows,
    Update,
    WeightSync,
)
from rlstep_hooks.record.ledger import CONTROLLER
from tests.scripted_phases import Live, PhaseCase, Script, phase_cases, phase_plan, scripted_phases

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.schedule import Schedule

FIELDS: dict[str, object] = {
    "world_size": 2,
    "samples": 8,
    "minibatches": (4, 4),
    "microbatch": 2,
    "reuse": 2,
    "rollouts": 4,
    "per_epoch": 2,
    "reference_source": "at_rollout",
    "lr_clock": "rollout",
    "critic": phase_plan(world_size=2, samples=8, minibatches=(8,), microbatch=4),
}
PLAN = phase_plan(**FIELDS)  # type: ignore[arg-type]
"""Each rollout: reference, old log-probs, 1 update of the critic and 4 of the policy in 2 passes, a sync; on 2 trainers."""

Test = Callable[[str, AnyEvent], bool]
Change = Callable[[AnyEvent], "AnyEvent | None"]


def judge(script: Script) -> tuple[list[Finding], Report]:
    """What was found while the run went on, errors and warnings in their order, and the report."""
    live = Live().play(script)
    return [f for f in live.findings if f.severity != "info"], live.run.report()


def rollout_of(script: Script, index: int) -> int:
    """The rollout in which something happens; 0 before the first."""
    made = sum(isinstance(e, Generated) for _, e in script[: index + 1])
    return max(made - 1, 0)


def places(script: Script, rollout: int, test: Test) -> list[int]:
    return [i for i, (p, e) in enumerate(script) if rollout_of(script, i) == rollout and test(p, e)]


def by(process: str, kind: type, role: str = "policy", **values: object) -> Test:
    """Recognises events of a process."""

    def test(found: str, event: AnyEvent) -> bool:
        same = isinstance(event, kind) and getattr(event, "role", role) == role
        return found == process and same and all(getattr(event, name) == value for name, value in values.items())

    return test


def call_of(name: str) -> Test:
    """Recognises the mark of a call in all records."""
    return lambda process, event: isinstance(event, Phase) and event.name == name


def spoil(script: Script, index: int, change: Change, *, times: int = 1) -> Script:
    changed = change(script[index][1])
    line = [(script[index][0], changed)] * times if changed is not None else []
    return [*script[:index], *line, *script[index + 1 :]]


def values(**fields: object) -> Change:
    return lambda event: msgspec.structs.replace(event, **fields)


def without_call(script: Script, rollout: int, name: str) -> Script:
    """No process makes this call, so the next one has its number; versions go on without its updates."""
    marks = places(script, rollout, call_of(name))
    first, last = marks[0], marks[-1]
    made = sum(isinstance(e, Update) and e.role == "policy" for p, e in script[first:last] if p == "rank0")
    rest: Script = []
    for process, event in script[last + 1 :]:
        if isinstance(event, Phase) and event.name == name:
            event = msgspec.structs.replace(event, number=event.number - 1)
        elif isinstance(event, Update) and event.role == "policy":
            tick = (event.lr_tick or 0) - (made > 0)
            event = msgspec.structs.replace(event, index=event.index - made, version=event.version - made, lr_tick=tick)
        elif isinstance(event, Refresh):
            number = event.rollout - (name == "refresh")
            event = msgspec.structs.replace(event, rollout=number, policy_version=(event.policy_version or 0) - made)
        elif isinstance(event, WeightSync):
            event = msgspec.structs.replace(event, policy_version=event.policy_version - made)
        elif isinstance(event, MicroBatch) and event.role == "policy":
            event = msgspec.structs.replace(event, policy_version=event.policy_version - made)
            event = recognised(event, rollout, made, without_refresh=name == "refresh")
        elif isinstance(event, Measured):
            event = Measured()
        rest.append((process, event))
    return [*script[:first], *rest]


def recognised(event: MicroBatch, rollout: int, made: int, *, without_refresh: bool) -> MicroBatch:
    """A micro-batch as a trainer knows its samples: by their refresh, if there was one."""
    assert event.trained is not None
    [part] = event.trained
    if without_refresh and part.rollout == rollout:
        return msgspec.structs.replace(event, trained=None, old_version=None, old_source="engine")
    number = part.rollout - without_refresh
    return msgspec.structs.replace(
        event, trained=(SampleRows(number, part.rows),), old_version=(event.old_version or 0) - made
    )


# Any fault of one trainer

ORDERED = (Refresh, MicroBatch, Update, WeightSync)


@given(phase_cases(), st.data())
def test_any_dropped_or_repeated_event_of_a_trainer_is_found_at_its_rollout(
    case: PhaseCase, data: st.DataObject
) -> None:
    script = scripted_phases(case)
    own = [i for i, (p, e) in enumerate(script) if p != CONTROLLER and isinstance(e, ORDERED)]
    if case.schedule.syncs == "unseen":
        own = [i for i in own if not isinstance(script[i][1], WeightSync)]
    if not own:
        return
    before, _ = judge(script)
    index = data.draw(st.sampled_from(own))
    found, report = judge(spoil(script, index, lambda event: event, times=data.draw(st.sampled_from([0, 2]))))
    new = [f for f in found if f.severity == "error" and f.code not in {known.code for known in before}]
    assert new, f"not found: {script[index]}"
    assert report.verdict == "FAIL"
    here = rollout_of(script, index)
    assert new[0].where.rollout in (here, here + 1)
    if case.schedule.world_size > 1:
        assert str(new[0].where.rank) in (script[index][0].removeprefix("rank"), "1")


def numbers_of(event: AnyEvent, schedule: Schedule) -> list[tuple[str, AnyEvent]]:
    """Every way to change one number of a trainer's event that the plan fixes, with the rule that names it."""
    replace = msgspec.structs.replace
    if isinstance(event, Refresh) and event.policy_version is not None:
        return [("RLS303", replace(event, policy_version=event.policy_version + 1))]
    if isinstance(event, WeightSync) and schedule.syncs != "unseen":
        return [("RLS405", replace(event, policy_version=event.policy_version + 1))]
    plan = schedule.critic if getattr(event, "role", "policy") == "critic" else schedule
    fixed = plan is not None and plan.samples_per_microbatch is not None
    if isinstance(event, MicroBatch):
        changes = [("RLS207", replace(event, samples=event.samples + 1))] if fixed else []
        if event.role == "policy" and event.old_version is not None and schedule.old_logprob_source != "engine":
            changes.append(("RLS307", replace(event, old_version=event.old_version - 1)))
        return changes
    if isinstance(event, Update) and fixed:
        return [("RLS208", replace(event, microbatches=event.microbatches + 1))]
    return []


@given(phase_cases(), st.data())
def test_any_changed_number_is_one_finding_of_its_rule(case: PhaseCase, data: st.DataObject) -> None:
    schedule = case.schedule
    script = scripted_phases(case)
    own = [i for i, (p, e) in enumerate(script) if p != CONTROLLER and numbers_of(e, schedule)]
    if not own:
        return
    index = data.draw(st.sampled_from(own))
    code, event = data.draw(st.sampled_from(numbers_of(script[index][1], schedule)))
    live = Live().play(spoil(script, index, lambda _: event))
    [finding] = [f for f in live.findings if f.code == code]
    assert finding.where.rollout == rollout_of(script, index)
    others = {f.code for f in live.findings if f.severity == "error"} - {code}
    # Samples of such weights are of another version, too, and trainers that differ are named.
    assert others <= {"RLS902", "RLS402", "RLS304", "RLS307", "RLS209", "RLS310"}
    if schedule.world_size > 1:
        assert finding.where.rank == int(script[index][0].removeprefix("rank"))


# Faults of the controller, of one trainer, of all

ONE: dict[str, tuple[int, Test, Change, int, str, int]] = {
    "an update is missing": (2, by("rank1", Update, index=9), lambda e: None, 1, "RLS204", 2),
    "an update is made twice": (2, by("rank1", Update, index=9), values(), 2, "RLS203", 2),
    "an update of the critic is missing": (2, by("rank1", Update, role="critic"), lambda e: None, 1, "RLS204", 2),
    "an update of the critic is made twice": (2, by("rank1", Update, role="critic"), values(), 2, "RLS203", 2),
    "an update of the wrong role": (2, by("rank1", Update, index=9), values(role="critic"), 1, "RLS211", 2),
    "a micro-batch is missing": (2, by("rank1", MicroBatch), lambda e: None, 1, "RLS203", 2),
    "a micro-batch is trained twice": (2, by("rank1", MicroBatch), values(), 2, "RLS204", 2),
    "a micro-batch of the wrong role": (2, by("rank1", MicroBatch), values(role="critic"), 1, "RLS211", 2),
    "a micro-batch is larger": (2, by("rank1", MicroBatch), values(samples=2), 1, "RLS207", 2),
    "old log-probs are missing": (2, by("rank1", Refresh), lambda e: None, 1, "RLS303", 2),
    "old log-probs are computed twice": (2, by("rank1", Refresh), values(), 2, "RLS303", 2),
    "old log-probs of an older version": (2, by("rank1", Refresh), values(policy_version=7), 1, "RLS303", 2),
    "old log-probs of nowhere": (2, by("rank1", Refresh), values(policy_version=None), 1, "RLS303", 2),
    "samples of an older rollout": (
        2,
        by("rank1", MicroBatch),
        values(trained=(SampleRows(1, (0,)),), old_version=4),
        1,
        "RLS307",
        2,
    ),
    "samples trained in place of others": (
        2,
        by("rank1", MicroBatch),
        values(trained=(SampleRows(2, (1,)),)),
        1,
        "RLS502",
        2,
    ),
    "a sync of other weights": (2, by("rank1", WeightSync), values(policy_version=8), 1, "RLS405", 2),
    "a sync is made twice": (2, by("rank1", WeightSync), values(), 2, "RLS405", 2),
    "the last sync is made twice": (3, by("rank1", WeightSync), values(), 2, "RLS405", 3),
    "a trainer does not sync": (2, by("rank1", WeightSync), lambda e: None, 1, "RLS405", 3),
    "an update without a reason is skipped": (2, by("rank1", Update, index=9), values(applied=False), 1, "RLS210", 2),
    "a gradient that is not finite": (
        2,
        by("rank1", Update, index=9),
        values(applied=False, skip_reason="gradient not finite"),
        1,
        "RLS210",
        2,
    ),
    "the scheduler ticks within a rollout": (2, by("rank1", Update, index=9), values(lr_tick=3), 1, "RLS602", 2),
    "a rollout is smaller": (2, by(CONTROLLER, Generated), values(samples=7), 1, "RLS207", 2),
    "a sampler that is behind": (2, by(CONTROLLER, Generated), values(labels=((1, 1), (2, 7))), 1, "RLS402", 2),
    "no reference log-probs": (2, by(CONTROLLER, Phase, name="reference"), lambda e: None, 1, "RLS308", 2),
    "a pass that does not end": (1, by(CONTROLLER, EpochEnd), lambda e: None, 1, "RLS205", 2),
    "a pass that ends twice": (1, by(CONTROLLER, EpochEnd), values(), 2, "RLS205", 1),
}
"""Where it is done (rollout, event), what, how often the event then is there, and who names it at which rollout."""


@pytest.mark.parametrize("fault", ONE)
def test_a_fault_is_first_named_by_its_rule(fault: str) -> None:
    rollout, test, change, times, code, named = ONE[fault]
    script = scripted_phases(PhaseCase(schedule=PLAN))
    index = places(script, rollout, test)[0]
    found, report = judge(spoil(script, index, change, times=times))
    assert (found[0].code, found[0].where.rollout) == (code, named)
    assert found[0].where.rank == (0 if script[index][0] == CONTROLLER else 1)
    [reported] = [f for f in report.findings if f.code == code and f.where.rollout == named]
    assert reported.why
    assert reported.fix


BESIDE = {"samples of an older rollout": ["RLS302"]}
"""Headlines of their own: the numbers of that micro-batch are those of the one in whose place it came."""


@pytest.mark.parametrize("fault", ONE)
def test_a_fault_has_one_headline_on_all_trainers(fault: str) -> None:
    rollout, test, change, times, code, _ = ONE[fault]
    script = scripted_phases(PhaseCase(schedule=PLAN))
    _, report = judge(spoil(script, places(script, rollout, test)[0], change, times=times))
    heads = [head.code for head, _ in groups(report.findings) if head.severity != "info"]
    assert heads == [code, *BESIDE.get(fault, [])]


CALLS: dict[str, tuple[str, int]] = {
    "refresh": ("RLS303", 2),
    "reference": ("RLS308", 2),
    "critic_updates": ("RLS211", 2),
    "policy_updates": ("RLS204", 2),
    "sync": ("RLS405", 3),
}
"""Calls, with who names one that nobody makes, and at which rollout."""


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_not_made_is_named_once(name: str) -> None:
    script = without_call(scripted_phases(PhaseCase(schedule=PLAN)), 2, name)
    found, report = judge(script)
    code, rollout = CALLS[name]
    errors = [f for f in found if f.severity == "error"]
    assert {(f.code, f.where.rollout) for f in errors if f.where.rank == 0} == {(code, rollout)}
    assert report.verdict == "FAIL"


@pytest.mark.parametrize(("max_age", "label", "found"), [(0, 1, True), (1, 1, False), (1, 0, True), (None, 0, False)])
def test_a_sampler_may_be_as_old_as_the_plan_allows(max_age: int | None, label: int, found: bool) -> None:
    """Weights of label k were synced before rollout k; rollout 2 is sampled with those of `label`."""
    schedule = phase_plan(**FIELDS | {"max_age": max_age})  # type: ignore[arg-type]
    script = scripted_phases(PhaseCase(schedule=schedule))
    index = places(script, 2, by(CONTROLLER, Generated))[0]
    findings, _ = judge(spoil(script, index, values(labels=((label, 8),))))
    assert [(f.code, f.where.rollout) for f in findings] == ([("RLS402", 2)] * 2 if found else [])


def test_a_label_that_was_never_synced_says_nothing() -> None:
    script = scripted_phases(PhaseCase(schedule=PLAN))
    index = places(script, 2, by(CONTROLLER, Generated))[0]
    assert judge(spoil(script, index, values(labels=((99, 8),))))[0] == []


@pytest.mark.parametrize(
    ("engine", "gap", "found"),
    [("float32", 1e-4, False), ("float32", 0.01, True), ("bfloat16", 0.01, False), ("bfloat16", 0.1, True)],
)
def test_the_bound_of_the_gap_to_the_engine_follows_the_precision(engine: str, gap: float, found: bool) -> None:
    script = scripted_phases(PhaseCase(schedule=PLAN))
    first = msgspec.structs.replace(script[0][1], facts=script[0][1].facts | {"engine_dtype": engine})  # type: ignore[union-attr]
    index = places(script, 2, by("rank1", Measured))[0]

    def wider(event: AnyEvent) -> AnyEvent:
        assert isinstance(event, Measured)
        numbers = tuple(msgspec.structs.replace(v, sampler_gap_mean=gap) for v in event.rollouts)
        return msgspec.structs.replace(event, rollouts=numbers)

    findings, report = judge([(CONTROLLER, first), *spoil(script, index, wider)[1:]])
    assert [(f.code, f.severity, f.where.rollout) for f in findings] == ([("RLS403", "warning", 2)] if found else [])
    assert report.verdict == "PASS"


@pytest.mark.parametrize(("reason", "severity"), [("gradient scaler", "info"), ("gradient not finite", "warning")])
def test_an_update_that_the_framework_skips_is_no_error(reason: str, severity: str) -> None:
    """Also where it is the last on a rollout, so that the next one begins with the weights of the update before."""
    script = scripted_phases(PhaseCase(schedule=PLAN, skipped=frozenset({7})))
    changed = [
        (p, msgspec.structs.replace(e, skip_reason=reason) if isinstance(e, Update) and not e.applied else e)
        for p, e in script
    ]
    live = Live().play(changed)
    assert [(f.code, f.severity, f.where.rollout) for f in live.findings] == [("RLS210", severity, 1)] * 2
    assert live.run.report().verdict == "PASS"
    assert live.run.report().counts.skipped_updates == 1


def test_a_scheduler_that_ticks_with_every_update_is_found_where_rollouts_are_its_clock() -> None:
    schedule = phase_plan(**FIELDS | {"lr_clock": "update"})  # type: ignore[arg-type]
    script = scripted_phases(PhaseCase(schedule=schedule))
    started = msgspec.structs.replace(script[0][1], schedule=PLAN)
    findings, _ = judge([(CONTROLLER, started), *script[1:]])
    assert {(f.code, f.where.update) for f in findings} == {("RLS602", 1)}


# Trainers without a record, and trainers that differ


def test_a_trainer_without_a_record_is_named_and_not_accused() -> None:
    script = scripted_phases(PhaseCase(schedule=PLAN))
    for missing in ("rank0", "rank1"):
        _, report = judge([line for line in script if line[0] != missing])
        assert [(f.code, f.where.rank) for f in report.findings if f.severity == "error"] == [
            ("RLS901", int(missing[-1]))
        ]
        assert f"no record of trainer {missing[-1]}" in report.findings[0].observed
        assert report.counts.updates == 16
        assert report.processes == 2
        assert [rule.verdict for rule in report.rules if rule.code == "RLS902"] == ["NOT_EVALUATED"]


@given(phase_cases(critic=True), st.data())
def test_a_trainer_that_stops_recording_is_named_and_not_accused(case: PhaseCase, data: st.DataObject) -> None:
    script = scripted_phases(case)
    rank = f"rank{data.draw(st.integers(0, case.schedule.world_size - 1))}"
    calls = [i for i, (p, e) in enumerate(script) if p == rank and isinstance(e, Phase)]
    end = data.draw(st.integers(2, calls[-1]))
    number = next((e for p, e in script[end:] if p == rank and isinstance(e, Phase)), None)
    assert isinstance(number, Phase)
    _, report = judge([(p, e) for i, (p, e) in enumerate(script) if p != rank or i < end])
    errors = [f for f in report.findings if f.severity == "error" and f.code != "RLS209"]
    assert [(f.code, f.where.rank) for f in errors] == [("RLS901", int(rank[-1]))]
    recorded = any(p == rank for p, _ in script[:end])
    missing = f"nothing of call {number.number} of {number.name}" if recorded else "no record"
    assert missing in errors[0].observed


def test_a_trainer_that_differs_is_named_at_its_rollout_once() -> None:
    """One trainer's gradient scaler skips an update that the other makes: each is as planned, together they are not."""
    script = scripted_phases(PhaseCase(schedule=PLAN))
    skipped = places(script, 3, by("rank1", Update, index=15))[0]
    script = spoil(script, skipped, values(applied=False, version=15, skip_reason="gradient scaler"))
    script = spoil(script, places(script, 3, by("rank1", WeightSync))[0], values(policy_version=15))
    [finding], report = judge(script)
    assert (finding.code, finding.where.rollout, finding.where.rank) == ("RLS902", 3, 1)
    assert "update applied" in finding.expected
    assert "update skipped" in finding.observed
    assert report.verdict == "FAIL"


def test_old_log_probs_that_differ_between_trainers_belong_to_their_rollout() -> None:
    script = scripted_phases(PhaseCase(schedule=PLAN))
    index = places(script, 2, by("rank1", Refresh))[0]
    found, _ = judge(spoil(script, index, values(policy_version=7)))
    assert {(f.code, f.where.rollout, f.where.rank) for f in found} == {("RLS303", 2, 1), ("RLS902", 2, 1)}


def test_what_all_trainers_do_wrong_is_reported_once() -> None:
    script = [
        (p, msgspec.structs.replace(e, samples=2) if isinstance(e, MicroBatch) and e.role == "policy" else e)
        for p, e in scripted_phases(PhaseCase(schedule=PLAN))
    ]
    _, report = judge(script)
    [finding] = [f for f in report.findings if f.severity == "error"]
    assert (finding.code, finding.where.rollout, finding.occurrences) == ("RLS207", 0, 32)


# Runs of another length


def test_data_that_run_out_are_a_finding_and_an_early_stop_is_none() -> None:
    whole = scripted_phases(PhaseCase(schedule=PLAN))
    last = places(whole, 3, by(CONTROLLER, Generated))[0]
    for stopped, codes in ((False, ["RLS206"] * 2), (True, [])):
        script = [*whole[:last], (CONTROLLER, RunEnded(status="completed", updates=12, stopped=stopped))]
        assert [f.code for f in judge(script)[0]] == codes


def test_a_run_of_unknown_length_may_end_between_rollouts_and_not_within() -> None:
    schedule = msgspec.structs.replace(PLAN, rollouts=None, updates=None)
    whole = scripted_phases(PhaseCase(schedule=schedule))
    assert judge(whole)[0] == []
    middle = places(whole, 2, by(CONTROLLER, Phase, name="critic_updates"))[0] + 1
    [first, *_] = judge([*whole[:middle], (CONTROLLER, RunEnded(status="completed", updates=8))])[0]
    assert (first.code, first.where.rollout) == ("RLS206", 2)


def test_a_rollout_that_is_thrown_away_is_no_fault_of_its_log_probs() -> None:
    script = scripted_phases(PhaseCase(schedule=PLAN))
    for name in ("policy_updates", "sync", "critic_updates", "values", "reference", "refresh"):
        script = without_call(script, 2, name)
    found, _ = judge(script)
    errors = {(f.code, f.where.rollout) for f in found if f.where.rank == 0}
    assert errors == {("RLS201", 3)}, "the next came in place of its training"


@pytest.mark.parametrize("came", [(), ("refresh",)])
def test_a_run_that_raised_before_its_reference_is_no_fault_of_that(came: tuple[str, ...]) -> None:
    script = scripted_phases(PhaseCase(schedule=PLAN))
    for name in ("policy_updates", "sync", "critic_updates", "values", "reference", "refresh"):
        script = script if name in came else without_call(script, 2, name)
    following = places(script, 3, by(CONTROLLER, Generated))[0]
    found, _ = judge([*script[:following], (CONTROLLER, RunEnded(status="raised", updates=8, error="no memory"))])
    assert not [str(finding) for finding in found if finding.severity == "error"]
