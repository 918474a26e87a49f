"""The page of each rule: it has all sections, its example is what the rule says, and its sources are addresses."""

from __future__ import annotations

import re

import pytest

from rlstep_hooks.cli import rules as command
from rlstep_hooks.judge.rules import BY_CODE, Rule
from rlstep_hooks.judge.rules.page import EXAMPLE, HEADINGS, NOT_EVALUATED, Section, page
from tests.judge.rule_examples import EXAMPLES, example

of_each_rule = pytest.mark.parametrize("rule", list(BY_CODE.values()), ids=lambda rule: rule.code)


def sections(rule: type[Rule]) -> dict[str, Section]:
    return {section.heading: section for section in page(rule)}


def test_every_rule_has_an_example() -> None:
    assert set(EXAMPLES) == set(BY_CODE)


@of_each_rule
def test_a_page_has_all_sections_in_their_order(rule: type[Rule]) -> None:
    written = [section.heading for section in page(rule)]
    made = [NOT_EVALUATED] if rule.seen_in != "plan" else []
    assert written == ["", *HEADINGS[:4], *made, *HEADINGS[4:]]
    assert all(len(section.text.split()) >= 5 for section in page(rule))


@of_each_rule
def test_the_example_is_what_the_rule_says(rule: type[Rule]) -> None:
    """`python -m tests.judge.rule_examples` writes it."""
    assert sections(rule)[EXAMPLE].text == example(rule.code)


@of_each_rule
def test_the_first_sentence_says_what_is_wrong(rule: type[Rule]) -> None:
    (summary,) = sections(rule)[""].blocks
    assert summary.endswith(".")


@of_each_rule
def test_sources_are_addresses_with_what_they_say(rule: type[Rule]) -> None:
    items = sections(rule)["Sources"].blocks
    assert all(re.fullmatch(r"- https?://\S+: \S.*", item) for item in items)
    assert not rule.report or any(f" {rule.report}:" in item for item in items)


@of_each_rule
def test_limits_are_a_list_of_sentences(rule: type[Rule]) -> None:
    assert all(re.fullmatch(r"- .*\.", item) for item in sections(rule)["Known limits"].blocks)


@of_each_rule
def test_the_command_prints_the_whole_page(
    rule: type[Rule], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "130")
    assert command.show(rule.code.lower()) == 0
    printed = capsys.readouterr().out
    lines = [line.rstrip() for line in printed.splitlines()]
    headings = [section.heading for section in page(rule) if section.heading]
    assert [line for line in lines if line in headings] == headings
    for line in example(rule.code).splitlines():
        assert f"    {line}" in lines, "an example is printed as it stands"
    words = re.sub(r"\s+", " ", printed)
    for section in page(rule):
        if section.heading != EXAMPLE:
            assert all(block in words for block in section.blocks)
