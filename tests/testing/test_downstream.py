"""What compares two runs of a foreign suite: it must not pass over a difference."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from rlstep_hooks.judge.report import Report
from rlstep_hooks.judge.suite import AuditedTest, Suite
from rlstep_hooks.planning.finding import Finding, Where
from tests.downstream.__main__ import differences, empty, figures, news, outcomes

if TYPE_CHECKING:
    from pathlib import Path

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.t.T" name="a[x]"/><testcase classname="tests.t" name="b"><failure/></testcase>
<testcase classname="tests.t" name="c"><skipped/></testcase><testcase classname="tests.t" name="d"><system-out/><error/></testcase>
</testsuite></testsuites>"""


def suite(code: str, name: str) -> Suite:
    found = Finding(
        code=code, severity="warning", title="t", expected="e", observed="o", where=Where(), why="w", fix="f"
    )
    return Suite(
        (
            AuditedTest(
                name=name, outcome="passed", reports=(Report(verdict="PASS", ending="completed", findings=[found]),)
            ),
        )
    )


def test_how_tests_end_is_read_and_compared() -> None:
    ended = outcomes(JUNIT)
    assert ended == {
        "tests.t.T::a[x]": "passed", "tests.t::b": "failed", "tests.t::c": "skipped", "tests.t::d": "error",
    }  # fmt: skip
    assert differences(ended, ended) == []
    other = {**ended, "tests.t::b": "passed", "tests.t::e": "passed"}
    del other["tests.t::c"]
    assert differences(ended, other) == [
        "tests.t::b: failed without the audit, passed with it",
        "tests.t::c: skipped without the audit, absent with it",
        "tests.t::e: absent without the audit, passed with it",
    ]


def test_a_finding_is_news_unless_somebody_has_looked_at_it_in_this_test() -> None:
    known = "tests/t.py::T::test_reward_metric_reflects_reward_weights[x::y]"
    assert news(suite("RLS505", "tests/t.py::T::test_reward_metric_reflects_reward_weights[sum]")) == []
    assert news(suite("RLS506", known)) != []
    assert news(suite("RLS505", "tests/t.py::T::test_other")) == [
        "tests/t.py::T::test_other: warning RLS505 t: observed o"
    ]
    assert list(figures({"a": "passed"}, {"a": "passed"}, suite("RLS505", known)))[-2:] == [
        "1 training calls in 1 tests; 1 PASS",
        "findings: warning RLS505 in 1",
    ]


def test_two_runs_that_start_nothing_prove_nothing() -> None:
    audited = suite("RLS505", "tests/t.py::T::test_other")
    assert empty({"tests.t::a": "passed", "tests.t::b": "error"}, audited) == []
    assert empty({"tests.t::a": "passed", "::tests.u": "error"}, audited) == ["::tests.u was not collected"]
    assert empty({"tests.t::a": "failed"}, Suite(())) == ["no test passed", "no training call was audited"]


def test_without_a_checkout_it_says_what_is_needed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.downstream", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert done.returncode == 2
    assert "git clone --depth 1 --branch v1.9.0 https://github.com/huggingface/trl" in done.stderr
