"""The catalogue of rules: codes and pages, and that every difference belongs to exactly one rule."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import get_args

import pytest

import rlstep_hooks.judge.rules
from rlstep_hooks.judge.conformance import Difference, OrderedEvent
from rlstep_hooks.judge.rules import BY_CODE, HUNDREDS, RANK_RULES, RULES
from rlstep_hooks.judge.rules.base import HANDLERS, Rule
from rlstep_hooks.judge.rules.plan_checks import PLAN_RULES
from rlstep_hooks.judge.rules.progress import Progress
from rlstep_hooks.judge.timeline import (
    ExpectedEnd,
    ExpectedEpochEnd,
    ExpectedEvent,
    ExpectedMicroBatch,
    ExpectedRefresh,
    ExpectedRollout,
    ExpectedSync,
    ExpectedUpdate,
)
from rlstep_hooks.planning.finding import Where
from rlstep_hooks.record.events import TOPICS, EpochEnd, MicroBatch, Refresh, Rollout, RunEnded, Update, WeightSync
from rlstep_hooks.systems.engine.index import deviations_of
from tests.scripted import RELEASES, make_plan, started

PLAN = make_plan(iterations=2, max_steps=8)

EXPECTED: tuple[ExpectedEvent, ...] = (
    ExpectedRollout(8, 0, False),
    ExpectedRefresh(0),
    ExpectedMicroBatch(4, 0),
    ExpectedUpdate(2),
    ExpectedSync(0),
    ExpectedEpochEnd(1),
    ExpectedEnd(8),
)
OBSERVED: tuple[OrderedEvent, ...] = (
    Rollout(index=0, samples=4, policy_version=0, reference=True),
    Refresh(rollout=0, samples=4, positions=32, policy_version=1),
    MicroBatch(index=0, samples=3, policy_version=1, sampled_version=0, old_version=0),
    Update(index=0, version=1, microbatches=3),
    WeightSync(policy_version=1),
    EpochEnd(epoch=1),
    RunEnded(status="completed", updates=8),
)
KINDS = [(e, o) for e in EXPECTED for o in OBSERVED if EXPECTED.index(e) != OBSERVED.index(o)]
NUMBERS = [
    (EXPECTED[0], OBSERVED[0], "samples"),
    (EXPECTED[0], OBSERVED[0], "reference"),
    (EXPECTED[1], OBSERVED[1], "version"),
    (EXPECTED[2], OBSERVED[2], "samples"),
    (EXPECTED[2], OBSERVED[2], "lag"),
    (EXPECTED[3], OBSERVED[3], "microbatches"),
    (EXPECTED[4], OBSERVED[4], "version"),
    (ExpectedMicroBatch(4, None, "critic"), OBSERVED[2], "kind"),
    (ExpectedUpdate(2, "critic"), OBSERVED[3], "kind"),
    (EXPECTED[2], MicroBatch(index=0, samples=3, policy_version=1, role="critic"), "kind"),
]


def names(pair: object) -> str:
    return pair if isinstance(pair, str) else type(pair).__name__


def claiming(difference: Difference) -> list[str]:
    rules = [rule(Progress(PLAN, started(PLAN))) for rule in RULES]
    for rule in rules:
        rule.difference(difference)
    return [rule.code for rule in rules if rule.fresh]


def test_all_pairs_of_kinds_are_here() -> None:
    assert len(KINDS) == 7 * 6
    assert {type(o) for o in OBSERVED} == set(get_args(OrderedEvent))
    assert {type(e) for e in EXPECTED} == set(get_args(ExpectedEvent))


@pytest.mark.parametrize(("expected", "observed"), KINDS, ids=names)
def test_each_difference_of_kinds_is_claimed_by_one_rule(expected: ExpectedEvent, observed: OrderedEvent) -> None:
    claims = claiming(Difference(expected, observed, "kind", Where()))
    assert len(claims) == 1, claims


@pytest.mark.parametrize(("expected", "observed", "aspect"), NUMBERS, ids=names)
def test_each_difference_in_a_number_is_claimed_by_one_rule(
    expected: ExpectedEvent, observed: OrderedEvent, aspect: str
) -> None:
    claims = claiming(Difference(expected, observed, aspect, Where()))  # type: ignore[arg-type]
    assert len(claims) == 1, claims


def all_rules() -> set[type[Rule]]:
    """Every rule that some module of the package defines."""
    for module in pkgutil.walk_packages(rlstep_hooks.judge.rules.__path__, "rlstep_hooks.judge.rules."):
        importlib.import_module(module.name)
    found: set[type[Rule]] = set()
    open_classes = [Rule]
    while open_classes:
        for kind in open_classes.pop().__subclasses__():
            open_classes.append(kind)
            # What several rules are built on has no code of its own.
            if (
                kind.__module__.startswith("rlstep_hooks.")
                and hasattr(kind, "code")
                and not kind.__name__.startswith("_")
            ):
                found.add(kind)
    return found


def test_every_rule_is_in_the_catalogue_under_its_own_code() -> None:
    assert set(BY_CODE.values()) == all_rules()
    assert len(BY_CODE) == len(all_rules())
    assert set(RANK_RULES) <= set(RULES)


def test_a_rule_is_asked_where_it_can_see() -> None:
    assert {rule for rule in all_rules() if rule.seen_in != "plan"} == set(RULES)
    assert {rule for rule in all_rules() if rule.seen_in != "run"} == set(PLAN_RULES)


@pytest.mark.parametrize("rule", BY_CODE.values(), ids=lambda rule: rule.code)
def test_a_rule_has_a_code_and_a_title(rule: type[Rule]) -> None:
    assert re.fullmatch(r"RLS[1-9]\d\d", rule.code)
    assert rule.title
    assert rule.title == rule.title.strip().rstrip(".")
    assert set(rule.topics) <= set(TOPICS)
    assert rule.nothing_seen
    assert bool(rule.report) == (rule.seen_in != "run")


def test_titles_tell_rules_apart() -> None:
    assert len({rule.title for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", BY_CODE.values(), ids=lambda rule: rule.code)
def test_a_rule_lives_in_the_module_or_package_of_its_hundred(rule: type[Rule]) -> None:
    home = rule.__module__.removeprefix("rlstep_hooks.judge.rules.").partition(".")[0]
    assert home == HUNDREDS[rule.code[3]][0]


WITHOUT_HANDLER = {*RANK_RULES, BY_CODE["RLS110"], BY_CODE["RLS116"]}
"""`rlstep_hooks.judge.ranks.merge` evaluates the first two; the others are what a framework refuses."""


@pytest.mark.parametrize(
    "rule", [rule for rule in BY_CODE.values() if rule not in WITHOUT_HANDLER], ids=lambda rule: rule.code
)
def test_a_rule_handles_some_event_and_names_no_other_handler(rule: type[Rule]) -> None:
    own = {name for kind in rule.__mro__ if kind is not Rule for name in vars(kind) if name in vars(Rule)}
    assert own & (set(HANDLERS) if rule.seen_in == "run" else {"started"})


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.trl)
def test_known_deviations_explain_rules_that_exist(release: object) -> None:
    deviations = deviations_of("TRL", release.trl)  # type: ignore[attr-defined]
    assert deviations
    assert all(deviation.codes and deviation.codes <= set(BY_CODE) for deviation in deviations)
    assert all(d.document and d.code and d.evidence and d.workaround for d in deviations)
    assert len({d.name for d in deviations}) == len(deviations)


def test_a_framework_without_known_deviations_has_none() -> None:
    assert deviations_of("nobody's", "1.0") == ()


def test_a_deviation_holds_from_its_first_release_to_the_one_that_fixed_it() -> None:
    held = {
        release: {d.name for d in deviations_of("TRL", release)} for release in ("0.17.0", "0.18.2", "0.19.1", "0.20.0")
    }
    name = "trl-stale-without-old-log-probs"
    assert [release for release, found in held.items() if name in found] == ["0.18.2", "0.19.1"]
