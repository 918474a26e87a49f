"""What a process of a rollout engine sees: the weight syncs that really arrive. Verified with OpenRLHF 0.11.2 on vLLM 0.32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.hooks import Call, Hooks, LateRecorder
from rlstep_hooks.record.events import FactsRead, WeightSync
from rlstep_hooks.record.ledger import FolderLedger
from rlstep_hooks.record.writer import EventWriter
from rlstep_hooks.systems.openrlhf.observe.fingerprint import Sums, WeightSums, label_of, sums_of, total
from rlstep_hooks.systems.openrlhf.observe.labels import FIRST_WEIGHTS, sampling_asked
from rlstep_hooks.systems.openrlhf.observe.process import folder, introduce, patches, run_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.patches import Patches

UNKNOWN_VERSION = -1
"""An engine knows which weights it received, but not how many updates made them."""


def place_hooks(patches: Patches, module: Any) -> None:
    """Put the engine's hooks into `WorkerWrap`, which vLLM adds to the bases of its worker."""
    worker, hooks = module.WorkerWrap, Hooks(_process, patches)
    # vllm_worker_wrap.py:2: joins the group in which the trainer syncs weights, once before training.
    hooks.wrap(worker, "init_process_group", after=_group, topics=_SAMPLER)
    # vllm_worker_wrap.py:32: one tensor of a sync; `empty_cache` marks the last.
    hooks.wrap(worker, "update_weight", around=_tensor, topics=_SAMPLER)


def place_sampling_hooks(patches: Patches, module: Any) -> None:
    """Put the hook of requests into `vllm.v1.worker.gpu_input_batch`."""
    # gpu_input_batch.py:345 (vLLM 0.32): a request enters the batch that the sampler works on, with the settings that count for it.
    Hooks(_process, patches).wrap(module.InputBatch, "add_request", after=_request, topics=_SAMPLER)


_SAMPLER = ("sampler",)

_engine: EngineRecord | None = None

_process = LateRecorder(lambda: _engine)


def _request(call: Call) -> None:
    if _engine is not None:
        _engine.sampled(call.argument("request", 0))


def _group(call: Call) -> None:
    global _engine
    import torch

    # Rank 0 of the group is the trainer; each engine's processes follow.
    number = torch.distributed.get_rank() + call.argument("rank_offset", 2) - 1
    _engine = _engine or EngineRecord(number, call.owner.model_runner.model, call.owner.model_config)


def _tensor(call: Call) -> Iterator[None]:
    engine = _engine
    if engine is None:
        yield
        return
    engine.syncing = True
    try:
        yield
    finally:
        engine.syncing = False
    if call.argument("empty_cache", 3, default=False):
        engine.received()


