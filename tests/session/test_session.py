"""The life of one audit: its options, what ends training, and its end."""

from __future__ import annotations

import signal
from typing import Any

import msgspec
import pytest

from rlstep_hooks.judge.deviations import none_known
from rlstep_hooks.judge.report import StepAuditError, ends_training
from rlstep_hooks.observe.options import on_fail_asked
from rlstep_hooks.planning.finding import Finding, Where
from rlstep_hooks.planning.schedule import Schedule
from rlstep_hooks.record.events import Judged, MicroBatch, RunEnded, Unobserved
from rlstep_hooks.record.ledger import MemoryLedger
from rlstep_hooks.session.session import Options, Run, Session

FINDING = Finding(
    code="RLS601",
    severity="error",
    title="t",
    expected="e",
    observed="o",
    where=Where(),
    why="w",
    fix="f",
    planned=True,
)

PLAN = msgspec.structs.replace(Schedule.ppo(actors=4, steps=4, rollouts=3), lr_ticks=12)


def session(on_fail: Any = "warn", **more: Any) -> Session:
    made = Session(Options.asked(on_fail, None, ()), none_known)
    made.begin(Run(name="run", schedule=PLAN, versions={}, **more))
    return made


def events(audit: Session) -> list[Any]:
    assert audit.recorder is not None
    assert isinstance(audit.recorder.ledger, MemoryLedger)
    return list(audit.recorder.ledger.events)


def break_the_plan(audit: Session) -> None:
    """A micro-batch before any rollout."""
    assert audit.recorder is not None
    audit.recorder.emit(MicroBatch(index=0, samples=1, policy_version=0))


def test_an_audit_that_nothing_called_does_not_say_that_nothing_trained() -> None:
    report = Session(Options.asked("warn", None, ()), none_known).report
    assert (report.verdict, report.findings) == ("NOT_EVALUATED", [])
    assert report.not_evaluated["order"].startswith("no training has called this audit")


