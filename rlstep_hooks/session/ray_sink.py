"""Recording where machines share no disk: trainers send their lines to an actor of Ray on the controller's machine.

The actor writes the files that the trainers would write themselves, into the controller's folder, so whoever reads them needs to
know nothing of it. It belongs to the controller and ends with it: an actor that outlives its run would stay on the cluster.

A trainer never waits. A thread sends its lines in batches, one at a time, so that their order is certain; what waits is bounded. A
process that is killed loses the batch under way and what waited behind it, some tenths of a second, and never part of a line.
When the actor is gone, recording stops and training goes on.

`ray` is imported only where an audit through it was asked for.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.judge.controlled.run import ControlledRun
from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.events import AnyEvent, Generated, PhaseEnded, Unobserved
from rlstep_hooks.record.ledger import FolderLedger, rank_process
from rlstep_hooks.record.logger import not_evaluated
from rlstep_hooks.record.wire import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from rlstep_hooks.record.events import Phase
    from rlstep_hooks.record.ledger import Ledger
    from rlstep_hooks.session.recorder import Recorder

SETTING = "RLSTEP_SINK"
"""Environment variable; "ray" if trainers record through Ray."""

NAMESPACE = "rlstep"
"""Ray's namespace of all these actors, the same for all jobs. The actor's name contains the name of the run."""

WAITING_BYTES = 16 * 2**20
"""Largest size of the lines that wait in a trainer. It is reached only if the actor does not come, or hangs."""
BATCH_BYTES = 64 * 2**10
"""Lines of one call, more only for one write that is larger: small enough to travel with the call (Ray's limit is 100 KiB,
`max_direct_call_object_size`) and take no memory of the object store."""
GATHER = 0.1
"""Seconds in which lines gather for a batch. A call's end is sent at once: the controller waits for it."""
LOOK_AGAIN = 0.2
"""Seconds between two looks for an actor that is not there yet: trainers begin before their controller."""
PATIENCE = 30.0
"""Seconds that the controller waits for the record of a call, at most; then never again for the same trainers."""

_AT_ONCE = (PhaseEnded, Generated)


def asked() -> bool:
    """Whether trainers record through Ray.

    Raises:
        ValueError: The setting has a value that is not known.
    """
    wanted = os.environ.get(SETTING, "")
    if wanted not in ("", "ray"):
        raise ValueError(f"{SETTING}={wanted} is not known; it may be ray")
    return wanted == "ray"


def open_trainer_ledger(folder: Path, run: str, process: str) -> Ledger:
    """Where a process other than the controller records: a file of its own, or through Ray where that was asked for.

    Raises:
        OSError: The file cannot be created.
        ValueError: The setting has a value that is not known.
    """
    return RayLedger(run, process) if asked() else FolderLedger(folder, run, process)


class RecordingActor:
    """The actor: one file for each process, whole lines only.

    Args:
        folder: Where to write, on the machine that it runs on.
        run: The run's name.
    """

    def __init__(self, folder: str, run: str) -> None:
        self._folder = Path(folder)
        self._run = run
        self._writers: dict[str, tuple[str, FolderLedger]] = {}

    def append(self, process: str, writer: str, lines: bytes) -> None:
        """Append lines to the file of a process.

        Args:
            process: The name of the process in the run.
            writer: Names the process among all that ever had this name.
            lines: Whole lines.

        Raises:
            OSError: The disk is full, or another process of this name has recorded.
        """
        if process not in self._writers:
            self._writers[process] = (writer, FolderLedger(self._folder, self._run, process))
        first, ledger = self._writers[process]
        if first != writer:
            raise FileExistsError(f"{ledger.path.name} belongs to a process that recorded before")
        ledger.append(lines)

    def alive(self) -> None:
        """Return, which shows that the actor works."""


def _actor_name(run: str) -> str:
    return f"rlstep-{run}"


def _told(error: BaseException) -> str:
    """An exception in a line: that of the actor where Ray hands it on, without Ray's pages about where it came from."""
    said = describe(getattr(error, "cause", None) or error)
    return said.splitlines()[0]


