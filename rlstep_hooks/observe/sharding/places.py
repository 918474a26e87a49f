"""Where one parameter's elements are: its local gradient before the ranks reduce it, and what this rank's optimizer steps on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class Place(NamedTuple):
    """One element in a tensor that the inner torch optimizer steps on this rank."""

    tensor: Any
    """The tensor, as it stands in the optimizer's `param_groups` and `state`."""
    at: int
    """Flat position in the tensor, or in its local part if it is a DTensor."""


class ParameterPlaces(Protocol):
    """The places of one trainable parameter on this rank."""

    name: str
    """The name of the parameter in the unwrapped model, which is the same on all ranks."""
    numel: int
    """Elements of the whole parameter, before any sharding."""

    def watch_local(self, see: Callable[[Tensor], None]) -> Callable[[], None]:
        """Call `see` in each backward pass with this rank's own gradient of that pass alone, whole, before any rank's is added.

        `see` contains its own errors, and must not keep the tensor.

        Returns:
            Takes the hook off.
        """

    def place_of(self, element: int) -> Place | None:
        """Where this rank's optimizer holds the element with this flat index of the whole parameter; None where another rank does."""


class Reduction(NamedTuple):
    """How the ranks' gradients of one model are added up, as far as it decides what a judge may expect."""

    places: list[ParameterPlaces]
    """The places of all trained parameters, in an order that is the same on all ranks."""
    reduced_in: str = ""
    """The dtype in which ranks add up, as torch names it; empty where it is that of the gradients."""
    approximate: bool = False
    """Whether a user's own code adds up, or a known one that rounds more than any dtype does."""
    now: Callable[[], tuple[str, bool]] | None = None
    """Gives `reduced_in` and `approximate` at any later time; None where they stay."""
    hidden: str = ""
    """Why gradients cannot be followed; empty where they can."""
