"""A framework's refusal of a configuration, and the plan that the sizes of a refused configuration give."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class PlanError(ValueError):
    """A configuration that its framework refuses or fails on.

    Attributes:
        message: The framework's own error message.
        when: When the user would see it, for example "after the first rollout".
        fix: The smallest change that helps, with the nearest working values.
        source: Where the check was found.
    """

    def __init__(self, message: str, *, when: str, fix: str, source: str) -> None:
        super().__init__(f"{message} ({when}); {fix}")
        self.message = message
        self.when = when
        self.fix = fix
        self.source = source


_kept: ContextVar[list[PlanError] | None] = ContextVar("kept", default=None)


def refuse(message: str, *, when: str, fix: str, source: str) -> None:
    """Refuse a configuration whose numbers can be computed although a condition does not hold.

    Raises:
        PlanError: Always, except within `refusals_kept`. The arguments are those of PlanError.
    """
    refusal = PlanError(message, when=when, fix=fix, source=source)
    kept = _kept.get()
    if kept is None:
        raise refusal
    kept.append(refusal)


@contextmanager
def refusals_kept() -> Iterator[list[PlanError]]:
    """A context in which `refuse` keeps the refusal and goes on."""
    kept: list[PlanError] = []
    token = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(token)
