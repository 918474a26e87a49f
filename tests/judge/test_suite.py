"""An audited test suite: which test built, trained and was refused what, and its verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.deviations import none_known
from rlstep_hooks.judge.report import Report
from rlstep_hooks.judge.suite import AuditedTest, Suite, TrainingCall, recorded_suite, suite_of
from rlstep_hooks.planning.finding import Finding, Where
from rlstep_hooks.record.ledger import FolderLedger, rank_process
from rlstep_hooks.record.suite import SUFFIX, Built, Ended, Refused
from tests.scripted import make_plan, scripted_run

if TYPE_CHECKING:
    from pathlib import Path

PASSED = Report(run="a", verdict="PASS", ending="completed")
BROKEN = Report(run="b", verdict="NOT_EVALUATED", ending="raised", error="ValueError: no")


def finding(severity: str) -> Finding:
    return Finding(
        code="RLS201", severity=severity, title="t", expected="e", observed="o", where=Where(), why="w", fix="f"  # type: ignore[arg-type]
    )  # fmt: skip


def test_each_training_call_is_its_tests_and_a_trainer_without_one_is_not_trained() -> None:
    lines = [
        Built("t::twice", "GRPOTrainer", "1"), Ended("t::twice", "passed"),
        Built("t::built", "GRPOTrainer", "2"), Ended("t::built", "passed"),
        Built("t::both", "RLOOTrainer", "3"), Built("t::both", "GRPOTrainer", "4"), Ended("t::both", "failed"),
        Ended("t::neither", "passed"),
        Built("t::killed", "GRPOTrainer", "5"),
    ]  # fmt: skip
    calls = [
        TrainingCall("t::twice", "1", PASSED),
        TrainingCall("t::twice", "1", BROKEN),
        TrainingCall("t::both", "4", PASSED),
        TrainingCall("t::own loop", "", PASSED),
    ]
    assert suite_of(lines, calls) == Suite(
        (
            AuditedTest(name="t::twice", outcome="passed", reports=(PASSED, BROKEN)),
            AuditedTest(name="t::built", outcome="passed", untrained=("GRPOTrainer",)),
            AuditedTest(name="t::both", outcome="failed", reports=(PASSED,), untrained=("RLOOTrainer",)),
            AuditedTest(name="t::killed", untrained=("GRPOTrainer",)),
            AuditedTest(name="t::own loop", reports=(PASSED,)),
        ),
        others=1,
    )


def test_a_trainer_built_in_one_test_and_trained_in_another_is_trained() -> None:
    suite = suite_of([Built("t::first", "GRPOTrainer", "1")], [TrainingCall("t::second", "1", PASSED)])
    assert [(test.name, test.untrained, test.verdict) for test in suite.tests] == [
        ("t::first", (), None), ("t::second", (), "PASS"),
    ]  # fmt: skip


def test_a_refused_trainer_is_not_evaluated_and_not_called_untrained() -> None:
    lines = [Built("t::x", "GRPOTrainer", "1"), Refused("t::x", "TRL 9.9 is not supported"), Ended("t::x", "passed")]
    (test,) = suite_of(lines, []).tests
    assert (test.verdict, test.untrained, test.refused) == ("NOT_EVALUATED", (), ("TRL 9.9 is not supported",))


def test_the_worst_verdict_counts_and_a_warning_fails_only_strictly() -> None:
    failed = Report(run="c", verdict="FAIL", findings=[finding("error")])
    warned = Report(run="d", verdict="PASS", findings=[finding("warning")])

    def of(*reports: Report) -> AuditedTest:
        return AuditedTest(name="t", reports=reports)

    assert [of(*r).verdict for r in ((PASSED, failed, BROKEN), (PASSED, BROKEN), (PASSED, warned), ())] == [
        "FAIL", "NOT_EVALUATED", "PASS", None,
    ]  # fmt: skip
    assert [of(r).fails(strict=strict) for r in (failed, warned, BROKEN) for strict in (False, True)] == [
        True, True, False, True, False, False,
    ]  # fmt: skip


def test_a_folder_is_read_with_what_is_new_and_a_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    plan = make_plan(max_steps=4)
    for name, facts in (("old", {"test": "t::old"}), ("new", {"test": "t::new", "trainer": "1"}), ("script", {})):
        ledger = FolderLedger(tmp_path, name, rank_process(0))
        first, *rest = scripted_run(plan)
        ledger.write(type(first)(**{f: getattr(first, f) for f in first.__struct_fields__} | {"facts": facts}), *rest)
        ledger.close()
    (tmp_path / f"1-1{SUFFIX}").write_text('{"type":"ended","test":"t::old","outcome":"passed"}\n')
    (tmp_path / f"2-1{SUFFIX}").write_text('{"type":"ended","test":"t::new","outcome":"passed"}\n{"type":"end')
    suite, others = recorded_suite(tmp_path, {"old", f"1-1{SUFFIX}"}, deviations_of=none_known)
    assert [(test.name, test.outcome, test.verdict) for test in suite.tests] == [("t::new", "passed", "PASS")]
    assert [report.run for report in others] == ["script"]
    assert recorded_suite(tmp_path / "none", deviations_of=none_known) == (Suite(), [])