class EngineRecord:
    """One engine process: the weights that its model holds after each sync.

    Args:
        number: Counts the processes of all engines from 0.
        model: The model that samples.
        settings: vLLM's settings of the model.
    """

    def __init__(self, number: int, model: Any, settings: Any) -> None:
        process = f"engine{number}"
        self.recorder = EventWriter(FolderLedger(folder(), run_name(), process))
        """Learns what is not observed."""
        self._handed = WeightSums()
        self._loaded: set[str] | None = set()
        """Parameters that the current sync was loaded into; None if the model does not say."""
        self.syncing = False
        """Whether the weights that are loaded now come from the trainer."""
        self._model = model
        # vllm_worker_wrap.py:50: how a tensor of a sync, or a checkpoint, gets into the model. What comes may be an iterator, which
        # can be read once: the model must get its tensors whatever happens here, and an error of reading them is the run's own. So this
        # is no hook, which would contain it.
        patches.wrap(model, "load_weights", self._around_load)
        self._ends = ModelEnds(settings)
        self._settings: dict[str, float] = {}
        """The settings that the engine sampled with last."""
        self.recorder.emit(introduce(process))
        # Nothing is read before the first sync: an engine in sleep mode has no weights then, and reading them would end its process.
        self._held = HeldWeights()

    def cannot(self, what: str, why: str) -> None:
        """Record once that a topic cannot be observed."""
        self.recorder.cannot(what, why)

    def _around_load(self, wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
        if not self.syncing:
            return wrapped(*args, **kwargs)
        weights = list(kwargs["weights"] if "weights" in kwargs else args[0])
        self._see_handed(weights)
        loaded = wrapped(weights)
        self._see_loaded(loaded)
        return loaded

    @contained(*_SAMPLER)
    def _see_handed(self, weights: list[tuple[str, Any]]) -> None:
        """Look at the tensors that the model is about to get."""
        for _, tensor in weights:
            self._handed.add(tensor)

    @contained(*_SAMPLER)
    def _see_loaded(self, loaded: set[str] | None) -> None:
        """Look at the names of the parameters that the model loaded into, which vLLM's models give."""
        self._loaded = None if loaded is None or self._loaded is None else self._loaded | set(loaded)

    def received(self) -> None:
        """The last tensor of a sync was loaded."""
        handed, loaded = self._handed.take(), self._loaded
        self._loaded = set()
        if not handed:  # tensors came, but none was loaded
            return
        label = self._held.after_sync(label_of(total(handed)), self._weights(), loaded)
        self.recorder.emit(WeightSync(at=self.recorder.now(), policy_version=UNKNOWN_VERSION, label=label))

    def sampled(self, request: Any) -> None:
        """A request is sampled from now on."""
        asked = request.sampling_params
        if asked is None:
            return
        settings = sampling_asked(asked, self._ends.beside(asked))
        if settings != self._settings:
            self._settings = settings
            self.recorder.emit(FactsRead(at=self.recorder.now(), facts={"sampling": settings}))

    def _weights(self) -> dict[str, Sums]:
        named = dict(self._model.named_parameters())
        return dict(zip(named, sums_of(named.values()), strict=True))


class ModelEnds:
    """The tokens that end a completion by a model's own settings, which vLLM adds to those of each request.

    Args:
        settings: vLLM's `ModelConfig`.
    """

    def __init__(self, settings: Any) -> None:
        self._settings = settings
        self._read = False
        self._ends: frozenset[int] | None = None

    def beside(self, asked: Any) -> frozenset[int] | None:
        """These tokens, and the one that ends the text of a request; None where they cannot be read. They are read when first a request
        has such a token, from the file that vLLM has read them from when it started (vllm/v1/engine/input_processor.py, 0.32)."""
        if not asked.stop_token_ids:
            return frozenset()
        if not self._read:
            self._read, self._ends = True, self._of_model()
        own = getattr(asked, "_eos_token_id", None)
        return self._ends if self._ends is None or own is None else self._ends | {own}

    def _of_model(self) -> frozenset[int] | None:
        read = getattr(self._settings, "try_get_generation_config", None)
        if read is None:
            return None
        ends = read().get("eos_token_id")
        return frozenset([ends] if isinstance(ends, int) else ends or ())


class HeldWeights:
    """Which weights a model holds, sync by sync.

    If the whole model is in one process, its sums equal those of the tensors that it received, so they say what it holds. If it is
    split, or keeps its weights in another type, they only say that it changed, and the label is that of the received tensors.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Sums] | None = None
        """Sums of each parameter after the latest sync."""
        self._label = FIRST_WEIGHTS
        self._handed: int | None = None
        """The label of the tensors after which it last changed."""
        self._whole = False
        """Whether the sums have ever equalled those of the received tensors."""

    def after_sync(self, handed: int, sums: dict[str, Sums], loaded: set[str] | None) -> int:
        """The label of what the model holds after a sync.

        Args:
            handed: The label of the tensors that it received.
            sums: The sums of each parameter now.
            loaded: Parameters that it loaded them into; None where that is not known.
        """
        own = sums if loaded is None else {name: sums[name] for name in loaded if name in sums}
        held = label_of(total(own.values()))
        self._whole = self._whole or held == handed
        unchanged, self._sums = sums == self._sums, sums
        if self._whole:
            self._label = held
        elif not unchanged or self._handed in (None, handed):
            self._label = self._handed = handed
        return self._label
