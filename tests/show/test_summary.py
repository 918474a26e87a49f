"""The verdict in words: a PASS beside which something warned says so."""

from __future__ import annotations

import pytest

from rlstep_hooks.judge.report import Report
from rlstep_hooks.planning.finding import Finding, Severity, Verdict, Where
from rlstep_hooks.show.summary import verdict_words


def finding(code: str, severity: Severity) -> Finding:
    texts = dict.fromkeys(("title", "expected", "observed", "why", "fix"), "x")
    return Finding(code=code, severity=severity, where=Where(), **texts)


@pytest.mark.parametrize(
    ("verdict", "found", "words"),
    [
        ("PASS", [], "PASS"),
        ("PASS", [finding("RLS102", "info")], "PASS"),
        ("PASS", [finding("RLS301", "warning")], "PASS, 1 warning"),
        (
            "PASS",
            [finding("RLS301", "warning"), finding("RLS301", "warning"), finding("RLS505", "warning")],
            "PASS, 2 warnings",
        ),
        ("FAIL", [finding("RLS301", "warning"), finding("RLS201", "error")], "FAIL"),
        ("NOT_EVALUATED", [finding("RLS301", "warning")], "NOT EVALUATED"),
    ],
)
def test_a_pass_with_warnings_says_so(verdict: Verdict, found: list[Finding], words: str) -> None:
    assert verdict_words(Report(verdict=verdict, findings=found)) == words
