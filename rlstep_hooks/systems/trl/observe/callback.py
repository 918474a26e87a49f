"""StepAuditCallback: attaches the audit to a GRPOTrainer, RLOOTrainer or PPOTrainer through transformers' own callback interface."""

from __future__ import annotations

import functools
import os
import sys
import weakref
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from transformers import Trainer, TrainerCallback

from rlstep_hooks.observe.options import LEFT_OUT, LeftOut, on_fail_asked, share_asked
from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.observe.settings import attributes
from rlstep_hooks.record import suite
from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.events import LOADED
from rlstep_hooks.record.logger import logger, not_evaluated
from rlstep_hooks.record.variables import AS_RELEASE, judged_as
from rlstep_hooks.session.agreement import StopAgreement, agree_on_run
from rlstep_hooks.session.session import Options, Run, Session
from rlstep_hooks.show import scalars
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.trl.observe.adapter import Observer, TrainerAdapter, adapter_of
from rlstep_hooks.systems.trl.observe.before_sharding import read_whole_model
from rlstep_hooks.systems.trl.observe.deployment import deployment_of, engine_faults
from rlstep_hooks.systems.trl.observe.documented_optimizer import note_training_call
from rlstep_hooks.systems.trl.observe.facts import package_versions
from rlstep_hooks.systems.trl.observe.given_model import policy_loaded
from rlstep_hooks.systems.trl.observe.others import why_not
from rlstep_hooks.systems.trl.observe.restored import note_checkpoint
from rlstep_hooks.systems.trl.observe.saved import SavedWatch
from rlstep_hooks.systems.trl.observe.saved_in_parts import is_sharded
from rlstep_hooks.systems.trl.observe.settings import of_construction
from rlstep_hooks.systems.trl.observe.sharded_checkpoints import note_shards, restored_shards
from rlstep_hooks.systems.trl.observe.trackers import TrackerLogs
from rlstep_hooks.systems.trl.releases import TrlRelease, installed_release

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.observe.options import OnFail
    from rlstep_hooks.observe.saved_files import Found
    from rlstep_hooks.session.recorder import Listener


class StepAuditCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not here when types are checked
    """Records a TRL run, judges it against its own configuration while it trains, and reports.

    Pass it as `callbacks=[StepAuditCallback()]`; it finds its trainer itself, also where it is added to a trainer that is there
    already. What it cannot do it says (`report.not_evaluated` and a warning of the logger `rlstep`), and training goes on as
    without it.

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
        share_asked()  # so that a mistake in RLSTEP_COMPARE is said here
        self._log_dir = log_dir
        self._listeners = listeners
        self._trainer: weakref.ref[Any] | None = None
        self._first_settings: dict[str, Any] = {}
        self._loaded: Found = "unknown"
        """Whether the policy had the weights of its files when the trainer was built."""
        self._session = Session(Options(self.on_fail, None, listeners), index.deviations_of)
        """The audit of the latest training call."""
        self._observer: Observer | None = None
        self._saved: SavedWatch | None = None
        self._stop: StopAgreement | None = None
        self._training_calls = 0
        self._saw_begin = False
        """Whether the training call that is under way told this callback of its beginning."""
        self._asked_to_stop = False
        self._sees_train = False
        """Whether the call of `train` that is under way goes through `_around_train`."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, also one in another process, is a new audit with the same arguments: the run's own stays with its trainer."""
        return functools.partial(type(self), self.on_fail, self._log_dir, listeners=self._listeners), ()

    @property
    def report(self) -> Report:
        """The report of the latest training call; while it runs, of what was seen so far."""
        trainer = self._trainer() if self._trainer is not None and not self._sees_train else None
        if self._session.running and trainer is not None and not _is_training(trainer):
            # Something raised where no hook is, in a call of `train` that had begun when the callback was added.
            self._end(RuntimeError("training ended without a word to its callbacks"))
        return self._session.report

    @property
    def folder(self) -> Path | None:
        """Where the current record is written; None in memory."""
        return self._session.folder

    # transformers' events

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The trainer was built (fires for callbacks given to its constructor)."""
        trainer = _calling_trainer(self)
        if trainer is not None:
            self.meet(trainer)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training begins: plan, hooks, record."""
        self._saw_begin = True
        trainer = _calling_trainer(self)
        if trainer is None:
            self._session.refuse("the callback cannot find its trainer")
        elif self._adopt(trainer):
            self._begin(trainer, kwargs.get("optimizer"))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The loop is about to step."""
        if self._observer is not None:
            self._observer.step_expected()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The loop was at its optimizer step."""
        if self._observer is not None:
            self._observer.step_passed()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A pass of the loader begins."""
        if self._observer is not None:
            self._observer.pass_begins()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A window ended."""
        self._notice_late(state)
        if self._observer is not None:
            self._observer.update_ends()
            self._observer.update_passed(state.global_step - 1)
        self._act(control, state)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """The trainer logged."""
        if self._observer is not None and logs:
            self._observer.logged(logs)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation ended."""
        if self._observer is not None:
            self._observer.evaluated()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint was made."""
        trainer, session = self._trainer() if self._trainer is not None else None, self._session
        if trainer is None or self._saved is None:
            return
        try:
            if session.folder is not None and is_sharded(trainer):
                note_shards(trainer, session.folder, state.global_step)
            self._saved.look(state.global_step)
        except Exception as error:  # noqa: BLE001 - a resume is then not compared, which its own report says
            logger.warning("what this checkpoint is made of could not be read or noted: %s", describe(error))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A pass of the loader ended."""
        if self._observer is not None:
            # An empty loader also sets should_training_stop; that is nobody's wish.
            wished = control.should_training_stop or control.should_epoch_stop
            self._asked_to_stop = (
                wished and state.global_step < state.max_steps and self._observer.microbatches_in_epoch > 0
            )
            run_over = state.global_step >= state.max_steps
            self._observer.pass_ends()
            self._observer.epoch_ended(stopping=self._asked_to_stop, run_over=run_over)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training ended without an exception."""
        self._notice_late(state)
        self._saw_begin = False
        if self._session.running:
            self._completed()
        self._act(control, state)

    def _notice_late(self, state: Any) -> None:
        """Say that training was under way when the callback was added."""
        if not self._saw_begin:
            self._saw_begin = True
            self._training_calls += (
                1  # the policy is trained in it: a reference is no copy of what a later call begins with
            )
            self._session.refuse(
                f"the callback was added while training was under way (first seen at update {state.global_step}); a run is audited "
                "from its beginning, so add it before train()"
            )

    # Life of one audit

    def meet(self, trainer: Any) -> None:
        """Audit a trainer that was just built. One that gets the callback later is met when it trains.

        Args:
            trainer: A trainer of TRL's that has this callback.
        """
        if not self._adopt(trainer):
            return
        names = adapter_of(trainer).settings  # type: ignore[union-attr]  # adopted, so known
        self._first_settings = dict(attributes(trainer.args, names)(trainer.args))
        self._loaded = policy_loaded(trainer, cast("TrlRelease", installed_release()))
        # `train` on the instance: the only way to see whatever training raises, and to take everything off then. In all releases.
        # The trainer alone holds the patch, so that an audit keeps no trainer that is never trained.
        patch = Patches()
        patch.wrap(trainer, "train", functools.partial(self._around_train, patch))

    def _adopt(self, trainer: Any) -> bool:
        """Whether this callback audits this trainer; says why where it does not."""
        mine = self._trainer() if self._trainer is not None else None
        if mine is not None and mine is not trainer:
            logger.warning(
                "one callback audits one trainer; this %s is not audited. Give it a callback of its own.",
                type(trainer).__name__,
            )
            return False
        reason = _unsupported(trainer)
        if reason:
            self._session.refuse(reason)
            return False
        first = next(c for c in trainer.callback_handler.callbacks if isinstance(c, StepAuditCallback))
        if first is not self:
            self._session.refuse("another StepAuditCallback already audits this trainer")
            return False
        self._trainer = weakref.ref(trainer)
        return True

    def _begin(self, trainer: Any, optimizer: Any) -> None:
        if self._session.running:  # transformers begins again within one call (auto_find_batch_size)
            self._end(RuntimeError("training broke off and began again"))
        self._asked_to_stop, self._observer, self._stop, self._saved = False, None, None, None
        self._session = Session(
            Options(self.on_fail, self._wanted_folder(trainer), self._listeners), index.deviations_of
        )
        with self._session.beginning():
            self._start(self._session, trainer, optimizer)

    def _start(self, session: Session, trainer: Any, optimizer: Any) -> None:
        rank, world_size = trainer.accelerator.process_index, trainer.accelerator.num_processes
        name, agreed = agree_on_run(rank, world_size)
        release, adapter = cast("TrlRelease", installed_release()), cast("TrainerAdapter", adapter_of(trainer))
        start = adapter.start(trainer, release)
        facts = (
            start.facts
            | index.link_facts(adapter.system, deployment := deployment_of(trainer))
            | {"deployment": list(deployment), "trained_before": self._training_calls > 0}
            | {"release_faults": engine_faults(trainer, deployment)}
            | restored_shards(trainer, session.options.log_dir)
        )
        if not start.updates and not self._training_calls:
            facts |= {LOADED["policy"]: self._loaded}
        self._training_calls += 1
        recorder = session.begin(
            Run(
                name=name,
                schedule=start.schedule,
                versions=package_versions(),
                facts=facts | {"compares_settings": True} | suite.facts_of(trainer),  # the first is read by RLS101
                start_updates=start.updates,
                rank=rank,
                world_size=world_size,
                local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", world_size)),
            )
        )
        if not agreed:
            recorder.cannot("ranks", "the processes could not agree on a name for the run (rank 0 has no audit?)")
        if release_named := judged_as("trl"):
            recorder.cannot("release", f"judged by the formulas of TRL {release_named}, as {AS_RELEASE} says")
        of_construction(trainer, self._first_settings).tell(recorder)
        if self.on_fail == "stop" and adapter.stops:
            self._stop = StopAgreement(name, world_size)
        elif self.on_fail == "stop":
            logger.warning(
                "%s does not stop when a callback asks it to; findings are only reported.", type(trainer).__name__
            )
        observer = self._observer = adapter.observer(trainer, start, release, recorder, interval=session.interval)
        self._saved = SavedWatch(trainer, recorder)
        session.follow(observer)
        observer.attach(optimizer)
        if scalars.asked():
            trackers = TrackerLogs(
                trainer,
                recorder,
                summary=session.summary,
                training_over=self._completed,
                adds=trainer.is_world_process_zero(),
            )
            session.take_off(trackers.remove)
        if not self._sees_train:
            self._watch_exits(trainer, adapter)

    def _watch_exits(self, trainer: Any, adapter: TrainerAdapter) -> None:
        """See an exception out of a call of `train` that had begun when the callback met its trainer: in what the loop calls."""
        exits = Patches()
        self._session.take_off(exits.restore)
        for owner, name in adapter.exits(trainer):
            exits.wrap(owner, name, self._around_exit)

    def _around_exit(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        try:
            result = wrapped(*args, **kwargs)
        except BaseException as error:
            self._end(error)
            raise
        return self._watched(result) if isinstance(result, AbstractContextManager) else result

    @contextmanager
    def _watched(self, within: AbstractContextManager[Any]) -> Iterator[Any]:
        with within as given:
            try:
                yield given
            except BaseException as error:
                self._end(error)
                raise

    def _wanted_folder(self, trainer: Any) -> str | os.PathLike[str] | None:
        """Where to record; None for memory."""
        if isinstance(self._log_dir, LeftOut):
            return os.environ.get("RLSTEP_DIR") or Path(trainer.args.output_dir) / "rlstep"
        return self._log_dir

    def _around_train(self, patch: Patches, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        self._sees_train = True
        note_training_call(instance)
        self._read_whole_model(instance, args, kwargs)
        try:
            result = wrapped(*args, **kwargs)
        except BaseException as error:
            self._end(error)
            raise
        finally:
            self._sees_train = False
            patch.restore()
        self._completed()
        return result

    @staticmethod
    def _read_whole_model(trainer: Any, args: Any, kwargs: Any) -> None:
        # transformers/trainer.py `train` (4.51 to 5.23): the checkpoint to resume from is its first argument.
        asked = args[0] if args else kwargs.get("resume_from_checkpoint")
        try:
            note_checkpoint(trainer, asked)
            read_whole_model(trainer, resumes=bool(asked))
        except Exception as error:  # noqa: BLE001 - a model that cannot be read keeps nothing from being trained
            not_evaluated(f"the weights before they are sharded: {describe(error)}")

    def _completed(self) -> None:
        trainer = self._trainer() if self._trainer is not None else None
        if self._observer is not None and trainer is not None:
            self._observer.update_passed(trainer.state.global_step)
        self._end(stopped=self._asked_to_stop)

    def _end(self, error: BaseException | None = None, *, stopped: bool = False) -> None:
        self._session.end(error, stopped=stopped)
        self._observer = self._saved = None

    def _act(self, control: Any, state: Any) -> None:
        """Carry out `on_fail` for errors found since the last time."""
        session = self._session
        session.tell_listeners()
        session.raise_if_asked()
        if self._stop is not None and session.running and state.global_step < state.max_steps:
            if session.stop_if_asked():
                self._stop.ask(state.global_step)
            if self._stop.due(state.global_step):
                session.stops_with_others()
                control.should_training_stop = True


def _calling_trainer(callback: StepAuditCallback) -> Any:
    """The trainer whose callback handler is calling, found on the stack.

    transformers hands callbacks no trainer (4.49 to 5.23), but calls them from its methods, two frames up.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer):
            return owner
        frame = frame.f_back
    return None


def _is_training(trainer: Any) -> bool:
    """Whether a call of a trainer's `train` is under way, in any thread."""
    for frame in sys._current_frames().values():
        below: Any = frame
        while below is not None:
            if below.f_code.co_name in ("train", "_inner_training_loop") and below.f_locals.get("self") is trainer:
                return True
            below = below.f_back
    return False


def _unsupported(trainer: Any) -> str:
    """Why a trainer cannot be audited; empty where it can."""
    release = installed_release()
    if release is None:
        return "TRL is not installed"
    adapter = adapter_of(trainer)
    if adapter is None:
        return why_not(type(trainer))
    return adapter.refusal(trainer, release)
