"""Stands between a framework and the audit's hooks, in every process of a launch: times the hooks, or takes them out now and then.

verl and OpenRLHF import this module before they are hooked. What it does is said by `RLSTEP_BENCH_WAY`:

- "time": each call of a hook is timed, by the wall and by the processor's time of its thread, and the time of the framework's own
  call within it is left out. Calls are written as JSON lines below `RLSTEP_BENCH_FOLDER`, one file for each process.
- "switched": the hooks of all processes are called in some rollouts and left out in others. The controller says which, by one byte of a
  file that all processes have in memory. Only the weight syncs are written, with their time and what each process has used of
  the processor.

A weight sync is the end of a rollout in both.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import math
import mmap
import os
import time
from collections import Counter
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec
import wrapt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MODULE = __name__
FOLDER = "RLSTEP_BENCH_FOLDER"
WAY = "RLSTEP_BENCH_WAY"
SWITCH = "switched"
"""Name of the way, and of the file with the byte."""

PROCESS = ".pid"
"""End of the name of a file that holds a process's id."""

PATTERN = (True, False, False, True)
"""Rollouts with the hooks and without, again and again: a steady drift of the machine cancels."""

SYNCS = ("CheckpointEngineManager.update_weights", "PPOTrainer.broadcast_to_vllm")
"""The controller's hooks on a weight sync, of verl and of OpenRLHF."""

REGISTERED = (
    ("Tensor", "register_hook"),
    ("Tensor", "register_post_accumulate_grad_hook"),
    ("nn.Module", "register_forward_pre_hook"),
    ("nn.Module", "register_forward_hook"),
    ("optim.Optimizer", "register_step_pre_hook"),
    ("optim.Optimizer", "register_step_post_hook"),
)
"""Where torch is given the hooks that wrap nothing: classes of torch, and methods."""


class Call(msgspec.Struct, frozen=True):
    """One call of a hook. All processes of a machine have the same clock."""

    process: str
    hook: str
    end: float
    wall: float
    """Seconds, the framework's own call left out."""
    processor: float
    """Seconds of the thread's processor time, likewise."""


class Sync(msgspec.Struct, frozen=True):
    """The end of a rollout."""

    end: float
    audited: bool
    processor: dict[str, float]
    """Process -> seconds of processor time since it began, all its threads."""


