"""What a system makes of a launch: the Schedule with its formulas, notes and facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlstep_hooks.planning.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

NoteKind = Literal["drops", "pads", "carries", "shrinks", "grows", "ignores", "assumes", "unit"]
"""What a framework does silently: drops, pads or carries samples, makes fewer or more updates than the sizes suggest, ignores a
setting. Or what the plan takes for granted, and a unit that is easily mistaken."""


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happens without any message, or that the plan assumes."""

    kind: NoteKind
    text: str
    """In a declaration with {expressions}."""
    when: str = ""
    """In a declaration: the condition under which it is said."""


class Formula(msgspec.Struct, frozen=True, omit_defaults=True):
    """One formula as a person would write it, and where it was read."""

    quantity: str
    """Field of Schedule; "critic." in front for the critic's."""
    text: str
    """An expression of `rlstep_hooks.planning.formula`, of settings by their first name and quantities."""
    source: str
    """Document, or file and function, with its version."""
    where: str = ""
    """In a declaration: the condition under which it is the one that holds."""
    inputs: dict[str, Any] = {}
    """In a plan: the values that went in, by name; None for one that is not known."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader makes of a launch."""

    schedule: Schedule
    formulas: tuple[Formula, ...] = ()
    notes: tuple[Note, ...] = ()
    facts: dict[str, Any] = {}
    """For rules: `lr_constant` (bool), `lr_warmup` (ticks), `save_every` and `eval_every` (in this framework's steps)."""


class Conversion(msgspec.Struct, frozen=True):
    """A schedule in one framework's settings."""

    arguments: tuple[str, ...]
    """The launch command, word by word."""
    lost: tuple[str, ...] = ()
    """Quantities that cannot be said there, each with the reason."""


def nearest(value: int, valid: Callable[[int], bool], *, most: int = 1 << 22) -> str:
    """The valid values next to `value` on both sides, for a message: "64 or 128"."""
    below = next((v for v in range(value - 1, max(value - most, 0), -1) if valid(v)), None)
    above = next((v for v in range(value + 1, min(2 * value, value + most) + 65) if valid(v)), None)
    return " or ".join(str(v) for v in (below, above) if v is not None)


def multiples(value: int, of: int) -> str:
    """The multiples of `of` next to `value` on both sides."""
    below, above = value // of * of, -(-value // of) * of
    return " or ".join(str(v) for v in dict.fromkeys((below, above)) if v > 0)
