"""From what people notice to causes: every rule of a run is a cause of something, and what was found, excluded or unseen is said so."""

from __future__ import annotations

import msgspec
import pytest

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.rules.catalogue import BY_CODE
from rlstep_hooks.judge.symptoms import SYMPTOMS, CauseAnswer, why
from rlstep_hooks.record.events import AnyEvent, Update
from tests.scripted import make_plan, scripted_run

PLAN = make_plan()
ON_PLAN_ONLY = {
    "RLS110",
    "RLS111",
    "RLS112",
    "RLS113",
    "RLS114",
    "RLS115",
    "RLS116",
    "RLS117",
    "RLS118",
    "RLS510",
    "RLS512",
    "RLS604",
    "RLS610",
}
OF_OTHER_THINGS = {
    "RLS202", "RLS209", "RLS211", "RLS212", "RLS404", "RLS408", "RLS502", "RLS503", "RLS504", "RLS507", "RLS901", "RLS902",
}  # fmt: skip
"""Faults that show by themselves, or as no symptom of the list."""


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


def test_every_rule_is_a_cause_or_said_to_be_none() -> None:
    """A new rule is put under the symptom that it explains."""
    assert BY_CODE.keys() - named() == ON_PLAN_ONLY | OF_OTHER_THINGS


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
    found = answers(events)["updates are missing or skipped"]
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
