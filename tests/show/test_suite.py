"""The table of an audited test suite."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from rlstep_hooks.judge.report import Report
from rlstep_hooks.judge.suite import AuditedTest, Suite
from rlstep_hooks.planning.finding import Finding, Where
from rlstep_hooks.show.suite import suite_table, width

ERROR = Finding(
    code="RLS201", severity="error", title="Rollout too early", expected="an update", observed="a rollout", where=Where(), why="w",
    fix="f",
)  # fmt: skip
INFO = Finding(
    code="RLS102", severity="info", title="The ratio is 1", expected="", observed="lag 0", where=Where(), why="", fix=""
)  # fmt: skip
RAISED = Report(
    run="b", verdict="NOT_EVALUATED", ending="raised", error="ValueError: no [reward]\nmore",
    not_evaluated={"end": "training raised ValueError", "weights": "the model is compiled"},
)  # fmt: skip


def shown(suite: Suite, columns: int = 140) -> list[str]:
    file = StringIO()
    Console(file=file, width=columns, color_system=None, highlight=False).print(suite_table(suite))
    return [" ".join(line.split()) for line in file.getvalue().splitlines() if line.strip()]


def test_test_verdict_findings_and_what_was_not_evaluated() -> None:
    passed = Report(run="a", verdict="PASS", ending="completed", findings=[INFO])
    failed = Report(run="c", verdict="FAIL", ending="completed", findings=[INFO, ERROR])
    suite = Suite(
        (
            AuditedTest(name="t.py::test_a[x]", outcome="passed", reports=(passed,)),
            AuditedTest(name="t.py::test_b", outcome="passed", untrained=("GRPOTrainer",)),
            AuditedTest(name="t.py::test_c", outcome="failed", reports=(failed, failed)),
            AuditedTest(name="t.py::test_d", outcome="passed", reports=(RAISED,), untrained=("GRPOTrainer",)),
            AuditedTest(name="t.py::test_e", outcome="passed", reports=(RAISED, failed)),
            AuditedTest(name="u.py::Tests::test_f", refused=("TRL 9.9 is not supported",)),
        ),
        others=7,
    )
    assert shown(suite) == [
        "test ended audit findings not evaluated",
        "t.py",
        "test_a[x] passed PASS RLS102",
        "test_b passed not trained",
        "test_c failed FAIL error RLS201, RLS102",
        "test_d passed NOT EVALUATED [1] [2] [3]",
        "test_e passed FAIL error RLS201, RLS102 [2] [3]",
        "u.py",
        "Tests::test_f did not end NOT EVALUATED [4]",
        "not evaluated, and why",
        "[1] GRPOTrainer was built and not trained (1 test)",
        "[2] training raised ValueError: no [reward] (2 tests)",
        "[3] updates of the weights: the model is compiled (2 tests)",
        "[4] TRL 9.9 is not supported (1 test)",
        "t.py::test_c, and 1 more test",
        "ERROR RLS201 Rollout too early · the whole run",
        "expected an update",
        "observed a rollout",
        "why w",
        "fix f",
        "6 tests, 6 training calls: 1 PASS, 2 FAIL, 2 NOT EVALUATED, 1 not trained; 7 tests built no trainer that is audited",
    ]


def test_a_suite_without_a_trainer_says_so() -> None:
    assert shown(Suite((), others=3))[-1] == "0 tests, 0 training calls: none; 3 tests built no trainer that is audited"


def test_a_file_has_room_for_names_of_tests_and_a_terminal_keeps_its_width() -> None:
    assert (width(80, terminal=False), width(200, terminal=False), width(80, terminal=True)) == (140, 200, 80)
