"""The life of one audit, the same for every system: it begins, takes events, ends training if its user asked for that, and reports.

A system's adapter makes a `Session` for each training call. It says what it knows of the run (`begin`), emits events to `recorder`,
asks for `error` where the framework can be stopped, and calls `end`. Everything else is here: options, record, plan, listeners,
findings that end training, what cannot be evaluated, and the report.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.ranks.merge import merge_ranks
from rlstep_hooks.judge.report import Report, StepAuditError, Summary, ends_training
from rlstep_hooks.observe.deferred import INTERVAL
from rlstep_hooks.observe.options import LEFT_OUT, LeftOut, OnFail, on_fail_asked, share_asked
from rlstep_hooks.observe.spending import SPENDING
from rlstep_hooks.record import suite
from rlstep_hooks.record.describe import describe, describe_end
from rlstep_hooks.record.events import RunEnded, RunStarted
from rlstep_hooks.record.ledger import CONTROLLER, open_ledger, rank_process
from rlstep_hooks.record.logger import logger, not_evaluated
from rlstep_hooks.record.refusals import refused
from rlstep_hooks.session.held_signals import signals_held
from rlstep_hooks.session.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from rlstep_hooks.judge.controlled.run import ControlledRun
    from rlstep_hooks.judge.deviations import DeviationsOf
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.session.recorder import Listener


NEVER_CALLED = (
    "no training has called this audit: it has not begun, or what trains was not given the audit or dropped it"
)
"""Why nothing is known of a run that an audit never heard of; whether one trained, it cannot tell."""


class Hooks(Protocol):
    """The hooks that an adapter has placed on a framework."""

    @property
    def updates_made(self) -> int:
        """Updates of the whole run, as the framework counts them."""

    def finish(self) -> None:
        """Emit all that still waits, including numbers on the device. Training is over, so waiting is allowed."""

    def detach(self) -> None:
        """Remove all hooks: every attribute is again the object that it was. A second call does nothing."""


@dataclass(frozen=True)
class Options:
    """What a user asks of an audit."""

    on_fail: OnFail
    log_dir: str | os.PathLike[str] | None
    """Folder for the record; None keeps everything in memory."""
    listeners: tuple[Listener, ...] | None
    """Views that follow the run; None for plan and verdict on the console."""

    @classmethod
    def asked(
        cls,
        on_fail: OnFail | None = None,
        log_dir: str | os.PathLike[str] | LeftOut | None = LEFT_OUT,
        listeners: tuple[Listener, ...] | None = None,
    ) -> Options:
        """The options from arguments, completed from RLSTEP_ON_FAIL and RLSTEP_DIR.

        Raises:
            ValueError: `on_fail` is none of the three, or RLSTEP_COMPARE says neither "all" nor a share.
        """
        share_asked()
        folder = os.environ.get("RLSTEP_DIR") if isinstance(log_dir, LeftOut) else log_dir
        return cls(on_fail_asked(on_fail), folder, listeners)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is known of a run when it begins."""

    name: str
    schedule: Schedule | None
    """The plan; None if there is none."""
    versions: Mapping[str, str]
    """Releases of the packages involved."""
    facts: dict[str, Any] = field(default_factory=dict)
    start_updates: int = 0
    """Policy updates made before (a resumed run)."""
    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    controlled: ControlledRun | None = None
    """The judge of a controller and its trainers, in a controller's process."""

    @property
    def reports(self) -> bool:
        """Whether this process reports on the run."""
        return self.rank == 0


