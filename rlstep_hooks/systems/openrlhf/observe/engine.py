"""What a process of a rollout engine sees: the weight syncs that really arrive. Verified with OpenRLHF 0.11.2 on vLLM 0.32."""

from __future__ import annotations

from typing import Any

from rlstep_hooks.observe.contained import Contained
from rlstep_hooks.record.events import WeightSync
from rlstep_hooks.record.ledger import FolderLedger
from rlstep_hooks.record.writer import EventWriter
from rlstep_hooks.systems.openrlhf.observe.attach import folder, introduce, put_around, run_name
from rlstep_hooks.systems.openrlhf.observe.fingerprint import Fingerprint

UNKNOWN_VERSION = -1
"""An engine knows which weights it took, and not how many updates made them."""


def place_hooks(module: Any) -> None:
    """Put the engine's hooks into `WorkerWrap`, which vLLM adds to the bases of its worker."""
    worker = module.WorkerWrap
    # vllm_worker_wrap.py:2: joins the group in which the trainer syncs weights, once before training.
    put_around(worker, "init_process_group", _after_group)
    # vllm_worker_wrap.py:32: one tensor of a sync; `empty_cache` marks the last.
    put_around(worker, "update_weight", _around_tensor)


_engine: EngineRecord | None = None


def _after_group(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    global _engine
    result = wrapped(*args, **kwargs)
    try:
        import torch

        offset = kwargs["rank_offset"] if "rank_offset" in kwargs else args[2]
        # Rank 0 of the group is the trainer; each engine's processes follow.
        _engine = _engine or EngineRecord(torch.distributed.get_rank() + offset - 1, worker.model_runner.model)
    except Exception as error:  # noqa: BLE001 - an engine that cannot be observed goes on
        print(f"rlstep: not evaluated: the engine's syncs cannot be followed: {error!r}", flush=True)
    return result


def _around_tensor(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    engine = _engine
    if engine is None:
        return wrapped(*args, **kwargs)
    engine.syncing = True
    try:
        result = wrapped(*args, **kwargs)
    finally:
        engine.syncing = False
    if kwargs["empty_cache"] if "empty_cache" in kwargs else len(args) > 3 and args[3]:
        engine.received()
    return result


class EngineRecord:
    """One engine process: the syncs that its model loaded.

    Args:
        number: Counts the processes of all engines from 0.
        model: The model that samples.
    """

    def __init__(self, number: int, model: Any) -> None:
        process = f"engine{number}"
        self._writer = EventWriter(FolderLedger(folder(), run_name(), process))
        self._contained = Contained(self._writer, ("sampler",))
        self._fingerprint = Fingerprint()
        self.syncing = False
        """Whether what is loaded now comes from the trainer."""
        self._load = model.load_weights
        model.load_weights = self._load_weights
        self._writer.emit(introduce(process))

    def _load_weights(self, weights: Any) -> Any:
        if not self.syncing:
            return self._load(weights)
        weights = list(weights)
        with self._contained:
            for _, tensor in weights:
                self._fingerprint.add(tensor)
        return self._load(weights)

    def received(self) -> None:
        """The last tensor of a sync was loaded."""
        with self._contained:
            label = self._fingerprint.take()
            if label is None:  # tensors came and none was loaded
                return
            self._writer.emit(WeightSync(at=self._writer.now(), policy_version=UNKNOWN_VERSION, label=label))