class RayLedger:
    """One process's lines on their way to the actor of its run.

    Args:
        run: The run's name.
        process: The process's name in it.
    """

    checksum = 0

    def __init__(self, run: str, process: str) -> None:
        self._name = _actor_name(run)
        self._process = process
        self._writer = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._some = threading.Event()
        """Set when lines wait or no more will come."""
        self._at_once = threading.Event()
        """Set when waiting lines should be sent at once."""
        self._over = False
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="rlstep-record", daemon=True)
        self._thread.start()

    def write(self, *events: AnyEvent) -> None:
        """Have events sent; returns at once.

        Raises:
            OSError: Recording has stopped, because the actor is gone or too much waits for it.
        """
        lines = encode(*events)
        with self._lock:
            if self._over:
                raise OSError(self._trouble or "this record is closed")
            if self._bytes + len(lines) > WAITING_BYTES:
                self._trouble = f"recording stopped: {self._bytes} bytes wait for the recording actor"
                # The actor may come to it yet, and the record then says why it ends.
                lines = encode(Unobserved(at=events[-1].at, what="order", why=self._trouble))
                self._over = True
            self._waiting.append(lines)
            self._bytes += len(lines)
        self._some.set()
        if self._over or any(isinstance(event, _AT_ONCE) for event in events):
            self._at_once.set()
        if self._trouble:
            raise OSError(self._trouble)

    def close(self) -> None:
        """No more events will come. What waits is still sent, without anybody waiting for it."""
        with self._lock:
            self._over = True
        self._some.set()
        self._at_once.set()

    def _run(self) -> None:
        try:
            self._send_all(self._find())
        except Exception as error:  # noqa: BLE001 - whatever ends the actor must not end training
            with self._lock:
                self._trouble = f"recording stopped: {_told(error)}"
                self._over = True
                self._waiting.clear()
            not_evaluated(f"{self._process}: {self._trouble}")

    def _find(self) -> Any:
        """The actor, once its controller has made it.

        Raises:
            LookupError: This process has no Ray, or has it no more.
        """
        import ray

        while ray.is_initialized():  # or the look itself would start one
            try:
                return ray.get_actor(self._name, namespace=NAMESPACE)
            except ValueError:
                time.sleep(LOOK_AGAIN)
        raise LookupError("Ray is not running in this process")

    def _send_all(self, actor: Any) -> None:
        while True:
            self._some.wait()
            self._at_once.wait(GATHER)
            self._at_once.clear()
            self._some.clear()
            batch = self._take()
            while batch:
                # A future, because `ray.get` warns in actors with asynchronous methods, and would warn in the user's log.
                actor.append.remote(self._process, self._writer, batch).future().result()
                batch = self._take()
            if self._over and not self._waiting:
                return

    def _take(self) -> bytes:
        """The lines of the next batch."""
        with self._lock:
            taken: list[bytes] = []
            size = 0
            while self._waiting and (not taken or size + len(self._waiting[0]) <= BATCH_BYTES):
                taken.append(self._waiting.popleft())
                size += len(taken[-1])
            self._bytes -= size
        return b"".join(taken)


class Sink:
    """The controller's side: owns the actor and waits for what trainers sent.

    Args:
        folder: Where the actor writes, on this machine.
        run: The run's name.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self.trouble = ""
        """Why trainers' records no longer arrive; empty while they do."""
        self._given_up: set[str] = set()
        try:
            self._actor = _start_actor(folder, run)
        except Exception as error:  # noqa: BLE001 - whatever Ray raises must not end training
            self.trouble = f"trainers cannot record through Ray: {describe(error)}"

    def wait_for_call(self, call: Phase, recorder: Recorder) -> None:
        """Wait until the trainers' records of a call that has returned are here: they come a moment after it.

        Args:
            call: The call, which is recorded next.
            recorder: The controller's; it is told when trainers' records come no further.
        """
        judged = recorder.judge
        if isinstance(judged, ControlledRun):
            self.wait_for(lambda: map(rank_process, judged.lacking(call)))
        if self.trouble:
            recorder.cannot("order", self.trouble)

    def wait_for(self, lacking: Callable[[], Iterable[str]]) -> None:
        """Wait for records, until `PATIENCE` is over or the actor is gone.

        Args:
            lacking: The processes whose records are not here yet.
        """
        begun = time.monotonic()
        pause = 0.001
        answer: Future[None] | None = None
        while not self.trouble:
            missing = set(lacking()) - self._given_up
            if not missing:
                return
            answer = answer or self._actor.alive.remote().future()
            if answer.done():
                error = answer.exception()
                self.trouble = f"the recording actor is gone: {_told(error)}" if error is not None else ""
                answer = None
            if time.monotonic() - begun > PATIENCE:
                self._given_up |= missing
            time.sleep(pause)
            pause = min(pause * 2, 0.05)


def _start_actor(folder: Path, run: str) -> Any:
    """The actor of a run, on this machine and of this process; it goes with its handle."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(RecordingActor).options(
        name=_actor_name(run), namespace=NAMESPACE, num_cpus=0, scheduling_strategy=here
    )
    return actor.remote(str(folder), run)
