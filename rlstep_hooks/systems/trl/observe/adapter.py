"""What StepAuditCallback needs to know of a trainer: whether it can be audited, where it starts, and who observes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from rlstep_hooks.judge.timeline import Position
from rlstep_hooks.planning.schedule import Schedule
from rlstep_hooks.systems.engine.entry import named

if TYPE_CHECKING:
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.trl.releases import TrlRelease


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when training begins."""

    schedule: Schedule
    position: Position
    updates: int
    """Updates already made (a resumed run)."""
    facts: dict[str, Any]


class Observer(ABC):
    """Turns one trainer's calls into events, from the start of training to its end.

    Events of transformers that a trainer does not send never arrive; an observer that needs none of them overrides none.
    """

    @property
    def microbatches_in_epoch(self) -> int:
        """Micro-batches of this pass of the loader; 0 where they are not counted."""
        return 0

    @property
    @abstractmethod
    def updates_made(self) -> int:
        """Updates of the whole run, as the framework counts them."""

    @abstractmethod
    def attach(self, optimizer: Any) -> None:
        """Place all hooks."""

    @abstractmethod
    def detach(self) -> None:
        """Take all hooks off. Every attribute is then the object it was before."""

    @abstractmethod
    def finish(self) -> None:
        """Fetch what is still on the device; training is over, so waiting is allowed."""

    def logged(self, logs: dict[str, Any]) -> None:  # noqa: B027 - not every observer looks
        """The trainer logged."""

    def update_passed(self, updates: int) -> None:  # noqa: B027 - not every trainer evaluates by its own loop
        """What follows an update is over: the next one is made, or training ended.

        Args:
            updates: Updates made before.
        """

    def pass_begins(self) -> None:  # noqa: B027 - not every trainer trains by transformers' loop
        """A pass of the loader begins."""

    def update_ends(self) -> None:  # noqa: B027 - not every trainer trains by transformers' loop
        """An update was made, and the loop is told what follows it."""

    def pass_ends(self) -> None:  # noqa: B027 - not every trainer trains by transformers' loop
        """A pass of the loader ended, and the loop is told what follows it."""

    def evaluated(self) -> None:  # noqa: B027 - not every trainer sends it
        """An evaluation ended."""

    def epoch_ended(self, *, stopping: bool, run_over: bool) -> None:  # noqa: B027 - not every trainer sends it
        """A pass of the loader ended."""

    def step_expected(self) -> None:  # noqa: B027 - not every trainer sends it
        """The loop is about to step."""

    def step_passed(self) -> None:  # noqa: B027 - not every trainer sends it
        """The loop has been at its optimizer step."""


class TrainerAdapter(ABC):
    """One kind of trainer."""

    system: ClassVar[str]
    """The system that declares what is compared of it."""
    settings: ClassVar[tuple[str, ...]]
    """Settings that are compared between the construction of the trainer and the start of training."""
    stops: ClassVar[bool]
    """Whether the trainer ends training cleanly when a callback asks it to."""

    @abstractmethod
    def knows(self, trainer: Any) -> bool:
        """Whether a trainer is of this kind."""

    @abstractmethod
    def refusal(self, trainer: Any, release: TrlRelease) -> str:
        """Why this trainer is not audited in a release; empty where it is."""

    @abstractmethod
    def start(self, trainer: Any, release: TrlRelease) -> Start:
        """Read a trainer whose training begins.

        Raises:
            PlanError: The trainer fails on its sizes.
        """

    @abstractmethod
    def observer(
        self, trainer: Any, start: Start, release: TrlRelease, recorder: Recorder, *, interval: float
    ) -> Observer:
        """Make the observer of a trainer."""

    @abstractmethod
    def exits(self, trainer: Any) -> list[tuple[Any, str]]:
        """What the loop calls, as far as it may raise: objects and their methods. A context manager that one of them gives is one
        that a part of the loop runs in."""


_GRPO = "rlstep_hooks.systems.trl.observe.grpo:GrpoAdapter"
_ADAPTERS = {
    "swift.GRPOTrainer": "rlstep_hooks.systems.swift.observe.adapter:SwiftAdapter",
    "trl.GRPOTrainer": _GRPO,
    "trl.RLOOTrainer": _GRPO,
    "trl.AsyncGRPOTrainer": "rlstep_hooks.systems.trl_async.observe.adapter:AsyncGrpoAdapter",
    "trl.PPOTrainer": "rlstep_hooks.systems.trl_ppo.observe.adapter:PpoAdapter",
}
"""Package and class of a trainer -> its kind. A configuration may make a GrpoAdapter of any other."""


def adapter_of(trainer: Any) -> TrainerAdapter | None:
    """What kind of trainer this is; None for one that is not known."""
    names = (f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(trainer).__mro__)
    place = next((_ADAPTERS[name] for name in names if name in _ADAPTERS), _GRPO)
    adapter: TrainerAdapter = named(place)()
    return adapter if adapter.knows(trainer) else None