class Session:
    """One audit of one training call.

    Args:
        options: What its user asked for.
        deviations_of: The known deviations of the framework.
    """

    def __init__(self, options: Options, deviations_of: DeviationsOf) -> None:
        self.options = options
        self._deviations_of = deviations_of
        self.folder: Path | None = None
        """Where the record is written; None in memory."""
        self.trouble = ""
        """Why the record is not where it was asked for; empty if it is there."""
        self.refused = ""
        """Why there is no audit; empty if there is one."""
        self._run: Run | None = None
        self._recorder: Recorder | None = None
        self._listeners: tuple[Listener, ...] = ()
        self._hooks: Hooks | None = None
        self._take_off: list[Callable[[], object]] = []
        self._report: Report | None = None
        self._error: Finding | None = None
        self._raised = False
        self._stopping = False

    # What it says

    @property
    def recorder(self) -> Recorder | None:
        """Where events go; None before `begin`."""
        return self._recorder

    @property
    def ended(self) -> bool:
        """Whether there is a final report."""
        return self._report is not None

    @property
    def running(self) -> bool:
        """Whether the audit has begun, and not ended."""
        return self._recorder is not None and not self.ended

    @property
    def report(self) -> Report:
        """The report; while training runs, on what was seen so far."""
        if self._report is not None:
            return self._report
        if self._recorder is not None:
            return self._recorder.judge.report()
        return Report(verdict="NOT_EVALUATED", not_evaluated={"order": self.refused or NEVER_CALLED})

    def summary(self) -> Summary:
        """The judgement so far, in short; with that of the other processes once training is over."""
        assert self._recorder is not None  # set before the hook that asks
        judge = self._recorder.judge
        return judge.summary() if self._report is None else Summary.of(self._report, age=judge.age)

    @property
    def interval(self) -> float:
        """Seconds between two evaluations of numbers from the device; 0 if a finding may end training, which should happen early."""
        return INTERVAL if self.options.on_fail == "warn" else 0.0

    # It begins

    def refuse(self, reason: str) -> None:
        """Say why there is no audit. Only the first reason counts."""
        if not self.refused:
            self.refused = reason
            refused(reason)
            not_evaluated(f"{reason}. Training goes on without an audit.")

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """A context in which an audit begins. An exception in it ends the audit but not the training."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - an audit that cannot begin must not keep training from it
            reason = f"the audit could not begin: {describe(error)}"
            self._detach()
            if self._recorder is not None:
                self._recorder.cannot("order", reason)
            self.refuse(reason)

    def begin(self, run: Run) -> Recorder:
        """Open the record, and have the plan judged and shown."""
        self._run = run
        SPENDING.begin(alone=run.world_size == 1 and run.controlled is None)
        process = rank_process(run.rank) if run.controlled is None else CONTROLLER
        # Before the file is made: followers of the run expect a file to have a first line.
        self._listeners = self._listening(run)
        opened = open_ledger(self.options.log_dir, run.name, process)
        self.folder, self.trouble = opened.folder, opened.trouble
        judge = run.controlled or Judge(self._deviations_of)
        recorder = self._recorder = Recorder(opened.ledger, judge, self._listeners)
        recorder.emit(
            RunStarted(
                run=run.name,
                rank=run.rank,
                world_size=run.world_size,
                local_world_size=run.local_world_size,
                host=os.uname().nodename,
                pid=os.getpid(),
                started=time.time(),
                schedule=run.schedule,
                start_updates=run.start_updates,
                facts=run.facts | ({"test": test} if (test := suite.current_test()) else {}),
                versions=dict(run.versions),
            )
        )
        recorder.settle()  # the plan is judged and shown before training begins
        if opened.trouble:
            recorder.cannot("recording", opened.trouble)
        return recorder

    def _listening(self, run: Run) -> tuple[Listener, ...]:
        if self.options.listeners is not None:
            return self.options.listeners
        if not run.reports:
            return ()
        # rich draws from Python's generator when it is imported (rich/style.py), and training may draw from it too.
        state = random.getstate()
        try:
            # Here, because an audit without a console does not need rich.
            from rlstep_hooks.show.console import ConsoleListener
        finally:
            random.setstate(state)
        return (ConsoleListener(),)

    def follow(self, hooks: Hooks) -> None:
        """Finish and remove these hooks when the audit ends, however it ends."""
        self._hooks = hooks
        self._take_off.append(hooks.detach)

    def take_off(self, remove: Callable[[], object]) -> None:
        """Call a function when the audit ends. The latest one is called first."""
        self._take_off.append(remove)

    # It acts

    @property
    def error(self) -> Finding | None:
        """The first error for which `on_fail` ends training; None if there is none yet, or if `on_fail` is "warn".

        An error that the plan alone shows ends no run: see `ends_training`.
        """
        if self._error is None and self._recorder is not None and self.options.on_fail != "warn":
            self._error = ends_training(self._recorder.take_findings())
        return self._error

    def raise_if_asked(self) -> None:
        """Carry out "raise".

        Raises:
            StepAuditError: An error was found, for the first time.
        """
        if self.options.on_fail != "raise" or self._raised or self.error is None:
            return
        self._raised = True
        raise StepAuditError(self.error)

    def stop_if_asked(self) -> bool:
        """Carry out "stop": whether the framework should end training now."""
        if self.options.on_fail == "stop" and self.error is not None:
            self._stopping = True
        return self._stopping

    def stops_with_others(self) -> None:
        """Training ends now, because this process or another one of the run asked for it."""
        self._stopping = True

    def tell_listeners(self) -> None:
        """Judge waiting events if a listener follows the run; otherwise events are judged in larger batches (`Recorder`)."""
        if self._recorder is not None and self.options.listeners:
            self._recorder.settle()

    # It ends

    def end(self, error: BaseException | None = None, *, stopped: bool = False) -> None:
        """Remove all hooks, write the last lines, judge and report. Raises nothing; a second call does nothing.

        Args:
            error: What training raised; None if it returned.
            stopped: Whether somebody asked training to end before its plan does.
        """
        recorder, run = self._recorder, self._run
        if recorder is None or run is None or self._report is not None:
            self._detach()
            return
        by = self._ended_by(error)
        try:
            # Not while others are waited for: that may take long.
            with signals_held():
                updates = self._finish(recorder)
                if updates is None:
                    updates = run.start_updates + recorder.judge.counts.updates
                self._report = recorder.finish(self._how_it_ended(error, updates=updates, stopped=stopped, by=by))
            started = recorder.judge.run
            if run.reports and run.controlled is None and started is not None:
                self._report = merge_ranks(self._report, self.folder, started, deviations_of=self._deviations_of)
        except Exception as fault:  # noqa: BLE001 - a fault of the judge must not end training
            reason = f"the report could not be made: {describe(fault)}"
            not_evaluated(reason)
            self._report = Report(run=run.name, verdict="NOT_EVALUATED", not_evaluated={"order": reason})
        if by is not None:
            _tell_ended(by, self.options.on_fail, self._report)
        self._tell_finished(run, self._report)

    def _how_it_ended(
        self, error: BaseException | None, *, updates: int, stopped: bool, by: Finding | None
    ) -> RunEnded:
        """The end of the run as an event.

        Args:
            error: What training raised; None if it returned.
            updates: Policy updates made.
            stopped: Whether somebody asked training to end before its plan does.
            by: The finding for which the audit ended training; None if it did not.
        """
        stopped_by = by.code if by is not None else "another process" if self._stopping else ""
        return RunEnded(
            status="completed" if error is None else "raised",
            updates=updates,
            error="" if error is None else describe_end(error),
            stopped=stopped or bool(stopped_by),
            stopped_by=stopped_by,
        )

    def _finish(self, recorder: Recorder) -> int | None:
        """Finish and remove all hooks.

        Returns:
            Updates as the framework counts them; None if no hook knows.
        """
        updates = None
        try:
            if self._hooks is not None:
                self._hooks.finish()
                updates = self._hooks.updates_made
        except Exception as fault:  # noqa: BLE001 - what is lost here are the last numbers
            recorder.cannot("recording", f"the last numbers were lost: {describe(fault)}")
        self._detach()
        return updates

    def _detach(self) -> None:
        # What audits a run may outlive it, and the hooks know models and engines.
        self._hooks = None
        while self._take_off:
            try:
                self._take_off.pop()()
            except Exception as fault:  # noqa: BLE001 - the host's exception, if there is one, must not be replaced
                logger.warning("a hook could not be taken off: %s", describe(fault))

    def _ended_by(self, error: BaseException | None) -> Finding | None:
        """The finding for which the audit ended training; None if it did not."""
        if isinstance(error, StepAuditError):
            return error.finding
        return self._error if self._stopping else None

    def _tell_finished(self, run: Run, report: Report) -> None:
        if not run.reports:
            return
        for listener in self._listeners:
            try:
                # Views may have both, and need neither.
                if (finished := getattr(listener, "finished", None)) is not None:
                    finished(report)
                if (recorded := getattr(listener, "recorded", None)) is not None and not self.trouble:
                    recorded(self.folder, run.name)
            except Exception as fault:  # noqa: BLE001 - a view must not end training
                logger.warning("%s stopped: %s", type(listener).__name__, describe(fault))


def _tell_ended(by: Finding, on_fail: OnFail, report: Report) -> None:
    """Log as an error that the audit ended training: for which finding, and after how many updates."""
    schedule = report.schedule
    made = report.updates_before + report.counts.updates
    planned = f" of {schedule.updates} planned" if schedule is not None and schedule.updates is not None else ""
    logger.error("on_fail=%s ended training after %s updates%s, for this error:\n%s", on_fail, made, planned, by)
