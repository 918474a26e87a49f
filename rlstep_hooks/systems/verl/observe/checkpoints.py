"""What engines and a loader of verl hold, which a checkpoint must hold and bring back, and whether it does."""

from __future__ import annotations

import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.checkpoints import State, note_saved, optimizer_step, restored, saved
from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.held_checksums import checksum_of_all, kept_of
from rlstep_hooks.observe.loaded_weights import weights_loaded
from rlstep_hooks.observe.saved_files import moments_in, read_file, weights_in
from rlstep_hooks.observe.saved_parts import SavedParts
from rlstep_hooks.record.events import LOADED, SAVED, FactsRead
from rlstep_hooks.session import ray_sink
from rlstep_hooks.systems.verl.observe.engines import role_of
from rlstep_hooks.systems.verl.observe.process import folder

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.observe.saved_files import Found
    from rlstep_hooks.observe.trainer_record import TrainerRecord
    from rlstep_hooks.record.values import Role


class Checkpoints:
    """The checkpoints of one trainer process. verl loads one before its first sync of weights.

    Args:
        record: The record of the process.
        process: The name of the process in its run.
    """

    def __init__(self, record: TrainerRecord, process: str) -> None:
        self._record = record
        self.recorder = record.writer
        """Where events go."""
        self._process = process
        self._engines: dict[Role, tuple[Any, State]] = {}
        """Engines that train, each with its state when it was built."""
        self._loaded_from: dict[Role, str] = {}
        self._loaded: dict[Role, Found] = {}
        """Whether a model had the weights of its files when its engine was built."""
        self._saved: dict[Role, SavedParts] = {role: SavedParts(record.writer, role) for role in SAVED}
        self._begun = False

    @contained("checkpoints")
    def built(self, role: Role, engine: Any) -> None:
        """An engine that trains is there."""
        self._engines[role] = engine, self._state(role, engine)
        self._see_loaded(role, engine)

    @contained("weights")
    def _see_loaded(self, role: Role, engine: Any) -> None:
        """An engine has loaded its model (transformer_impl.py 0.9.1:276)."""
        self._loaded[role] = weights_loaded(engine.module, Path(engine.model_config.local_path))

    def engine(self, role: Role) -> Any:
        """The engine that trains a role."""
        return self._engines[role][0]

    def loads(self, engine: Any, path: str | None) -> None:
        """A checkpoint was loaded."""
        self._loaded_from[role_of(engine)] = path or ""

    def saved(self, engine: Any, path: str | None) -> None:
        """A checkpoint was written."""
        role = role_of(engine)
        if path and not ray_sink.asked():
            note_saved(folder(), self._process, path, self._state(role, engine))
        if path:
            self._saved[role].tell(saved_parts(engine, path))

    @contained("checkpoints")
    def begins(self) -> None:
        """Weights go to the engine for the first time: what a resumed run holds by now, it trains on."""
        if self._begun:
            return
        self._begun = True
        facts: dict[str, Any] = {
            LOADED[role]: of for role, of in self._loaded.items() if not self._loaded_from.get(role)
        }
        for role, (engine, first) in self._engines.items():
            weights, manager = self._record.steps[role].weights, engine.checkpoint_manager
            facts[f"restored_{role}"] = restored(
                state_of(engine, weights),
                first,
                saved(folder(), self._process, self._loaded_from.get(role, "")),
                loads={name: getattr(manager, f"should_load_{name}") for name in ("model", "optimizer", "extra")},
                exact=weights.dtype == torch.float32,
            )
        self.recorder.emit(FactsRead(at=self.recorder.now(), facts=facts))

    def _state(self, role: Role, engine: Any) -> State:
        return state_of(engine, self._record.steps[role].weights)


def state_of(engine: Any, weights: Tensor) -> State:
    """The state of an engine. Waits for its device, which happens at the start and where a checkpoint is written anyway."""
    return State(
        checksum_of_weights(weights),
        optimizer_step(engine.optimizer),
        _tick(engine.lr_scheduler),
        checksum_of_all(engine.module.parameters()),
        checksum_of_all(kept_of(engine.optimizer)),
    )


def saved_parts(engine: Any, folder: str) -> dict[str, Found]:
    """What the files that this process has just written have of what it holds. FSDP1's flat parameters are not compared: their files
    have other tensors.

    Each process writes `model_world_size_N_rank_R.pt` and `optim_world_size_N_rank_R.pt`, with DTensors where the model has such
    (utils/checkpoint/fsdp_checkpoint_manager.py 0.9.1:283).

    Args:
        engine: An engine with FSDP.
        folder: The folder of the role's checkpoint.
    """
    manager = engine.checkpoint_manager
    # torch itself knows the classes of DTensors (torch 2.13 distributed/tensor/__init__.py).
    of_model, of_optimizer = (
        read_file(Path(folder, f"{kind}_world_size_{manager.world_size}_rank_{manager.rank}.pt"), nullcontext)
        for kind in ("model", "optim")
    )
    return {
        "weights": "unknown" if of_model is None else weights_in(of_model, engine.module),
        "moments": "unknown" if of_optimizer is None else moments_in(of_optimizer, engine.optimizer),
    }


def checksum_of_weights(weights: Tensor) -> int:
    """A checksum of weights on any device, bit for bit."""
    return zlib.crc32(weights.detach().float().cpu().contiguous().numpy().tobytes())


def _tick(scheduler: Any) -> int | None:
    tick = getattr(scheduler, "last_epoch", None)
    return tick if isinstance(tick, int) else None


def loader_position(loader: Any) -> int:
    """Batches that a `StatefulDataLoader` will go on after, in the pass that it was saved in; 0 where it begins anew.

    Both forms of its state, with and without worker processes, were read in torchdata 0.11.
    """
    state = getattr(loader, "next_iter_state", None)
    if not state:
        return 0
    if "_num_yielded" in state:
        return int(state["_num_yielded"])
    return int(state["_snapshot"]["_snapshot_step"]) + int(state["_steps_since_snapshot"])
