"""The one pipeline from numbers on a device to the fields of events: the name of a column is the name of the field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from rlstep_hooks.observe.deferred import DeferredValues, finite
from rlstep_hooks.record.events import Measured, MicroBatchValues, RolloutValues, UpdateValues

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from rlstep_hooks.record.values import Role

Values = type[MicroBatchValues] | type[RolloutValues] | type[UpdateValues]

_REQUIRED: dict[Values, dict[str, Any]] = {
    MicroBatchValues: {"tokens": 0},
    RolloutValues: {},
    UpdateValues: {"probed": 0, "changed": 0, "with_gradient": 0, "visible": 0},
}
"""Fields that values have at least: around some updates no weight is read."""


def _count(number: float) -> int | None:
    """A count; a negative one was not seen."""
    return int(number) if number >= 0 else None


def _nothing(number: float) -> bool:
    """Whether nothing differs, from how much does."""
    return number == 0


_BY_TYPE: dict[Any, Callable[[float], Any]] = {int: _count, float: finite, bool: _nothing}
"""How a number becomes a field of this type."""


def _conversions(of: Values) -> dict[str, Callable[[float], Any]]:
    types = {field.name: getattr(field.type, "__args__", (field.type,))[0] for field in msgspec.structs.fields(of)}
    return {name: _BY_TYPE[kind] for name, kind in types.items() if kind in _BY_TYPE}


_CONVERSIONS = {of: _conversions(of) for of in _REQUIRED}


class Meaning(Protocol):
    """What the numbers of a vector mean."""

    @property
    def of(self) -> Values:
        """The values whose fields they are."""

    def values(self, numbers: list[float]) -> dict[int, dict[str, Any]]:
        """The fields, by the index of the rollout, micro-batch or update."""


class Columns(msgspec.Struct, frozen=True):
    """A vector of columns one after the other, each with a number for each index."""

    of: Values
    indices: tuple[int, ...]
    names: tuple[str, ...]
    """Fields of the values."""
    known: tuple[dict[str, Any], ...] = ()
    """Of each index what the host knows, by the same names."""

    def values(self, numbers: list[float]) -> dict[int, dict[str, Any]]:
        """The columns by field, each number converted as the field's type says."""
        count, convert = len(self.indices), _CONVERSIONS[self.of]
        fields: dict[int, dict[str, Any]] = {}
        for place, index in enumerate(self.indices):
            of = dict(zip(self.names, numbers[place::count], strict=True))
            fields[index] = {name: convert[name](number) for name, number in of.items()}
            if self.known:
                fields[index] |= self.known[place]
        return fields


class Numbers:
    """Takes numbers to the record without making the host wait for the device."""

    def __init__(self) -> None:
        self._fetched: DeferredValues[tuple[Role, Meaning]] = DeferredValues()

    def add(self, meaning: Meaning, numbers: Tensor, role: Role = "policy") -> None:
        """Keep one float32 vector until it is ready."""
        self._fetched.add((role, meaning), numbers)

    def send(self) -> None:
        """Start fetching everything added so far."""
        self._fetched.send()

    def measured(self, now: Callable[[], float], *, wait: bool = False) -> Measured | None:
        """What has arrived; None where nothing has.

        Args:
            now: Gives the event's time.
            wait: Wait for the device; only once training is over.
        """
        found = self.ready(wait=wait)
        if not any(found.values()):
            return None
        return Measured(
            at=now(),
            rollouts=tuple(found[RolloutValues]),
            microbatches=tuple(found[MicroBatchValues]),
            updates=tuple(found[UpdateValues]),
        )

    def ready(self, *, wait: bool = False) -> dict[Values, list[Any]]:
        """The values that have arrived, each with all of its fields; micro-batches of a role in their order."""
        found: dict[Values, dict[tuple[Role, int], dict[str, Any]]] = {of: {} for of in _REQUIRED}
        for (role, meaning), numbers in self._fetched.ready(wait=wait):
            for index, fields in meaning.values(numbers).items():
                found[meaning.of].setdefault((role, index), {}).update(fields)
        found[MicroBatchValues] = dict(sorted(found[MicroBatchValues].items(), key=lambda item: item[0][1]))
        return {
            of: [
                of(index=index, **({} if of is RolloutValues else {"role": role}) | _REQUIRED[of] | fields)
                for (role, index), fields in by_index.items()
            ]
            for of, by_index in found.items()
        }
