"""The table of what is compared: each page that speaks of it says what the systems declare, and a cadence is written down once."""

from __future__ import annotations

import msgspec
import pytest

from rlstep_hooks.judge.rules import BY_CODE
from rlstep_hooks.judge.rules.page import LIMITS, page
from rlstep_hooks.record.cadence import WORDS
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.declaration import System
from rlstep_hooks.systems.engine.limits import FILE, PROBED, PROVED, limits, text_of
from rlstep_hooks.systems.engine.links import NAMES, RULES, in_words, limited, no, none, yes
from tests.reports import is_evaluated, proved_rules

OBSERVED = index.observed()


def system(title: str, **declared: object) -> System:
    return System(name=title.lower(), title=title, version="1", **declared)  # type: ignore[arg-type]


def said(code: str, *systems: System) -> list[str]:
    return limits(systems)[code]


def test_the_file_of_the_rules_is_what_the_systems_declare() -> None:
    """`python -m rlstep_hooks.systems.engine.limits` writes it."""
    assert FILE.read_text() == text_of(limits(OBSERVED))


@pytest.mark.parametrize("code", limits(OBSERVED))
def test_the_page_of_a_rule_lists_what_is_said_of_it(code: str) -> None:
    (section,) = (section for section in page(BY_CODE[code]) if section.heading == LIMITS)
    assert section.blocks[-len(limits(OBSERVED)[code]) :] == [f"- {limit}" for limit in limits(OBSERVED)[code]]


@pytest.mark.parametrize("of", OBSERVED, ids=lambda of: of.name)
def test_each_rule_that_a_system_speaks_of_is_one_that_looks_at_runs(of: System) -> None:
    assert {code for code in of.rules if BY_CODE[code].seen_in != "plan"} == set(of.rules)


@pytest.mark.parametrize("of", OBSERVED, ids=lambda of: of.name)
def test_a_link_of_several_rules_says_what_each_of_them_compares(of: System) -> None:
    """Else the page of a rule would say of another one what it compares."""
    for name, link in of.links.items():
        if link.compared and len(RULES[name]) > 1:
            assert any(code in of.rules for code in RULES[name]), name


def test_no_rule_of_a_link_that_is_not_compared_is_said_to_compare_something() -> None:
    found = {
        (of.name, code)
        for of in OBSERVED
        for name, link in of.links.items()
        if not link.compared and link.exists
        for code in RULES[name]
        if code in of.rules and of.rules[code].compared
    }
    assert not found


def test_a_line_says_how_often() -> None:
    link = yes("the norm", "not shards", often="whole")
    assert in_words(link) == f"the norm ({WORDS['whole']}); not shards"
    (line, *_) = said("RLS808", system("A", links={"gradient norm": link}))
    assert line == f"A: the norm ({WORDS['whole']}); not shards."


def test_systems_of_which_the_same_is_said_stand_in_one_line() -> None:
    moments = {"optimizer moments": yes("from one step to the next")}
    found = said("RLS807", system("B", links=moments), system("A", links=moments), system("a loop", links=moments))
    assert found == ["A, a loop and B: from one step to the next.", PROVED]
    assert said("RLS807", system("a loop", links=moments))[0] == "A loop: from one step to the next."


def test_a_link_that_is_not_compared_says_why_and_one_that_is_not_there_says_nothing() -> None:
    some = system("A", links={"mask": yes("the mask")})
    other, third = system("B", links={"mask": no("it is hidden")}), system("C", links={"mask": none("no masks")})
    assert said("RLS518", some, other, third) == ["A: the mask.", "Not compared: B (it is hidden).", PROVED]


def test_where_few_systems_are_looked_at_the_others_are_said_not_to_be() -> None:
    looks, silent = system("A", rules={"RLS309": yes("the mean ratio")}), system("B")
    assert said("RLS309", looks, silent) == ["A: the mean ratio.", "No other system is known to show it."]
    assert (is_evaluated(looks, "RLS309", (looks, silent)), is_evaluated(silent, "RLS309", (looks, silent))) == (1, 0)
    limit = system("A", rules={"RLS309": limited("not on Mondays", "compared")})
    assert said("RLS309", limit, silent) == [f"A: {WORDS['compared']}; not on Mondays."]
    assert is_evaluated(silent, "RLS309", (limit, silent))


def test_a_deployment_is_proved_where_it_is_named() -> None:
    loss = yes("its value", proved=("DDP", "ZeRO-3", "LoRA"))
    of = system("A", links={"loss": loss}, rules={"RLS801": yes("its value in float64")})
    assert (
        said("RLS801", of)[0]
        == "A: its value in float64; proved among several processes too (DDP, ZeRO-3); proved with LoRA too."
    )
    assert (proved_rules(of, "DDP"), proved_rules(of, "FSDP2")) == ({"RLS801"}, set())
    assert proved_rules(system("B", links={"loss": msgspec.structs.replace(loss, proved=())}), "DDP") == set()


def test_each_rule_that_looks_through_the_probe_says_how_far_it_sees() -> None:
    assert all("256 weights of each of up to 4 tensors" in limits(OBSERVED)[code][-1] for code in PROBED)


def test_each_link_has_rules_and_each_rule_one_link() -> None:
    codes = [code for name in NAMES for code in RULES[name]]
    assert len(codes) == len(set(codes))
