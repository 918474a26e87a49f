"""What the engine of a rehearsal holds after each sync, told to the run that it belongs to, as vLLM's workers tell it.

The engine's own label says which weights it was promised. A push that is not loaded has the label of one that is, so the engine looks
into its own model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.delivery import HeldWatch, same_names
from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.processes import introduce
from rlstep_hooks.observe.versions import versions_of
from rlstep_hooks.record.ledger import FolderLedger
from rlstep_hooks.record.logger import not_evaluated
from rlstep_hooks.record.writer import EventWriter
from rlstep_hooks.systems.vllm_engine.environment import place
from rlstep_hooks.systems.vllm_engine.records import engine_name, process_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.systems.vllm_engine.environment import Place


def held_by(model: Any) -> HeldWeights | None:
    """What follows the weights of an engine's model; None where no run is recorded."""
    try:
        where = place()
        return None if where is None or where.served else HeldWeights(model, where)
    except Exception as error:  # noqa: BLE001 - an engine that cannot be observed goes on
        not_evaluated(f"the engine's weights cannot be followed: {error!r}")
        return None


class HeldWeights:
    """The weights of one engine.

    Args:
        model: The engine's, whose tensors have the policy's names.
        where: Where the engine records.
    """

    def __init__(self, model: Any, where: Place) -> None:
        process = process_name()
        self.recorder = EventWriter(FolderLedger(Path(where.folder), where.run, process))
        """Where the engine records."""
        self.recorder.emit(introduce(where.run, process, versions_of("torch", "transformers")))
        self._watch = HeldWatch(engine_name(process), same_names(model))
        self._label: int | None = None

    @contained("delivery")
    def arrive(self, weights: Mapping[str, Any]) -> None:
        """A push arrives and is not loaded yet."""
        self._watch.begin()
        for name, tensor in weights.items():
            self._watch.see(name, tensor)

    @contained("delivery")
    def loaded(self, label: int | None) -> None:
        """The push is over.

        Args:
            label: What the engine's version is from now on.
        """
        self._label = label
        self._tell()

    @contained("delivery")
    def generates(self, label: int | None) -> None:
        """The engine draws tokens. With a label of which no push told, it was given a version and no weights.

        Args:
            label: The engine's version.
        """
        if label == self._label:
            return
        self._label = label
        self._watch.begin()
        self._tell()

    def _tell(self) -> None:
        self._watch.end()
        self.recorder.emit(*self._watch.ready(self.recorder.now(), wait=True))
