"""The data of real bugs is whole, and its page says what it does."""

from __future__ import annotations

import pytest

from rlstep_hooks.judge.links import LINKS
from rlstep_hooks.judge.rules import BY_CODE
from tests.bugs.bug import Bug, bugs
from tests.bugs.page import BEGIN, PAGE, page_with_tables

BUGS = bugs()


def test_the_page_has_the_tables() -> None:
    text = PAGE.read_text()
    assert text.count(BEGIN) == 1
    assert text == page_with_tables(text), "python -m tests.bugs.page writes it"


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_a_bug_is_whole(bug: Bug) -> None:
    assert bug.link in {link.name for link in LINKS}
    assert bug.rule in BY_CODE
    assert bug.url.startswith(f"https://github.com/{bug.repository.partition('@')[0]}/")
    assert all((bug.wrong, bug.seen, bug.before, bug.made_in, bug.fault))
    assert (bug.way == "published releases") == bool(bug.silent_in)
    assert "|" not in f"{bug.wrong}{bug.seen}{bug.cause}{bug.not_found}", "a table of the page has it"


def test_each_bug_is_told_once() -> None:
    reports = [bug.report for bug in BUGS.values()]
    assert len(set(reports)) == len(reports)
