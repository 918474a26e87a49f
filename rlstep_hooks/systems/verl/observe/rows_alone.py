"""Which rows of a trainer process are scored again alone, call by call of verl's controller, and what was found of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.scored_rows import REFERENCE_TOPIC, TOPIC, ScoredRows, fields_of_reference
from rlstep_hooks.systems.verl.observe import scored_alone, values_alone
from rlstep_hooks.systems.verl.observe.engines import role_of

if TYPE_CHECKING:
    from rlstep_hooks.observe.guard import GapRecorder


class RowsAlone:
    """Old log-probs, the reference's, values, and what is trained.

    Args:
        recorder: Is told what cannot be scored.
    """

    def __init__(self, recorder: GapRecorder) -> None:
        self._guard = Guard(recorder, (TOPIC,))
        self._reference_guard = Guard(recorder, (REFERENCE_TOPIC,))
        self._old = ScoredRows(recorder)
        self._reference = ScoredRows(recorder, REFERENCE_TOPIC)
        self._values = ScoredRows(recorder)
        self._trained = scored_alone.TrainedAlone(recorder)
        self._rows: dict[str, ScoredRows | scored_alone.TrainedAlone] = {
            "refresh": self._old,
            "reference": self._reference,
            "values": self._values,
            "policy_updates": self._trained,
        }
        """What looks at the rows of each phase."""
        self.temperature: float | None = None
        """The temperature that is configured; None where it is not known, and what comes with the rows is believed."""
        self._of_values: dict[str, Any] = {}
        """Fields about the rows whose values were computed again, until a micro-batch is trained on them."""

    def begin(self, name: str) -> None:
        """A call of the controller begins, by the name of its phase, whose rows are looked at."""
        with self._reference_guard if name == "reference" else self._guard:
            if name in self._rows:
                self._rows[name].begin()

    def end(self, name: str) -> dict[str, Any]:
        """The call has done its part.

        Returns:
            Fields of `RolloutValues` about old log-probs or those of the reference.
        """
        found: dict[str, Any] = {}
        with self._reference_guard if name == "reference" else self._guard:
            if name in self._rows:
                found = self._rows[name].end() or {}
        return fields_of_reference(found) if name == "reference" else found

    def computed(self, engine: Any, data: Any, result: Any) -> None:
        """A forward was made that no backward follows.

        Args:
            engine: verl's.
            data: The micro-batch, on the CPU.
            result: What the forward returned, on the device.
        """
        if self._reference.open:
            with self._reference_guard:
                scored_alone.look(self._reference, engine, data, result, self.temperature, reference=True)
        elif self._old.open and role_of(engine) == "policy":
            with self._guard:
                scored_alone.look(self._old, engine, data, result, self.temperature)
        elif self._values.open and role_of(engine) == "critic":
            with self._guard:
                self._of_values |= values_alone.look(self._values, engine, data, result)

    def before_training(self, engine: Any, data: Any) -> None:
        """A forward of the policy comes next that a backward follows."""
        with self._guard:
            self._trained.before(engine, data, self.temperature)

    def after_training(self, engine: Any, data: Any, output: Any) -> dict[str, Any]:
        """The forward of a micro-batch that is trained is done.

        Args:
            engine: verl's.
            data: The micro-batch, on the CPU.
            output: The model's, detached.

        Returns:
            Fields of `MicroBatchValues`; none where no row was scored.
        """
        found: dict[str, Any] = {}
        with self._guard:
            found |= self._trained.after(engine, data, output, self.temperature)
        return found

    def take_values(self) -> dict[str, Any]:
        """Fields of `MicroBatchValues` about the values of the rollout that is trained, each once."""
        found, self._of_values = self._of_values, {}
        return found
