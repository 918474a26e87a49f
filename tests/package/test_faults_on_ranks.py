"""The page of faults on several ranks says what the corpus's own table does."""

from __future__ import annotations

from collections import Counter

from tests.systems.trl_ranks.differences import BEGIN, DIFFERENCES, EVERYWHERE, PAGE, differences_of, page_with_table


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text()
    assert text.count(BEGIN) == 1
    assert text == page_with_table(text), "python -m tests.systems.trl_ranks.differences writes it"


def test_a_fault_has_one_difference_in_a_deployment() -> None:
    for deployment in EVERYWHERE:
        named = [fault for of in DIFFERENCES if deployment in of.among for fault in of.faults]
        assert {fault: count for fault, count in Counter(named).items() if count > 1} == {}
        assert set(differences_of(deployment)) == set(named)
