"""What a worker process of vLLM sees: the weights that it is given, those that it holds afterwards, and requests with an adapter.

It writes a record of its own; the controller of the run reads it (`EngineRecords`), or the trainer whose server it belongs to
(`ServedRecords`). Read in vLLM 0.32 (v1/worker/gpu_worker.py, model_executor/model_loader/reload/layerwise.py) and trained with on
the CPU, under verl 0.9.1, OpenRLHF 0.11.2 and TRL 1.16.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.delivery import HeldWatch
from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.observe.processes import introduce, when_imported
from rlstep_hooks.observe.versions import versions_of
from rlstep_hooks.record.events import AdapterUsed
from rlstep_hooks.record.ledger import FolderLedger
from rlstep_hooks.record.logger import not_evaluated
from rlstep_hooks.record.writer import EventWriter
from rlstep_hooks.systems.vllm_engine.adapter import state_of
from rlstep_hooks.systems.vllm_engine.environment import place
from rlstep_hooks.systems.vllm_engine.layout import places_in
from rlstep_hooks.systems.vllm_engine.records import engine_name, process_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rlstep_hooks.systems.vllm_engine.environment import Place

_patches = Patches()
_attached = False
_engine: EngineWeights | None = None

REQUESTS = (16, 64, 256, 1024)
"""Numbers of requests since an adapter was delivered, after which it is told how many of all of them ran with one."""


def attach() -> None:
    """Register the hooks of this process, once."""
    global _attached
    if _attached:
        return
    _attached = True
    _when_imported("vllm.v1.worker.gpu_worker", _place_worker)
    _when_imported("vllm.v1.worker.cpu_worker", _place_cpu_worker)
    # Frameworks whose own method brings a whole sync: where it begins and ends need not be guessed.
    _when_imported("verl.workers.rollout.vllm_rollout.utils", _place_verl)
    _when_imported("openrlhf.trainer.ray.vllm_worker_wrap", _place_openrlhf)


def detach() -> list[str]:
    """Take all wrappers off again; names that somebody else has wrapped since are returned."""
    global _attached, _engine
    _attached, _engine = False, None
    return _patches.restore()


def _when_imported(module: str, place: Callable[[Any], None]) -> None:
    when_imported(module, place, wanted=lambda: _attached)


def _place_worker(module: Any) -> None:
    worker = module.Worker
    # gpu_worker.py:587: the model is there, with the weights that the engine begins with. `CPUWorker` inherits it.
    _patches.wrap(worker, "load_model", _after_model)
    # gpu_worker.py:332: an engine that slept is about to generate. What it holds is looked at when it does.
    _patches.wrap(worker, "wake_up", _after_wake)
    # gpu_worker.py:1439: an adapter is delivered.
    _patches.wrap(worker, "add_lora", _after_adapter)
    # gpu_worker.py:1484: another trainer connects. gpu_worker.py:629, 1507, 1587: vLLM's own calls for a sync.
    for name, hook in (
        ("init_weight_transfer_engine", _after_connection),
        ("reload_weights", _around_sync),
        ("start_weight_update", _before_update),
        ("finish_weight_update", _after_update),
    ):
        if hasattr(worker, name):
            _patches.wrap(worker, name, hook)
    # gpu_worker.py:1302: a step of the model, whichever of vLLM's two model runners makes it, with the requests that enter the batch.
    # Tensors that were loaded before it outside a known sync are one sync.
    _patches.wrap(worker, "execute_model", _before_step)


def _place_cpu_worker(module: Any) -> None:
    # cpu_worker.py:183: has a method of its own, which does nothing but warn.
    _patches.wrap(module.CPUWorker, "wake_up", _after_wake)


def _place_verl(module: Any) -> None:
    # vllm_rollout/utils.py 0.9.1:226: a whole sync, in buckets, and what follows it.
    _patches.wrap(module.vLLMColocateWorkerExtension, "update_weights_from_ipc", _around_sync)


def _place_openrlhf(module: Any) -> None:
    for name in ("update_weight", "update_weight_cuda_ipc"):
        # vllm_worker_wrap.py 0.11.2:32, 58: one tensor of a sync; `empty_cache` marks the last.
        _patches.wrap(module.WorkerWrap, name, _around_tensor)


def _around_tensor(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    result = _before_sync(wrapped, worker, args, kwargs)
    if _engine is not None and kwargs.get("empty_cache", args[-1] if len(args) > 3 else False) is True:
        _engine.end()
    return result


def _after_model(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    global _engine
    result = wrapped(*args, **kwargs)
    try:
        where = place()
        # TRL's colocate mode (vllm_generation.py 1.16.0:340): the trainer is in the same process and looks itself.
        own = getattr(worker.vllm_config.parallel_config, "distributed_executor_backend", None) == "external_launcher"
        if _engine is None and where is not None and not (where.served and own):
            _engine = EngineWeights(worker, where)
    except Exception as error:  # noqa: BLE001 - an engine that cannot be observed goes on
        not_evaluated(f"the engine's weights cannot be followed: {error!r}")
    return result


def _before_sync(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    if _engine is not None:
        _engine.begin()
    return wrapped(*args, **kwargs)


def _after_sync(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    if _engine is not None:
        _engine.end()
    return result


def _around_sync(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    return _before_sync(lambda *a, **k: _after_sync(wrapped, worker, a, k), worker, args, kwargs)


def _after_connection(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    if _engine is not None:
        _engine.restart()
    return result


def _before_update(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    if _engine is not None:
        _engine.begin(ahead=True)
    return wrapped(*args, **kwargs)


def _after_update(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    if _engine is not None:
        # vLLM itself waits for the device in each update (distributed/weight_transfer/base.py:375). The trainer that made the call
        # relies on finding this sync in the record once its samples are there.
        _engine.end(wait=True)
    return result


def _after_wake(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    if _engine is not None:
        _engine.woken = True
    return result


def _after_adapter(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    if _engine is not None:
        request = kwargs["lora_request"] if "lora_request" in kwargs else args[0]
        _engine.adapted = int(request.lora_int_id)
    return result


def _before_step(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    if _engine is not None:
        _engine.steps()
        if _engine.adapted is not None:
            _engine.take_requests(kwargs["scheduler_output"] if "scheduler_output" in kwargs else args[0])
    return wrapped(*args, **kwargs)


class EngineWeights:
    """The weights of one worker process.

    Args:
        worker: vLLM's.
        where: Where it records.
    """

    def __init__(self, worker: Any, where: Place) -> None:
        process = process_name()
        attached = introduce(where.run, process, versions_of("vllm", "torch", "transformers"))
        self._writer = EventWriter(FolderLedger(Path(where.folder), where.run, process))
        self._attached = attached
        self._writer.emit(attached)
        self._guard = Guard(self._writer, ("delivery",))
        self.woken = False
        """Whether it was woken up and has not generated since."""
        self.adapted: int | None = None
        """The number under which the latest adapter was delivered; None if none was."""
        self._worker = worker
        self._requests = self._bound = 0
        self._name = engine_name(process)
        model, parallel = worker.model_runner.model, worker.vllm_config.parallel_config
        self._held = HeldWatch(self._name, places_in(model, int(parallel.tensor_parallel_size)))
        self._explicit = False
        """Whether a sync goes on that says where it ends."""
        self._waiting = False
        # Model classes load all tensors of a sync here, or part after part (model_executor/models/*.py).
        _patches.wrap(model, "load_weights", self._around_load)

    def restart(self) -> None:
        """Another trainer has connected. Both sides read the same tensors of a sync only if they count alike."""
        with self._guard:
            self._held.restart()
            self._writer.emit(self._attached)

    def begin(self, *, ahead: bool = False) -> None:
        """A sync begins, or goes on with another tensor. It counts even if nothing comes with it, as it does for the trainer.

        Args:
            ahead: Whether the engine takes its tensors away while it loads, so that what it holds has to be read now.
        """
        if self._explicit:
            return
        if self._held.open:
            self._close()
        self._explicit = True
        with self._guard:
            self._held.begin(ahead=ahead)

    def end(self, *, wait: bool = False) -> None:
        """A sync is over.

        Args:
            wait: Whether the device may be waited for.
        """
        self._explicit = False
        self._close(wait=wait)

    def steps(self) -> None:
        """The model is about to compute."""
        if self._held.open and not self._explicit:
            self._close()
        if self.woken:
            self.woken = False
            with self._guard:
                self._held.woken()
                self._waiting = True
        if self._waiting:
            self._write()

    def take_requests(self, scheduled: Any) -> None:
        """Requests enter the batch that is computed, after an adapter was delivered (v1/core/sched/output.py, `NewRequestData`)."""
        with self._guard:
            for request in scheduled.scheduled_new_reqs:
                self._take_request(request)

    def _take_request(self, request: Any) -> None:
        self._requests += 1
        self._bound += getattr(request, "lora_request", None) is not None
        if self._requests in REQUESTS:
            state = None if self.adapted is None else state_of(self._worker, self.adapted)
            self._writer.emit(
                AdapterUsed(
                    at=self._writer.now(),
                    engine=self._name,
                    requests=self._requests,
                    bound=self._bound,
                    parts=state.parts if state is not None else None,
                    matched=state.matched if state is not None else 0,
                    empty=state.empty if state is not None else 0,
                )
            )

    def _around_load(self, wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
        if not (args or "weights" in kwargs):
            return wrapped(*args, **kwargs)
        return wrapped(self._seen(args[0] if args else kwargs["weights"]))

    def _seen(self, weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        for name, tensor in weights:
            with self._guard:
                self._held.see(name, tensor)
            yield name, tensor

    def _close(self, *, wait: bool = False) -> None:
        with self._guard:
            self._held.end()
        self._write(wait=wait)

    def _write(self, *, wait: bool = False) -> None:
        with self._guard:
            events = self._held.ready(self._writer.now(), wait=wait)
            self._waiting = not events
            if events:
                self._writer.emit(*events)
