"""The one pipeline from numbers on a device to the fields of events: the name of a column is the name of the field.

What is more than that is declared here: sums and what they are divided by, what counts only where something was looked at, and
names of what is beyond rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import torch

from rlstep_hooks.observe.deferred import DeferredValues, finite
from rlstep_hooks.observe.losses import FITS
from rlstep_hooks.observe.naming import name_of
from rlstep_hooks.record.events import Measured, MicroBatchValues, RolloutValues, UpdateValues
from rlstep_hooks.record.values import Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

Values = type[MicroBatchValues] | type[RolloutValues] | type[UpdateValues]

Fields = dict[Values, dict[tuple[Role, int], dict[str, Any]]]
"""A kind of values -> role and index of each -> its fields."""

MEANS = {
    "sum_abs_log_ratio": ("mean_abs_log_ratio", "tokens"),
    "sum_log_ratio_outside": ("log_ratio_outside", "tokens"),
    "sum_abs_log_prob": ("mean_abs_log_prob", "tokens"),
    "sum_clipped": ("clipped", "tokens"),
    "sum_entropy": ("entropy", "tokens"),
    "sum_reference_kl": ("reference_kl", "tokens"),
    "sum_reference_gap": ("reference_gap", "tokens"),
    "sum_sampler_gap": ("sampler_gap_mean", "tokens"),
    "sum_sampler_gap_outside": ("sampler_gap_outside", "tokens"),
    "sum_sampling_gap": ("sampling_gap", "sampling_known"),
    "sum_sampling_outside": ("sampling_outside", "sampling_known"),
}
"""A column with a sum: the field that is the mean, and the column that it is divided by."""

SEEN = {
    "max_abs_log_ratio": "tokens",
    "log_ratio_99": "tokens",
    "max_abs_log_prob": "tokens",
    "unsure": "tokens",
    "max_sampling_gap": "sampling_known",
    "sampling_gap_99": "sampling_known",
    "prompts_intact": "prompts_compared",
    "reference_intact": "reference_compared",
    "weights_intact": "weights_compared",
}
"""Fields that say something only where this column is not 0."""

NAMED = {
    "loss_like": ("loss_gap", FITS),
    "advantages_fit": ("advantages_off", 1.0),
    "weights_like": ("weights_off", 1.0),
}
"""A field that names a difference, by a function which may wait for the device: it is called where this number is beyond rounding."""

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

_BESIDE_FIELDS = {*MEANS, *(counted for _, counted in MEANS.values()), *SEEN.values(), "learning", "undecided"}
"""Columns that are no field themselves, and are what fields are made of."""


class Meaning(Protocol):
    """What the numbers of a vector mean."""

    @property
    def of(self) -> Values:
        """The class of values whose fields the numbers are."""

    def values(self, numbers: list[float]) -> dict[int, dict[str, Any]]:
        """The fields, by the index of the rollout, micro-batch or update."""


class Columns(msgspec.Struct, frozen=True):
    """A vector of columns one after the other, each with a number for each index.

    Raises:
        ValueError: A column is no field of these values, nor what a field is made of: its numbers would be lost without a word.
    """

    of: Values
    indices: tuple[int, ...]
    names: tuple[str, ...]
    """Fields of the values, sums of `MEANS`, and what these and `SEEN` ask for."""
    known: tuple[dict[str, Any], ...] = ()
    """What the host knows of each index, by fields; functions for those of `NAMED`."""
    padded: bool = False
    """Whether a micro-batch without a token has numbers, which are 0."""

    @property
    def own(self) -> frozenset[str]:
        """Columns that a subclass makes fields of by itself."""
        return frozenset()

    def __post_init__(self) -> None:
        """Look at the names."""
        unknown = {*self.names} - _CONVERSIONS[self.of].keys() - _BESIDE_FIELDS - self.own
        if unknown:
            raise ValueError(f"{', '.join(sorted(unknown))}: no field of {self.of.__name__}")

    def values(self, numbers: list[float]) -> dict[int, dict[str, Any]]:
        """The columns by field, each number converted as the field's type says."""
        count = len(self.indices)
        return {
            index: self.fields(place, dict(zip(self.names, numbers[place::count], strict=True)))
            for place, index in enumerate(self.indices)
        }

    def fields(self, place: int, of: dict[str, float]) -> dict[str, Any]:
        """The fields of one index from its numbers."""
        convert = _CONVERSIONS[self.of]
        fields: dict[str, Any] = {}
        for name, number in of.items():
            field, counted = MEANS.get(name, (name, SEEN.get(name, "")))
            count = of.get(counted, 1.0) or float(self.padded and counted == "tokens")
            if field in convert and count:
                fields[field] = convert[field](number / count if name in MEANS else number)
        if "learning" in of:
            fields["learns"] = "yes" if of["learning"] else "unknown" if of["undecided"] else "no"
        for field, value in self.known[place].items() if self.known else ():
            if callable(value):
                given, most = NAMED[field]
                fields[field] = name_of(value) if (fields.get(given) or 0.0) > most else ""
            else:
                fields[field] = value
        return fields


