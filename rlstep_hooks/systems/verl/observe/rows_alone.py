"""Which rows of a trainer process are scored again alone, call by call of verl's controller, and what was found of them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.scored_rows import REFERENCE_TOPIC, TOPIC, ScoredRows, fields_of_reference
from rlstep_hooks.systems.verl.observe import scored_alone, values_alone
from rlstep_hooks.systems.verl.observe.engines import role_of
from rlstep_hooks.systems.verl.observe.rows_beside import RowsBesideForwards, goes_beside
from rlstep_hooks.systems.verl.observe.values_beside import ValuesBesideForwards

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rlstep_hooks.observe.guard import GapRecorder


class RowsAlone:
    """Old log-probs, the reference's, values, and what is trained.

    Args:
        recorder: Is told what cannot be scored.
    """

    def __init__(self, recorder: GapRecorder) -> None:
        self.recorder = recorder
        """Is told what cannot be scored."""
        self._old = ScoredRows(recorder)
        self._reference = ScoredRows(recorder, REFERENCE_TOPIC)
        self._values = ScoredRows(recorder)
        self._trained = scored_alone.TrainedAlone(recorder)
        self._rows: dict[str, ScoredRows | scored_alone.TrainedAlone] = {
            "refresh": self._old,
            "values": self._values,
            "policy_updates": self._trained,
        }
        """What looks at the rows of each phase but the reference's."""
        self.temperature: float | None = None
        """The temperature that is configured; None where it is not known, and what comes with the rows is believed."""
        self._beside_old = RowsBesideForwards(self._old, recorder, TOPIC)
        self._beside_reference = RowsBesideForwards(self._reference, recorder, REFERENCE_TOPIC)
        self._beside_training = RowsBesideForwards(self._trained.rows, recorder, TOPIC)
        """Where several trainers share a model out."""
        self._beside_values = ValuesBesideForwards(self._values, recorder)
        """Where several trainers share the critic out."""
        self._of_values: dict[str, Any] = {}
        """Fields about the rows whose values were computed again, until a micro-batch is trained on them."""

    def begin(self, name: str) -> None:
        """A call of the controller begins, by the name of its phase, whose rows are looked at."""
        if name == "reference":
            self._begin_reference()
        else:
            self._begin(name)

    @contained(REFERENCE_TOPIC)
    def _begin_reference(self) -> None:
        """The reference's log-probs are asked for."""
        self._reference.begin()

    @contained(TOPIC)
    def _begin(self, name: str) -> None:
        """Another call begins."""
        if name in self._rows:
            self._rows[name].begin()

    def end(self, name: str) -> dict[str, Any]:
        """The call has done its part.

        Returns:
            Fields of `RolloutValues` about old log-probs or those of the reference.
        """
        if name == "reference":
            return fields_of_reference(self._end_reference() or {})
        return self._end(name) or {}

    @contained(REFERENCE_TOPIC)
    def _end_reference(self) -> dict[str, Any] | None:
        """The reference's log-probs are there."""
        return self._reference.end()

    @contained(TOPIC)
    def _end(self, name: str) -> dict[str, Any] | None:
        """Another call has done its part."""
        return self._rows[name].end() if name in self._rows else None

    def beside(self, engine: Any, data: Any, *, trains: bool) -> AbstractContextManager[None]:
        """The context of the engine's forward of a micro-batch, beside which rows of it are scored where it shares its model out.

        Args:
            engine: verl's.
            data: The micro-batch, on the CPU.
            trains: Whether a backward pass follows.
        """
        if not goes_beside(engine):
            return nullcontext()
        if trains:
            policy = role_of(engine) == "policy"
            return (
                self._beside_training.beside(engine, data, self.temperature, trains=True) if policy else nullcontext()
            )
        if self._reference.open:
            return self._beside_reference.beside(engine, data, self.temperature)
        if self._old.open and role_of(engine) == "policy":
            return self._beside_old.beside(engine, data, self.temperature)
        if self._values.open and role_of(engine) == "critic":
            return self._beside_values.beside(engine, data)
        return nullcontext()

    def computed(self, engine: Any, data: Any, result: Any) -> None:
        """A forward was made that no backward follows.

        Args:
            engine: verl's.
            data: The micro-batch, on the CPU.
            result: What the forward returned, on the device.
        """
        if self._reference.open:
            self._score_reference(engine, data, result)
        elif self._old.open and role_of(engine) == "policy":
            self._score_old(engine, data, result)
        elif self._values.open and role_of(engine) == "critic":
            self._compute_values(engine, data, result)

    @contained(REFERENCE_TOPIC)
    def _score_reference(self, engine: Any, data: Any, result: Any) -> None:
        """The reference has scored a micro-batch: score rows of it again."""
        if not goes_beside(engine):
            scored_alone.look(self._reference, engine, data, result, self.temperature, reference=True)
        elif found := self._beside_reference.compare(engine, data, result[1]["model_output"]):
            self._reference.tell(found)

    @contained(TOPIC)
    def _score_old(self, engine: Any, data: Any, result: Any) -> None:
        """Old log-probs of a micro-batch are there: score rows of it again."""
        if not goes_beside(engine):
            scored_alone.look(self._old, engine, data, result, self.temperature)
        elif found := self._beside_old.compare(engine, data, result[1]["model_output"]):
            self._old.tell(found)

    @contained(TOPIC)
    def _compute_values(self, engine: Any, data: Any, result: Any) -> None:
        """Values of a micro-batch are there: compute those of rows of it again."""
        if not goes_beside(engine):
            self._of_values |= values_alone.look(self._values, engine, data, result)
        else:
            self._of_values |= self._beside_values.compare(engine, data, result[1]["model_output"])

    @contained(TOPIC)
    def before_training(self, engine: Any, data: Any) -> None:
        """A forward of the policy comes next that a backward follows."""
        if not goes_beside(engine):
            self._trained.before(engine, data, self.temperature)

    @contained(TOPIC)
    def after_training(self, engine: Any, data: Any, output: Any) -> dict[str, Any]:
        """The forward of a micro-batch that is trained is done.

        Args:
            engine: verl's.
            data: The micro-batch, on the CPU.
            output: The model's, detached.

        Returns:
            Fields of `MicroBatchValues`; none where no row was scored.
        """
        if goes_beside(engine):
            return self._beside_training.compare(engine, data, output, trained=True)
        return self._trained.after(engine, data, output, self.temperature)

    def take_values(self) -> dict[str, Any]:
        """Fields of `MicroBatchValues` about the values of the rollout that is trained, each once."""
        found, self._of_values = self._of_values, {}
        return found
