"""StepAuditCallback: attaches the audit to a GRPOTrainer, RLOOTrainer or PPOTrainer through transformers' own callback interface."""

from __future__ import annotations

import functools
import os
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import wrapt
from transformers import Trainer, TrainerCallback

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.ranks import StopAgreement, agree_on_run, merge_ranks
from rlstep_hooks.judge.report import Report, StepAuditError, Summary, ends_training
from rlstep_hooks.observe.deferred import INTERVAL
from rlstep_hooks.observe.options import LEFT_OUT, LeftOut, on_fail_asked
from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.events import ConfigChanged, RunEnded, RunStarted
from rlstep_hooks.record.ledger import open_ledger, rank_process
from rlstep_hooks.session.recorder import Listener, Recorder
from rlstep_hooks.show import scalars
from rlstep_hooks.show.console import ConsoleListener
from rlstep_hooks.systems import index
from rlstep_hooks.systems.trl.observe.facts import package_versions
from rlstep_hooks.systems.trl.observe.others import why_not
from rlstep_hooks.systems.trl.observe.subject import Observer, Subject, subject_of
from rlstep_hooks.systems.trl.observe.trackers import TrackerLogs
from rlstep_hooks.systems.trl.releases import TrlRelease, installed_release

if TYPE_CHECKING:
    from rlstep_hooks.observe.options import OnFail
    from rlstep_hooks.planning.finding import Finding


