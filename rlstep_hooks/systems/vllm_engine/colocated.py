"""An engine of vLLM in the trainer's own process. Verified with vLLM 0.32 on a CPU, under TRL 1.16.0 (tests/systems/trl_vllm)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.sync_watch import SyncWatch
from rlstep_hooks.systems.vllm_engine.layout import places_in
from rlstep_hooks.systems.vllm_engine.prefix_cache import prefix_cache_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.session.recorder import Recorder


class ColocatedEngine:
    """Follows the syncs of one engine.

    Args:
        llm: vLLM's `LLM`.
        recorder: Takes the events.
        policy: Gives the policy's module, unwrapped.

    Raises:
        AttributeError: Its model is in another process.
    """

    def __init__(self, llm: Any, recorder: Recorder, policy: Callable[[], Any]) -> None:
        # The way that TRL takes to the model (vllm_generation.py 1.16.0:511). It ends where the engine has a process of its own.
        self._runner = llm.llm_engine.model_executor.driver_worker.model_runner
        self._llm = llm
        self._model = self._runner.model
        self._loading = False
        self._woken = False
        self.hands_over = False
        """Whether a tensor that arrives was not seen before, when the trainer handed it over."""
        ranks = int(getattr(llm.llm_engine.vllm_config.parallel_config, "tensor_parallel_size", 1))
        self.sync = SyncWatch(recorder, policy, "the engine", places_in(self._model, ranks))
        self._recorder = recorder
        self._keys = prefix_cache_of(llm.llm_engine.vllm_config, self._runner, "the engine")

    def attach(self, hooks: Hooks) -> None:
        """Place the hooks on this engine's objects."""
        # How tensors get into the model (model_executor/models/*.py): all of a sync, or one tensor a call.
        hooks.wrap(self._model, "load_weights", before=self._loads, topics=("delivery",))
        # llm.py: sleeping, an engine gives up its weights or keeps them elsewhere; the first step of its model shows what came back.
        hooks.wrap(self._llm, "wake_up", after=self._wakes, topics=("delivery",))
        hooks.wrap(self._runner, "execute_model", before=self._steps, topics=("delivery",))
        if self._keys is not None:
            # v1/worker/gpu_model_runner.py: the same step, with the requests that enter it and the blocks that they find filled.
            hooks.wrap(self._runner, "execute_model", before=self._look_at_keys, topics=("prefix_cache",))

    def begin(self) -> None:
        """The trainer begins a sync."""
        self._loading = True
        self.sync.begin()

    def end(self, version: int) -> None:
        """The trainer has ended a sync of this version."""
        self._loading, self._woken = False, False
        self.sync.end(version)
        if self._keys is not None:
            self._keys.weights_changed(self.sync.number)

    def generated(self) -> None:
        """Samples are there."""

    def finish(self) -> None:
        """Training is over: what is still on the device may be waited for."""
        self.sync.collect(wait=True)

    def _loads(self, call: Call) -> None:
        weights = call.argument("weights", 0)
        if self._loading and weights is not None:
            see = (self.sync.handed_over, self.sync.arrives) if self.hands_over else (self.sync.arrives,)
            call.replace_argument("weights", 0, self.sync.through(weights, *see))

    def _wakes(self, call: Call) -> None:
        self._woken = True

    def _steps(self, call: Call) -> None:
        if self._woken:
            self._woken = False
            self.sync.woken()

    def _look_at_keys(self, call: Call) -> None:
        assert self._keys is not None  # the hook is placed only then
        event = self._keys.step(call.argument("scheduler_output", 0), self._recorder.now())
        if event is not None:
            self._recorder.emit(event)
