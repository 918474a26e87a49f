"""Weights of one trainer on their way into vLLM: gives WeightSync, and follows what is handed over and what the engine holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.record.events import WeightSync
from rlstep_hooks.systems.vllm_engine.colocated import ColocatedEngine
from rlstep_hooks.systems.vllm_engine.served import GatheredParts, served_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.systems.trl.observe.observation import Observation
    from rlstep_hooks.systems.vllm_engine.served import ServedEngine


class EngineSyncs:
    """Follows the weights of a trainer that samples with vLLM."""

    def __init__(self, observation: Observation) -> None:
        self._observation = observation
        self.recorder = observation.recorder
        """The recorder that events go to."""
        self._engine: ColocatedEngine | ServedEngine | GatheredParts | None = None
        """The engine, where it tells what it holds; what is gathered for one, where another process sends it."""
        self.version: int | None = None
        """The version of the weights that were last synced to the engine."""

    def attach(self, hooks: Hooks) -> None:
        """Place the hooks, before those that look at what the engine generated."""
        trainer = self._observation.trainer
        hooks.wrap(trainer, "_generate_and_score_completions", after=self._generated, topics=("delivery",))
        # Weights synced to vLLM: _move_model_to_vllm up to 0.27, an object's sync_weights from 0.28. Verified with the real engine on a
        # CPU in 1.16.0 (tests/systems/trl_vllm), with a stand-in for it in all releases.
        syncs = (getattr(trainer, "vllm_generation", None), "sync_weights"), (trainer, "_move_model_to_vllm")
        place = next(((owner, name) for owner, name in syncs if hasattr(owner, name)), None)
        if place is not None:
            hooks.wrap(*place, after=self._synced, topics=("sampler",))
            hooks.wrap(*place, around=self._delivers, topics=("delivery",))
        self._attach_engine(hooks)

    def finish(self) -> None:
        """Training is over: what is still on the device may be waited for."""
        if self._engine is not None:
            self._engine.finish()

    @contained("delivery")
    def _attach_engine(self, hooks: Hooks) -> None:
        """Follow the weights into vLLM: in this process (`vllm_mode="colocate"`), or in a server that tells what it holds."""
        trainer = self._observation.trainer
        generation = getattr(trainer, "vllm_generation", None)
        llm = getattr(trainer if generation is None else generation, "llm", None)
        unwrap = trainer.accelerator.unwrap_model
        if llm is not None:
            self._engine = own = ColocatedEngine(llm, self.recorder, lambda: unwrap(trainer.model))
            own.attach(hooks)
            # Earlier releases hand each tensor to the engine where they gather it.
            own.hands_over = not hasattr(generation, "_iter_named_params")
        elif getattr(generation, "mode", "") == "server":
            if hasattr(generation, "_iter_named_params"):
                # vllm_generation.py 1.16.0:500: the main process sends; the others gather with it, and drop what they get.
                if trainer.accelerator.is_main_process:
                    self._engine = served_engine(self.recorder, lambda: unwrap(trainer.model))
                else:
                    self._engine = GatheredParts(self.recorder, lambda: unwrap(trainer.model))
            elif trainer.accelerator.is_main_process:
                self.recorder.cannot("delivery", "what this release of TRL sends to a vLLM server is not observed")
        if self._engine is not None and hasattr(generation, "_iter_named_params"):
            # vllm_generation.py 1.16.0:435: all tensors of a sync under vLLM's names, each gathered and, with PEFT, merged.
            hooks.wrap(generation, "_iter_named_params", after=self._hands_over, topics=("delivery",))

    def _generated(self, call: Call) -> None:
        if self._engine is not None:
            self._engine.generated()

    def _hands_over(self, call: Call) -> None:
        if self._engine is not None:
            call.result = self._engine.sync.through(call.result, self._engine.sync.handed_over)

    def _synced(self, call: Call) -> None:
        version = self.version = self._observation.updates.version
        self.recorder.emit(WeightSync(at=self.recorder.now(), policy_version=version))

    def _delivers(self, call: Call) -> Iterator[None]:
        if self._engine is not None:
            self._engine.begin()
        yield
        if self._engine is not None:
            self._engine.end(self._observation.updates.version)