class StepAuditCallback(TrainerCallback):  # type: ignore[misc]
    """Records a TRL run, judges it against its own configuration while it trains, and reports.

    Pass it as `callbacks=[StepAuditCallback()]`; it finds its trainer itself. What it cannot do it says (`report.not_evaluated`
    and a warning on stderr), and training goes on as without it.

    Args:
        on_fail: "warn" only reports; "stop" ends training cleanly at the next step after an error; "raise" raises
            `StepAuditError` out of `trainer.train()`. Default: RLSTEP_ON_FAIL, else "warn".
        log_dir: Folder for the record, one file a process, never overwritten. None keeps everything in memory. Default:
            RLSTEP_DIR, else `rlstep/` in the trainer's output_dir.
        listeners: Views that follow the run; by default plan and verdict are printed on stderr by rank 0.

    Raises:
        ValueError: `on_fail` is none of the three.
    """

    def __init__(
        self,
        on_fail: OnFail | None = None,
        log_dir: str | os.PathLike[str] | LeftOut | None = LEFT_OUT,
        *,
        listeners: tuple[Listener, ...] | None = None,
    ) -> None:
        self.on_fail = on_fail_asked(on_fail)
        self._log_dir = log_dir
        self._listeners = listeners
        self._trainer: weakref.ref[Any] | None = None
        self._first_settings: dict[str, Any] = {}
        self._train_patch = Patches()
        self._recorder: Recorder | None = None
        self._observer: Observer | None = None
        self._trackers: TrackerLogs | None = None
        self._stop: StopAgreement | None = None
        self._report: Report | None = None
        self._refused = ""
        self._training_calls = 0
        self._asked_to_stop = False
        self._raised: Finding | None = None
        self.folder: Path | None = None
        """Where the current record is written; None in memory."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, also one in another process, is a new audit with the same arguments: the run's own stays with its trainer."""
        return functools.partial(type(self), self.on_fail, self._log_dir, listeners=self._listeners), ()

    @property
    def report(self) -> Report:
        """The report of the latest training call; while it runs, of what was seen so far."""
        if self._report is not None:
            return self._report
        if self._recorder is not None:
            return self._recorder.judge.report()
        reason = self._refused or "training has not begun"
        return Report(verdict="NOT_EVALUATED", not_evaluated={"order": reason})

    # transformers' events

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The trainer was built (fires for callbacks given to its constructor)."""
        trainer = _calling_trainer(self)
        if trainer is None or not self._adopt(trainer):
            return
        settings = subject_of(trainer).settings  # type: ignore[union-attr]  # adopted, so known
        self._first_settings = {name: getattr(args, name, None) for name in settings}
        # `train` on the instance: the only way to see that training raised, and to take everything off then. In all releases.
        self._train_patch.wrap(trainer, "train", self._around_train)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training begins: plan, hooks, record."""
        trainer = _calling_trainer(self)
        if trainer is None:
            self._refuse("the callback cannot find its trainer")
            return
        if self._adopt(trainer):
            try:
                self._begin(trainer, kwargs.get("optimizer"))
            except Exception as error:  # noqa: BLE001 - an audit that cannot begin must not keep training from it
                self._refuse(f"the audit could not begin: {describe(error)}")
                self._detach()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The loop is about to step."""
        if self._observer is not None:
            self._observer.step_expected()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The loop was at its optimizer step."""
        if self._observer is not None:
            self._observer.step_passed()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A window ended."""
        self._act(control, state)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """The trainer logged."""
        if self._observer is not None and logs:
            self._observer.logged(logs)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation ended."""
        if self._observer is not None:
            self._observer.evaluated()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A pass of the loader ended."""
        if self._observer is not None:
            # An empty loader also sets should_training_stop; that is nobody's wish.
            wished = control.should_training_stop or control.should_epoch_stop
            self._asked_to_stop = (
                wished and state.global_step < state.max_steps and self._observer.microbatches_in_epoch > 0
            )
            run_over = state.global_step >= state.max_steps
            self._observer.epoch_ended(stopping=self._asked_to_stop, run_over=run_over)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training ended without an exception."""
        if self._recorder is not None and self._observer is not None:
            self._completed()
            self._act(control, state)

    # Life of one audit

    def _adopt(self, trainer: Any) -> bool:
        """Whether this callback audits this trainer; says why where it does not."""
        mine = self._trainer() if self._trainer is not None else None
        if mine is not None and mine is not trainer:
            _warn(
                f"one callback audits one trainer; this {type(trainer).__name__} is not audited. Give it a callback of its own."
            )
            return False
        reason = _unsupported(trainer)
        if reason:
            self._refuse(reason)
            return False
        first = next(c for c in trainer.callback_handler.callbacks if isinstance(c, StepAuditCallback))
        if first is not self:
            self._refuse("another StepAuditCallback already audits this trainer")
            return False
        self._trainer = weakref.ref(trainer)
        return True

    def _refuse(self, reason: str) -> None:
        if not self._refused:
            self._refused = reason
            _warn(f"not evaluated: {reason}. Training goes on without an audit.")

    def _begin(self, trainer: Any, optimizer: Any) -> None:
        if self._observer is not None:  # transformers begins again within one call (auto_find_batch_size)
            self._end("raised", error="training began again")
            self._detach()
        self._report, self._raised, self._asked_to_stop = None, None, False
        accelerator = trainer.accelerator
        rank, world_size = accelerator.process_index, accelerator.num_processes
        run, agreed = agree_on_run(rank, world_size)
        release, subject = cast("TrlRelease", installed_release()), cast("Subject", subject_of(trainer))
        start = subject.start(trainer, release)
        opened = open_ledger(self._wanted_folder(trainer), run, rank_process(rank))
        self.folder = opened.folder
        if opened.trouble:
            _warn(f"{opened.trouble}. The run is judged in memory.")
        listeners = self._listeners
        if listeners is None:
            listeners = (ConsoleListener(),) if rank == 0 else ()
        recorder = self._recorder = Recorder(opened.ledger, Judge(index.deviations_of), listeners)
        facts = start.facts | {"trained_before": self._training_calls > 0}
        self._training_calls += 1
        recorder.emit(
            RunStarted(
                run=run,
                rank=rank,
                world_size=world_size,
                local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", world_size)),
                host=os.uname().nodename,
                pid=os.getpid(),
                started=_unix_time(),
                schedule=start.schedule,
                start_updates=start.updates,
                facts=facts,
                versions=package_versions(),
            )
        )
        recorder.settle()  # the plan is judged and shown before training begins
        if opened.trouble:
            recorder.cannot("recording", opened.trouble)
        if not agreed:
            recorder.cannot("ranks", "the processes could not agree on a name for the run (rank 0 has no audit?)")
        self._compare_settings(trainer, recorder)
        self._stop = StopAgreement(run, world_size) if self.on_fail == "stop" and subject.stops else None
        if self.on_fail == "stop" and not subject.stops:
            _warn(f"{type(trainer).__name__} does not stop when a callback asks it to; findings are only reported.")
        # Who acts on findings gets numbers as early as they are there.
        interval = INTERVAL if self.on_fail == "warn" else 0.0
        self._observer = subject.observer(trainer, start, release, recorder, interval=interval)
        self._observer.attach(optimizer)
        if scalars.asked():
            self._trackers = TrackerLogs(
                trainer,
                recorder,
                summary=self._summary,
                training_over=self._completed,
                adds=trainer.is_world_process_zero(),
            )
        if not isinstance(vars(trainer).get("train"), wrapt.FunctionWrapper):
            self._observer.on_raise = self._raised_in_step

    def _raised_in_step(self, error: BaseException) -> None:
        """A training step raised, and `train` is not wrapped (the callback was added late, or trains again)."""
        self._end("raised", error=describe(error))
        self._detach()

    def _wanted_folder(self, trainer: Any) -> str | os.PathLike[str] | None:
        """Where to record; None for memory."""
        if isinstance(self._log_dir, LeftOut):
            return os.environ.get("RLSTEP_DIR") or Path(trainer.args.output_dir) / "rlstep"
        return self._log_dir

    def _compare_settings(self, trainer: Any, recorder: Recorder) -> None:
        """Settings now against those when the trainer was built, and derived sizes against their parts."""
        args = trainer.args
        for name, before in self._first_settings.items():
            after = getattr(args, name, None)
            if after != before:
                recorder.emit(
                    ConfigChanged(at=recorder.now(), name=name, before=before, after=after, since="construction")
                )
        generation = getattr(args, "generation_batch_size", None)
        if isinstance(generation, int):
            parts = args.per_device_train_batch_size * trainer.accelerator.num_processes * args.steps_per_generation
            if parts != generation:
                recorder.emit(
                    ConfigChanged(
                        at=recorder.now(),
                        name="per_device_train_batch_size * processes * steps_per_generation",
                        before=generation,
                        after=parts,
                        since="construction",
                    )
                )

    def _around_train(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        try:
            return wrapped(*args, **kwargs)
        except BaseException as error:
            self._end("raised", error=describe(error))
            raise
        finally:
            self._detach()
            self._train_patch.restore()

    def _summary(self) -> Summary:
        """The judgement so far, in short; with that of the other ranks once training is over."""
        assert self._recorder is not None  # set before the hook that asks
        judge = self._recorder.judge
        return judge.summary() if self._report is None else Summary.of(self._report, age=judge.age)

    def _completed(self) -> None:
        self._end("completed", stopped=self._asked_to_stop)

    def _end(self, status: Literal["completed", "raised"], *, error: str = "", stopped: bool = False) -> None:
        recorder, observer = self._recorder, self._observer
        if recorder is None or observer is None or self._report is not None:
            return
        observer.finish()
        observer.detach()
        ended = RunEnded(status=status, updates=observer.updates_made, error=error, stopped=stopped)
        self._report = recorder.finish(ended)
        started = recorder.judge.run
        if started is not None and started.rank == 0:
            self._report = merge_ranks(self._report, self.folder, started)
        for listener in self._listeners if self._listeners is not None else (ConsoleListener(),):
            finish = getattr(listener, "finished", None)
            if finish is not None and started is not None and started.rank == 0:
                finish(self._report)

    def _detach(self) -> None:
        if self._observer is not None:
            self._observer.detach()
        self._observer = None
        if self._trackers is not None:
            self._trackers.remove()
        self._trackers = None

    def _act(self, control: Any, state: Any) -> None:
        """Carry out `on_fail` for errors found since the last time."""
        recorder = self._recorder
        # With "warn" nothing waits for the judgement: events are then judged in larger batches (`Recorder`).
        if recorder is None or (self.on_fail == "warn" and self._listeners is None):
            return
        error = ends_training(recorder.take_findings())
        if self.on_fail == "raise" and error is not None and self._raised is None:
            self._raised = error
            raise StepAuditError(error)
        if self._stop is not None:
            if error is not None:
                self._stop.ask(state.global_step)
            if self._stop.due(state.global_step):
                control.should_training_stop = True


def _calling_trainer(callback: StepAuditCallback) -> Any:
    """The trainer whose callback handler is calling, found on the stack.

    transformers hands callbacks no trainer (4.49 to 5.23), but calls them from its methods, two frames up.
    """
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _unsupported(trainer: Any) -> str:
    """Why a trainer cannot be audited; empty where it can."""
    release = installed_release()
    if release is None:
        return "TRL is not installed"
    subject = subject_of(trainer)
    if subject is None:
        return why_not(trainer)
    return subject.refusal(release)


def _unix_time() -> float:
    import time

    return time.time()


def _warn(text: str) -> None:
    print(f"rlstep: {text}", file=sys.stderr)
