"""From what people notice to causes: every rule of a run is a cause of something, and what was found, excluded or unseen is said so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.readings import LagValues, Readings, Series
from rlstep_hooks.judge.report import Counts, Report
from rlstep_hooks.judge.rules.catalogue import BY_CODE, RULES
from rlstep_hooks.judge.symptoms import SYMPTOMS, CauseAnswer, SymptomAnswer, why
from rlstep_hooks.record.events import AnyEvent, Update
from tests.scripted import make_plan, scripted_run

if TYPE_CHECKING:
    from rlstep_hooks.judge.settings import Knob
    from rlstep_hooks.planning.schedule import Schedule

PLAN = make_plan()
ON_PLAN_ONLY = {
    "RLS110", "RLS111", "RLS112", "RLS114", "RLS115", "RLS116", "RLS117", "RLS118",
}  # fmt: skip
"""Rules that look at a launch before it runs; no record holds what they found."""
KNOBS: dict[Knob, str] = {"learning_rate": "lr", "kl_coefficient": "beta", "passes": "num_iterations", "warmup": "warm"}


def answers(events: list[AnyEvent]) -> dict[str, CauseAnswer]:
    """The answers about all causes, by their words."""
    judge = Judge()
    for event in events:
        judge.observe(event)
    return {cause.words: cause for answer in why(judge.report()) for cause in answer.causes}


def named() -> set[str]:
    return {code for symptom in SYMPTOMS for cause in symptom.causes for code in cause.codes}


def test_causes_name_rules_that_exist() -> None:
    assert named() <= BY_CODE.keys()


def test_every_rule_of_a_run_is_a_cause() -> None:
    """A new rule is put under the symptom that it explains."""
    assert {rule.code for rule in RULES} <= named()
    assert BY_CODE.keys() - named() == ON_PLAN_ONLY


def test_every_symptom_has_something_left_to_say() -> None:
    assert all(symptom.suspects and symptom.causes for symptom in SYMPTOMS)


def test_names_are_told_apart() -> None:
    assert len({symptom.name for symptom in SYMPTOMS}) == len(SYMPTOMS)


def test_a_healthy_run_has_no_cause() -> None:
    assert "found" not in {cause.state for cause in answers(scripted_run(PLAN)).values()}


def test_what_no_rule_saw_is_not_excluded() -> None:
    cause = answers(scripted_run(PLAN))["the reference changes, or its log-probs come from elsewhere"]
    assert cause.state in ("not observed", "excluded")
    assert (cause.state == "excluded") == ("checks" in cause.evidence)


def test_a_missing_update_is_found_where_it_is_asked_for() -> None:
    events = [each for each in scripted_run(PLAN) if not (isinstance(each, Update) and each.index == 4)]
    found = answers(events)["updates are missing, skipped, or made too early or at the wrong turn"]
    assert found.state == "found"
    assert found.evidence.startswith("RLS2")


@pytest.mark.parametrize(("lags", "state"), [((0,), "by design"), ((0, 1), "excluded")])
def test_the_plan_itself_may_be_the_cause(lags: tuple[int, ...], state: str) -> None:
    judge = Judge()
    for event in scripted_run(PLAN):
        judge.observe(event)
    report = judge.report()
    assert report.schedule is not None
    report = msgspec.structs.replace(report, schedule=msgspec.structs.replace(report.schedule, lags=lags))
    (answer,) = why(report, ("ratio-one",))
    of_plan = next(cause for cause in answer.causes if "RLS102" in cause.codes)
    assert of_plan.state == state


def test_an_unknown_symptom_is_a_key_error() -> None:
    judge = Judge()
    for event in scripted_run(PLAN):
        judge.observe(event)
    with pytest.raises(KeyError):
        why(judge.report(), ("no-such",))


def series(*values: float) -> Series:
    return Series(
        count=len(values),
        first=values[0],
        last=values[-1],
        smallest=min(values),
        largest=max(values),
        mean=sum(values) / len(values),
    )


def about(name: str, plan: Schedule = PLAN, **fields: Any) -> SymptomAnswer:
    """The answer about one symptom of a run that no rule looked at."""
    report = Report(verdict="PASS", schedule=plan, complete=True, **fields)
    (answer,) = why(report, (name,), knobs=KNOBS)
    return answer


def lag(number: int, mean: float, most: float | None = None, clipped: float | None = None) -> LagValues:
    most = 2 * mean if most is None else most
    return LagValues(lag=number, microbatches=8, max_abs_log_ratio=most, mean_abs_log_ratio=mean, clipped=clipped)


def test_a_large_step_is_the_likeliest_where_log_ratios_are_far_off() -> None:
    readings = Readings(learning_rate=series(0.3, 0.3))
    found = about(
        "kl-explodes", make_plan(iterations=2), lags=[lag(0, 0.0), lag(1, 1.9, 25.0, 0.35)], readings=readings
    )
    first = found.left[0]
    assert "learning rate of 0.3" in first.words
    assert "25" in first.words
    assert first.change == "lower lr: try 0.03, a tenth; begin with warm"
    assert found.conclusion.endswith(first.words)


def test_a_small_step_is_no_explanation_of_an_explosion() -> None:
    left = about("kl-explodes", make_plan(iterations=2), lags=[lag(0, 0.0), lag(1, 0.002)]).left
    assert not any("updates are large" in each.words for each in left)


def test_a_step_that_moves_nothing_explains_a_flat_reward() -> None:
    found = about("reward-flat", make_plan(iterations=2), lags=[lag(0, 0.0), lag(1, 1e-6)])
    assert found.left[0].words.startswith("updates hardly move the policy")
    assert found.left[0].change == "raise lr"


def test_beta_0_is_by_design() -> None:
    plan = msgspec.structs.replace(make_plan(beta=0.0), settings={"beta": 0.0})
    found = about("kl-zero", plan)
    assert found.conclusion.startswith("by design: beta = 0")
    assert [each.design for each in found.left] == [True]


def test_a_kl_term_of_a_framework_without_names_is_said_in_words() -> None:
    report = Report(verdict="PASS", schedule=make_plan(beta=0.0))
    (found,) = why(report, ("kl-zero",))
    assert found.left[0].change == "set the coefficient of the KL above 0 if you want one"


def test_a_reference_with_a_kl_is_not_by_design() -> None:
    found = about("kl-zero", make_plan(beta=0.04), readings=Readings(reference_kl=series(0.0, 0.004)))
    assert not found.left[0].design
    assert found.left[0].words.startswith("the KL is not 0 but small")


@pytest.mark.parametrize(("made", "words"), [(68, "more steps"), (60, "fewer steps"), (64, "as many steps")])
def test_more_steps_are_not_called_fewer(made: int, words: str) -> None:
    plan = make_plan(max_steps=64)
    assert plan.updates == 64
    found = about("fewer-steps", plan, counts=Counts(updates=made))
    assert words in found.words
    assert bool(found.sign) == (made != 64)


def test_groups_without_signal_come_first() -> None:
    readings = Readings(
        groups=10,
        equal_groups=9,
        reward_mean=series(1.0, 1.0),
        reward_deviation=series(0.1, 0.1),
        advantage=series(1.0),
    )
    found = about("reward-flat", make_plan(iterations=2), lags=[lag(0, 0.0), lag(1, 0.01)], readings=readings)
    assert found.left[0].words.startswith("in 9 of 10 groups")
    assert found.sign


def test_what_the_record_does_not_hold_is_said_to_be_unknown() -> None:
    found = about("entropy-falls", make_plan(iterations=2))
    assert {each.weight for each in found.left} <= {0, 1}
    assert "the record does not hold" in " ".join(each.words for each in found.left)


def test_symptoms_that_show_come_first() -> None:
    readings = Readings(entropy=Series(count=32, first=4.0, last=0.4, smallest=0.3, largest=4.1, mean=1.0))
    answers = why(Report(verdict="PASS", schedule=make_plan(iterations=2), readings=readings))
    assert answers[0].name == "entropy-falls"
    assert answers[0].shown
    assert not any(each.shown for each in answers[1:])


def test_a_found_fault_leaves_no_mere_possibilities() -> None:
    events = [each for each in scripted_run(PLAN) if not (isinstance(each, Update) and each.index == 4)]
    judge = Judge()
    for event in events:
        judge.observe(event)
    for answer in why(judge.report()):
        if answer.found:
            assert answer.conclusion.startswith("a fault was found")
            assert all(left.weight == 2 for left in answer.left)