@pytest.mark.parametrize("text", ["stop", "Stop", "STOP", " stop "])
def test_case_does_not_matter(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSTEP_ON_FAIL", text)
    assert on_fail_asked() == on_fail_asked("Stop") == "stop"  # type: ignore[arg-type]


def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSTEP_ON_FAIL", "explode")
    with pytest.raises(ValueError, match=r'^RLSTEP_ON_FAIL is "warn", "stop" or "raise", not \'explode\'$'):
        on_fail_asked()
    with pytest.raises(ValueError, match=r'^on_fail is "warn", "stop" or "raise", not \'boom\'$'):
        on_fail_asked("boom")  # type: ignore[arg-type]


def test_what_the_plan_alone_shows_ends_no_training() -> None:
    happened = msgspec.structs.replace(FINDING, planned=False)
    assert ends_training([FINDING, msgspec.structs.replace(happened, severity="warning")]) is None
    assert ends_training([FINDING, happened]) is happened
    audit = session("raise", facts={"lr_horizon": 3})
    audit.raise_if_asked()
    assert [(found.code, found.planned) for found in audit.report.findings if found.severity == "error"] == [
        ("RLS601", True)
    ]
    break_the_plan(audit)
    with pytest.raises(StepAuditError) as caught:
        audit.raise_if_asked()
    assert not caught.value.finding.planned
    audit.raise_if_asked()  # only once


def test_a_run_that_the_audit_ends_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    audit = session("stop")
    assert not audit.stop_if_asked()
    break_the_plan(audit)
    assert audit.stop_if_asked()
    audit.end()
    *_, ended, _ = events(audit)
    assert (ended.status, ended.stopped, ended.stopped_by) == ("completed", True, audit.report.findings[0].code)
    assert audit.report.stopped_by == ended.stopped_by
    said = capsys.readouterr().err
    assert said.startswith("rlstep: on_fail=stop ended training after 0 updates of ")
    assert ended.stopped_by in said


class Hooks:
    """Raises wherever it is asked to."""

    def __init__(self, raises: str = "") -> None:
        self.raises = raises
        self.detached = 0

    @property
    def updates_made(self) -> int:
        return 7

    def finish(self) -> None:
        if self.raises == "finish":
            raise RuntimeError("broken on purpose")

    def detach(self) -> None:
        self.detached += 1
        if self.raises == "detach":
            raise RuntimeError("broken on purpose")


@pytest.mark.parametrize("raises", ["", "finish", "detach", "judge"])
@pytest.mark.parametrize("error", [None, KeyboardInterrupt(), OSError("disk")])
def test_the_record_has_its_end_whatever_fails(
    raises: str, error: BaseException | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    audit, hooks, off = session(), Hooks(raises), []
    audit.follow(hooks)
    audit.take_off(lambda: off.append(hooks.detached))
    if raises == "judge":
        monkeypatch.setattr(audit.recorder, "finish", lambda ended: 1 / 0)
    audit.end(error)
    audit.end(ValueError("a second end"))
    assert (hooks.detached, off) == (1, [0]), "what was placed last goes first"
    if raises == "judge":
        assert "ZeroDivisionError" in audit.report.not_evaluated["order"]
        assert "rlstep: not evaluated: the report could not be made" in capsys.readouterr().err
        return
    *_, ended, judged = events(audit)
    assert isinstance(judged, Judged)
    assert isinstance(ended, RunEnded)
    assert ended.status == ("completed" if error is None else "raised")
    assert ended.error == ("" if error is None else f"{type(error).__name__}: {error}")
    assert any(isinstance(event, Unobserved) for event in events(audit)) == (raises == "finish")


def broken() -> None:
    raise RuntimeError("broken on purpose")


@pytest.mark.parametrize("begun", [False, True])
def test_an_audit_that_cannot_begin_says_so_and_takes_all_off(begun: bool, capsys: pytest.CaptureFixture[str]) -> None:
    audit = session() if begun else Session(Options.asked("warn", None, ()), none_known)
    off: list[str] = []
    audit.take_off(lambda: off.append("off"))
    with audit.beginning():
        broken()
    reason = "the audit could not begin: RuntimeError: broken on purpose"
    assert capsys.readouterr().err == f"rlstep: not evaluated: {reason}. Training goes on without an audit.\n"
    assert off == ["off"]
    audit.end()
    assert (audit.report.verdict, audit.report.not_evaluated["order"]) == ("NOT_EVALUATED", reason)
    assert audit.ended == begun


def test_a_handler_of_the_users_own_gets_the_lines(caplog: pytest.LogCaptureFixture) -> None:
    from rlstep_hooks.record.logger import logger

    logger.addHandler(caplog.handler)
    try:
        Session(Options.asked("warn", None, ()), none_known).refuse("no reason")
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.messages == ["not evaluated: no reason. Training goes on without an audit."]


def sent_by_ray(message: str) -> SystemExit:
    """What Ray's handler of SIGTERM raises (`ray._raylet.raise_sys_exit_with_custom_error_message`)."""
    error = SystemExit(1)
    error.ray_terminate_msg = message  # type: ignore[attr-defined]
    return error


class TwiceTold(Hooks):
    """Is told to end once more while the last numbers are taken."""

    def finish(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_process_that_is_told_to_end_twice_writes_its_end() -> None:
    def told(number: int, frame: Any) -> None:
        raise SystemExit(1)

    before = signal.signal(signal.SIGTERM, told)
    audit = session()
    audit.follow(TwiceTold())
    try:
        with pytest.raises(SystemExit):
            audit.end(KeyboardInterrupt())
        assert signal.getsignal(signal.SIGTERM) is told
    finally:
        signal.signal(signal.SIGTERM, before)
    audit.end(ValueError("a second end"))
    *_, ended, judged = events(audit)
    assert isinstance(ended, RunEnded)
    assert isinstance(judged, Judged)
    assert ended.error == "KeyboardInterrupt: "


@pytest.mark.parametrize(
    ("error", "recorded"),
    [
        (sent_by_ray("The process receives a SIGTERM."), "KeyboardInterrupt: the process was told to end (SIGTERM)"),
        (sent_by_ray("exit_actor() is called."), "SystemExit: 1"),
        (SystemExit(1), "SystemExit: 1"),
    ],
)
def test_a_process_of_ray_that_is_told_to_end_was_interrupted(error: SystemExit, recorded: str) -> None:
    audit = session()
    audit.end(error)
    *_, ended, _ = events(audit)
    assert isinstance(ended, RunEnded)
    assert ended.error == recorded