class Stopwatch:
    """Runs from its making to `stop`, but for the framework's own calls."""

    def __init__(self) -> None:
        self.wall = self.processor = 0.0
        self.start()

    def start(self) -> None:
        """Go on."""
        self.wall -= time.perf_counter()
        self.processor -= time.thread_time()

    def stop(self) -> None:
        """Stand still."""
        self.processor += time.thread_time()
        self.wall += time.perf_counter()

    def around(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        """A call during which the watch stands still."""

        def paused(*args: Any, **kwargs: Any) -> Any:
            self.stop()
            try:
                return wrapped(*args, **kwargs)
            finally:
                self.start()

        return paused

    def around_async(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        """The same of a coroutine."""

        async def paused(*args: Any, **kwargs: Any) -> Any:
            self.stop()
            try:
                return await wrapped(*args, **kwargs)
            finally:
                self.start()

        return paused


def timed_hook(hook: Callable[..., Any], watches: list[Stopwatch]) -> Callable[..., Any]:
    """A hook that wraps nothing; each call adds its watch."""

    def timed(*args: Any, **kwargs: Any) -> Any:
        watch = Stopwatch()
        try:
            return hook(*args, **kwargs)
        finally:
            watch.stop()
            watches.append(watch)

    return timed


@contextlib.contextmanager
def watched(watches: list[Stopwatch]) -> Iterator[None]:
    """Every hook of the audit of a transformers Trainer is called with a watch, also those that torch and the trainer call."""
    import torch

    from rlstep_hooks import StepAuditCallback
    from rlstep_hooks.observe.patches import Patches

    with contextlib.ExitStack() as placed:
        placed.enter_context(mock.patch.object(Patches, "wrap", timed_wraps(watches, Patches.wrap)))
        for owner, name, register in _registrations(torch, partial(timed_hook, watches=watches)):
            placed.enter_context(mock.patch.object(owner, name, register))
        for name in [name for name in vars(StepAuditCallback) if name.startswith("on_")]:
            hook = timed_hook(getattr(StepAuditCallback, name), watches)
            placed.enter_context(mock.patch.object(StepAuditCallback, name, hook))
        yield


def _registrations(
    torch: Any, metered: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """The methods by which torch is given hooks, in a form that puts a meter around those of the audit: owner, name, method."""

    def registering(register: Callable[..., Any]) -> Callable[..., Any]:
        def registered(self: Any, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return register(self, metered(hook) if _of_the_audit(hook) else hook, *args, **kwargs)

        return registered

    for kind, name in REGISTERED:
        owner = attrgetter(kind)(torch)
        yield owner, name, registering(getattr(owner, name))


def _of_the_audit(hook: Callable[..., Any]) -> bool:
    while isinstance(hook, partial):
        hook = hook.func
    return getattr(inspect.unwrap(hook), "__module__", "").startswith("rlstep_hooks.")


def timed_wraps(watches: list[Stopwatch], place: Callable[..., None]) -> Callable[..., None]:
    """`Patches.wrap` whose hooks add a watch with each call, without the time of what they wrap.

    Args:
        watches: Gets them.
        place: `Patches.wrap` itself.
    """

    def wrap(patches: Any, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        def timed(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            watch = Stopwatch()
            try:
                return wrapper(watch.around(wrapped), instance, args, kwargs)
            finally:
                watch.stop()
                watches.append(watch)

        place(patches, owner, name, timed)

    return wrap


class Timing:
    """Times each call of a hook."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{os.getpid()}.jsonl"
        self._file: Any = None
        self.process = f"process{os.getpid()}"

    def named(self, process: str) -> None:
        """This process records under a name."""
        self.process = process

    def wrapper(self, hook: str, wrapper: Callable[..., Any]) -> Callable[..., Any]:
        """A hook that wraps a call, with the watch."""

        def timed(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            watch = Stopwatch()
            try:
                return wrapper(watch.around(wrapped), instance, args, kwargs)
            finally:
                self._write(hook, watch)

        async def timed_async(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            watch = Stopwatch()
            try:
                return await wrapper(watch.around_async(wrapped), instance, args, kwargs)
            finally:
                self._write(hook, watch)

        return timed_async if inspect.iscoroutinefunction(wrapper) else timed

    def plain(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """A hook that wraps nothing, with the watch."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            watch = Stopwatch()
            try:
                return hook(*args, **kwargs)
            finally:
                self._write(_plain_name(hook), watch)

        return timed

    def _write(self, hook: str, watch: Stopwatch) -> None:
        watch.stop()
        # Opened by the process that writes: its parent may have imported this module.
        self._file = self._file or self._path.open("ab", buffering=0)
        call = Call(self.process, hook, time.perf_counter(), watch.wall, watch.processor)
        self._file.write(msgspec.json.encode(call) + b"\n")


class Switching:
    """Calls the hooks in some rollouts, and only what they wrap in the others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with (folder / SWITCH).open("r+b") as file:
            self._byte = mmap.mmap(file.fileno(), 1)
        self._syncs = 0

    def named(self, process: str) -> None:
        """This process records under a name."""
        (self._folder / f"{process}{PROCESS}").write_text(str(os.getpid()))

    def wrapper(self, hook: str, wrapper: Callable[..., Any]) -> Callable[..., Any]:
        """A hook that wraps a call, with the switch."""

        def switched(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            if self._byte[0]:
                return wrapper(wrapped, instance, args, kwargs)
            return wrapped(*args, **kwargs)

        def syncing(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            try:
                return switched(wrapped, instance, args, kwargs)
            finally:
                self._synced()

        return syncing if hook in SYNCS else switched

    def plain(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """A hook that wraps nothing, with the switch."""

        def switched(*args: Any, **kwargs: Any) -> Any:
            return hook(*args, **kwargs) if self._byte[0] else None

        return switched

    def _synced(self) -> None:
        processes = {
            file.name.removesuffix(PROCESS): int(file.read_text()) for file in self._folder.glob(f"*{PROCESS}")
        }
        used = {name: _processor_time(pid) for name, pid in processes.items() if not name.startswith("process")}
        sync = Sync(time.perf_counter(), bool(self._byte[0]), used)
        with (self._folder / "syncs.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(sync) + b"\n")
        self._syncs += 1
        self._byte[0] = PATTERN[self._syncs % len(PATTERN)]


def calls(folder: Path) -> Iterator[Call]:
    """What all processes timed."""
    for file in folder.glob("*.jsonl"):
        yield from msgspec.json.decode(b"[" + b",".join(file.read_bytes().splitlines()) + b"]", type=list[Call])


def syncs(folder: Path) -> list[Sync]:
    """The syncs of a run with a switch."""
    lines = (folder / "syncs.jsonl").read_bytes().splitlines()
    return msgspec.json.decode(b"[" + b",".join(lines) + b"]", type=list[Sync])


def _processor_time(pid: int) -> float:
    """Seconds of processor time that a process has used, its threads included; to the nanosecond, unlike `/proc`."""
    clock = ctypes.c_int()
    if ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)):
        return math.nan
    return time.clock_gettime(clock.value)


def _name(owner: Any, method: str) -> str:
    kind = owner if hasattr(owner, "__name__") else type(owner)
    return f"{kind.__name__.rpartition('.')[2]}.{method}"


def _plain_name(hook: Callable[..., Any]) -> str:
    while isinstance(hook, partial):
        hook = hook.func
    return hook.__qualname__


def _install(meter: Timing | Switching) -> None:
    """Put the meter between the framework and each hook that is placed from now on."""
    wrapt.when_imported("rlstep_hooks.observe.patches")(lambda module: _in_patches(module, meter))
    wrapt.when_imported("torch")(lambda module: _in_torch(module, meter))
    wrapt.when_imported("rlstep_hooks.record.ledger")(lambda module: _in_ledgers(module, meter))


def _in_patches(module: Any, meter: Timing | Switching) -> None:
    wrap = module.Patches.wrap
    placed: Counter[str] = Counter()

    def metered(self: Any, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        hook = _name(owner, name)
        placed[hook] += 1
        # A method may get several hooks, and one of them marks the sync: the others have names of their own.
        wrap(self, owner, name, meter.wrapper(hook if placed[hook] == 1 else f"{hook}, hook {placed[hook]}", wrapper))

    module.Patches.wrap = metered


def _in_torch(module: Any, meter: Timing | Switching) -> None:
    for owner, name, register in _registrations(module, meter.plain):
        setattr(owner, name, register)


def _in_ledgers(module: Any, meter: Timing | Switching) -> None:
    """A process has the name of its record."""
    start = module.FolderLedger.__init__

    def named(self: Any, folder: Path, run: str, process: str) -> None:
        start(self, folder, run, process)
        meter.named(process)

    module.FolderLedger.__init__ = named


if FOLDER in os.environ:
    _folder = Path(os.environ[FOLDER])
    _install(Switching(_folder) if os.environ[WAY] == SWITCH else Timing(_folder))