class Numbers:
    """Takes numbers to the record without making the host wait for the device."""

    def __init__(self) -> None:
        self._fetched: DeferredValues[tuple[Role, Meaning]] = DeferredValues()
        self._held: dict[int, tuple[Role, dict[str, Tensor]]] = {}
        """Micro-batches whose numbers wait: some come with the backward."""
        self._known: dict[int, dict[str, Any]] = {}

    def add(self, meaning: Meaning, numbers: Tensor, role: Role = "policy") -> None:
        """Keep one float32 vector until it is ready."""
        self._fetched.add((role, meaning), numbers)

    @property
    def held(self) -> int:
        """Micro-batches that wait."""
        return len(self._held)

    def see(self, index: int, columns: dict[str, Tensor], role: Role = "policy") -> None:
        """Add numbers of one micro-batch, each a tensor of one on the same device."""
        if columns:
            self._held.setdefault(index, (role, {}))[1].update(columns)

    def see_later(self, index: int, columns: dict[str, Tensor]) -> None:
        """Add numbers that the backward of a micro-batch brought, where the micro-batch has numbers already."""
        if index in self._held:
            self._held[index][1].update(columns)

    def know(self, index: int, **fields: Any) -> None:
        """Add what the host knows of one micro-batch, to go with its numbers."""
        self._known.setdefault(index, {}).update(fields)

    def complete(self) -> None:
        """Nothing more is added to the micro-batches that wait: those with numbers of one kind become one vector."""
        kinds: dict[Any, list[int]] = {}
        for index, (role, columns) in self._held.items():
            kinds.setdefault((role, next(iter(columns.values())).device, *columns), []).append(index)
        for (role, _, *names), indices in kinds.items():
            # torch stacks numbers of several dtypes as the widest of them.
            numbers = [self._held[index][1][name].detach().reshape(()) for name in names for index in indices]
            known = tuple(self._known.get(index, {}) for index in indices)
            self.add(Columns(MicroBatchValues, tuple(indices), tuple(names), known), torch.stack(numbers).float(), role)
        self._held, self._known = {}, {}

    def send(self) -> None:
        """Start fetching everything added so far."""
        self.complete()
        self._fetched.send()

    def arrived(self, *, wait: bool = False) -> Fields:
        """The fields that have arrived.

        Args:
            wait: Wait for the device; only once training is over.
        """
        found: Fields = {of: {} for of in _REQUIRED}
        for (role, meaning), numbers in self._fetched.ready(wait=wait):
            for index, fields in meaning.values(numbers).items():
                found[meaning.of].setdefault((role, index), {}).update(fields)
        return found

    def measured(self, now: Callable[[], float], *, wait: bool = False) -> Measured | None:
        """What has arrived, as an event; None where nothing has.

        Args:
            now: Gives the event's time.
            wait: Wait for the device; only once training is over.
        """
        return measured(self.arrived(wait=wait), now)


def measured(found: Fields, now: Callable[[], float]) -> Measured | None:
    """An event with these fields; None without any. Micro-batches stand in their order, those of the policy first."""
    if not any(found.values()):
        return None
    microbatches = sorted(found[MicroBatchValues].items(), key=lambda of: (of[0][0] != "policy", of[0][1]))
    required, least = _REQUIRED[MicroBatchValues], _REQUIRED[UpdateValues]
    return Measured(
        at=now(),
        rollouts=tuple(RolloutValues(index=index, **fields) for (_, index), fields in found[RolloutValues].items()),
        microbatches=tuple(
            MicroBatchValues(index=index, role=role, **(required | fields)) for (role, index), fields in microbatches
        ),
        updates=tuple(
            UpdateValues(index=index, role=role, **(least | fields))
            for (role, index), fields in found[UpdateValues].items()
        ),
    )
