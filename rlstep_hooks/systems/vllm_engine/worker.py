"""What a worker process of vLLM sees: the weights that it is given, those that it holds afterwards, and requests with an adapter.

It writes a record of its own; the controller of the run reads it (`EngineRecords`), or the trainer whose server it belongs to
(`ServedRecords`). Read in vLLM 0.32 (v1/worker/gpu_worker.py, model_executor/model_loader/reload/layerwise.py) and trained with on
the CPU, under verl 0.9.1, OpenRLHF 0.11.2 and TRL 1.16.0.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.delivery import HeldWatch
from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.hooks import Call, Hooks, LateRecorder
from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.observe.processes import introduce, when_imported
from rlstep_hooks.observe.versions import versions_of
from rlstep_hooks.record.cadence import ADAPTER_REQUESTS
from rlstep_hooks.record.events import AdapterUsed
from rlstep_hooks.record.ledger import FolderLedger
from rlstep_hooks.record.writer import EventWriter
from rlstep_hooks.systems.vllm_engine.adapter import state_of
from rlstep_hooks.systems.vllm_engine.environment import place
from rlstep_hooks.systems.vllm_engine.layout import places_in
from rlstep_hooks.systems.vllm_engine.prefix_cache import FIRST_WEIGHTS, prefix_cache_of
from rlstep_hooks.systems.vllm_engine.records import engine_name, process_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rlstep_hooks.systems.vllm_engine.environment import Place

_attached = False
_engine: EngineWeights | None = None
_patches = Patches()
_hooks = Hooks(LateRecorder(lambda: _engine), _patches)
_DELIVERY = ("delivery",)
"""What is not observed any more where a hook fails."""


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
    worker, wrap = module.Worker, partial(_hooks.wrap, topics=_DELIVERY)
    # gpu_worker.py:587: the model is there, with the weights that the engine begins with. `CPUWorker` inherits it.
    wrap(worker, "load_model", after=_follow)
    # gpu_worker.py:332: an engine that slept is about to generate. What it holds is looked at when it does.
    wrap(worker, "wake_up", after=_woken)
    # gpu_worker.py:1439: an adapter is delivered.
    wrap(worker, "add_lora", after=_adapted)
    # gpu_worker.py:1484: another trainer connects. gpu_worker.py:629, 1507, 1587: vLLM's own calls for a sync.
    for name, before, after in (
        ("init_weight_transfer_engine", None, _connected),
        ("reload_weights", _sync_begins, _sync_ends),
        ("start_weight_update", _update_begins, None),
        ("finish_weight_update", None, _update_ends),
    ):
        if hasattr(worker, name):
            wrap(worker, name, before=before, after=after)
    # gpu_worker.py:1302: a step of the model, whichever of vLLM's two model runners makes it, with the requests that enter the batch.
    # Tensors that were loaded before it outside a known sync are one sync.
    wrap(worker, "execute_model", before=_computes)


def _place_cpu_worker(module: Any) -> None:
    # cpu_worker.py:183: has a method of its own, which does nothing but warn.
    _hooks.wrap(module.CPUWorker, "wake_up", after=_woken, topics=_DELIVERY)


def _place_verl(module: Any) -> None:
    # vllm_rollout/utils.py 0.9.1:226: a whole sync, in buckets, and what follows it.
    worker = module.vLLMColocateWorkerExtension
    _hooks.wrap(worker, "update_weights_from_ipc", before=_sync_begins, after=_sync_ends, topics=_DELIVERY)


def _place_openrlhf(module: Any) -> None:
    for name in ("update_weight", "update_weight_cuda_ipc"):
        # vllm_worker_wrap.py 0.11.2:32, 58: one tensor of a sync; `empty_cache` marks the last.
        _hooks.wrap(module.WorkerWrap, name, before=_sync_begins, after=_tensor_came, topics=_DELIVERY)


def _follow(call: Call) -> None:
    global _engine
    where = place()
    # TRL's colocate mode (vllm_generation.py 1.16.0:340): the trainer is in the same process and looks itself.
    own = getattr(call.owner.vllm_config.parallel_config, "distributed_executor_backend", None) == "external_launcher"
    if _engine is None and where is not None and not (where.served and own):
        _engine = EngineWeights(call.owner, where)


def _woken(call: Call) -> None:
    if _engine is not None:
        _engine.woken = True


def _adapted(call: Call) -> None:
    if _engine is not None:
        _engine.adapted = int(call.argument("lora_request", 0).lora_int_id)


def _connected(call: Call) -> None:
    if _engine is not None:
        _engine.restart()


def _sync_begins(call: Call) -> None:
    if _engine is not None:
        _engine.begin()


def _sync_ends(call: Call) -> None:
    if _engine is not None:
        _engine.end()


def _tensor_came(call: Call) -> None:
    last = call.kwargs.get("empty_cache", call.args[-1] if len(call.args) > 3 else False)
    if _engine is not None and last is True:
        _engine.end()


def _update_begins(call: Call) -> None:
    if _engine is not None:
        _engine.begin(ahead=True)


def _update_ends(call: Call) -> None:
    if _engine is not None:
        # vLLM itself waits for the device in each update (distributed/weight_transfer/base.py:375). The trainer that made the call
        # relies on finding this sync in the record once its samples are there.
        _engine.end(wait=True)


def _computes(call: Call) -> None:
    if _engine is not None:
        _engine.steps()
        _engine.look_at_keys(call.argument("scheduler_output", 0))
        if _engine.adapted is not None:
            _engine.take_requests(call.argument("scheduler_output", 0))


class EngineWeights:
    """The weights of one worker process.

    Args:
        worker: vLLM's.
        where: Where it records.
    """

    def __init__(self, worker: Any, where: Place) -> None:
        process = process_name()
        attached = introduce(where.run, process, versions_of("vllm", "torch", "transformers"))
        self.recorder = EventWriter(FolderLedger(Path(where.folder), where.run, process))
        """Where it records."""
        self._attached = attached
        self.recorder.emit(attached)
        self.woken = False
        """Whether the engine was woken up and has not generated since."""
        self.adapted: int | None = None
        """The number under which the latest adapter was delivered; None if none was."""
        self._worker = worker
        self._requests = self._bound = 0
        self._name = engine_name(process)
        model, parallel = worker.model_runner.model, worker.vllm_config.parallel_config
        self._keys = prefix_cache_of(worker.vllm_config, worker.model_runner, self._name)
        self._held = HeldWatch(self._name, places_in(model, int(parallel.tensor_parallel_size)))
        self._explicit = False
        """Whether a sync goes on that says where it ends."""
        self._waiting = False
        # Model classes load all tensors of a sync here, or part after part (model_executor/models/*.py).
        _hooks.wrap(model, "load_weights", before=self._loads, topics=_DELIVERY)

    def cannot(self, what: str, why: str) -> None:
        """Record once that a topic cannot be observed."""
        self.recorder.cannot(what, why)

    def restart(self) -> None:
        """Count syncs anew, because another trainer has connected. Both sides read the same tensors of a sync only if they count
        alike."""
        self._held.restart()
        if self._keys is not None:
            self._keys.weights_changed(FIRST_WEIGHTS)
        self.recorder.emit(self._attached)

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
            self._held.woken()
            self._waiting = True
        if self._waiting:
            self._write()

    @contained("prefix_cache")
    def look_at_keys(self, scheduled: Any) -> None:
        """Requests enter the batch that is computed, and may find keys in the prefix cache."""
        if self._keys is None:
            return
        event = self._keys.step(scheduled, self.recorder.now())
        if event is not None:
            self.recorder.emit(event)

    def take_requests(self, scheduled: Any) -> None:
        """Requests enter the batch that is computed, after an adapter was delivered (v1/core/sched/output.py, `NewRequestData`)."""
        for request in scheduled.scheduled_new_reqs:
            self._take_request(request)

    def _take_request(self, request: Any) -> None:
        self._requests += 1
        self._bound += getattr(request, "lora_request", None) is not None
        if self._requests in ADAPTER_REQUESTS:
            state = None if self.adapted is None else state_of(self._worker, self.adapted)
            self.recorder.emit(
                AdapterUsed(
                    at=self.recorder.now(),
                    engine=self._name,
                    requests=self._requests,
                    bound=self._bound,
                    parts=state.parts if state is not None else None,
                    matched=state.matched if state is not None else 0,
                    empty=state.empty if state is not None else 0,
                )
            )

    def _loads(self, call: Call) -> None:
        if call.args or "weights" in call.kwargs:
            call.replace_argument("weights", 0, self._seen(call.argument("weights", 0)))

    def _seen(self, weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        for name, tensor in weights:
            self._see(name, tensor)
            yield name, tensor

    @contained("delivery")
    def _see(self, name: str, tensor: Any) -> None:
        """A tensor is about to be loaded."""
        self._held.see(name, tensor)

    def _close(self, *, wait: bool = False) -> None:
        self._held.end()
        if self._keys is not None:
            self._keys.weights_changed(self._held.number)
        self._write(wait=wait)

    def _write(self, *, wait: bool = False) -> None:
        events = self._held.ready(self.recorder.now(), wait=wait)
        self._waiting = not events
        if events:
            self.recorder.emit(*events)
