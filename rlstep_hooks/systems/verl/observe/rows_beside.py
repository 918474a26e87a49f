"""Rows of one micro-batch, scored alone beside the engine's own forward of it, where several trainers share the model out.

With FSDP a forward of one process alone would wait for the others, so rows go through the modules of the model while the forward of a
micro-batch uses them (`rlstep_hooks.observe.scored_beside`). It is the forward of verl's engine, of old log-probs, of the reference or
of training (workers/engine/fsdp/transformer_impl.py 0.9.1:1549).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.clean_entropies import entropy_fields
from rlstep_hooks.observe.clean_forward import fields_of
from rlstep_hooks.observe.forward_beside import (
    inside_of,
    is_flat,
    is_sharded_by_modules,
    told_by_others,
    why_not_beside,
)
from rlstep_hooks.observe.guard import Guard, contained
from rlstep_hooks.observe.scored_beside import PlacedRow, ScoringBeside
from rlstep_hooks.observe.scored_rows import OLD, REFERENCE_TOPIC, TOPIC
from rlstep_hooks.systems.verl.observe.ranks import ranks_of
from rlstep_hooks.systems.verl.observe.samples import completion_rows
from rlstep_hooks.systems.verl.observe.scored_alone import (
    noise_of,
    rows_and_lengths,
    temperature_of,
    tolerance_of,
    why_not_of_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.guard import GapRecorder
    from rlstep_hooks.observe.scored_rows import ScoredRows


def goes_beside(engine: Any) -> bool:
    """Whether rows of an engine can be scored beside its own forwards alone: FSDP shares its model out among several trainers."""
    sequences = int(getattr(engine, "ulysses_sequence_parallel_size", 1) or 1)
    shares = is_sharded_by_modules(engine.module) or is_flat(engine.module)
    return ranks_of(engine) > 1 and sequences == 1 and shares


class RowsBesideForwards:
    """Scores rows beside forwards of one kind.

    Args:
        scored: Says which micro-batches are looked at, and is told what cannot be scored.
        recorder: Is told what went wrong.
        topic: What that hides.
    """

    def __init__(self, scored: ScoredRows, recorder: GapRecorder, topic: str) -> None:
        self.recorder = recorder
        """Is told what went wrong."""
        self._scored = scored
        self._guard = Guard(recorder, (topic,))
        self._scoring: ScoringBeside | None = None
        """Has the rows of the latest forward that was looked at; None once they were compared."""

    @contextmanager
    def beside(self, engine: Any, data: Any, temperature: float | None, *, trains: bool = False) -> Iterator[None]:
        """Score rows beside the forward of a micro-batch that is made in this context, if it is one that is looked at.

        Args:
            engine: verl's, for which `goes_beside` is true.
            data: The micro-batch, on the CPU.
            temperature: The one that is configured; None where it is not known.
            trains: Whether a backward pass follows.
        """
        rows = self._begun(engine, data, temperature, trains)
        if self._scoring is None or not rows:
            yield
            return
        with self._scoring.beside(rows):
            yield

    @contained(TOPIC, REFERENCE_TOPIC)
    def _begun(self, engine: Any, data: Any, temperature: float | None, trains: bool) -> list[PlacedRow]:
        """The rows that go beside the forward; none where it is not looked at, or looking fails."""
        self._scoring = None
        if not self._scored.wants():
            return []
        why = why_not_of_rows(data) or why_not_beside(inside_of(engine.module)) or (noise_of(engine) if trains else "")
        if why:
            self._scored.cannot(why)
            return []
        self._scoring = ScoringBeside(inside_of(engine.module), temperature_of(data, temperature), self._guard)
        rows, _ = rows_and_lengths(engine, data)
        return [PlacedRow(place, rows[place]) for place, _ in self._scored.chosen(rows)]

    def compare(self, engine: Any, data: Any, output: Any, *, trained: bool = False) -> dict[str, Any]:
        """Compare what the forward gave with what rows gave beside it; waits for the device.

        Args:
            engine: verl's.
            data: The micro-batch, on the CPU.
            output: The model's, detached.
            trained: Whether it was a forward of training, whose entropies are compared too.

        Returns:
            Fields of `MicroBatchValues` or `RolloutValues`; none where no row was scored.
        """
        scoring, self._scoring = self._scoring, None
        scored = [] if scoring is None else scoring.take()
        if not scored:
            return {}
        _, lengths = rows_and_lengths(engine, data)
        tolerance = tolerance_of(engine)
        observed = completion_rows(output["log_probs"], lengths)
        of = "the loss" if trained else OLD
        found = [(of, each.gap_to(observed[each.place], tolerance)) for each in scored]
        if any(gap.mean > tolerance for _, gap in found) and (why := told_by_others(inside_of(engine.module), "verl.")):
            self._scored.cannot(why)
            return {}
        if not trained or output.get("entropy") is None:
            return fields_of(found)
        entropies = completion_rows(output["entropy"], lengths)
        far = (entropy_fields(each.entropies, entropies[each.place], tolerance) for each in scored)
        return fields_of(found) | max(far, key=lambda of: of["entropy_gap"])
