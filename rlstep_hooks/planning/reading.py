"""What a system makes of a launch: the Schedule with its formulas, notes and facts."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rlstep_hooks.planning.schedule import Schedule

NoteKind = Literal[
    "drops", "pads", "carries", "shrinks", "grows", "ignores", "assumes", "unit", "unobserved", "reference", "ratio"
]
"""A silent effect: samples are dropped, padded or carried, updates are fewer or more than the sizes suggest, a setting is ignored. Also
an assumption of the plan, a unit that is easily mistaken, or the fact that a run of this launch cannot be recorded."""


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happens silently, or that the plan assumes."""

    kind: NoteKind
    text: str
    """The note; in a declaration with {expressions}."""
    when: str = ""
    """The condition for the note; only a declaration has it."""


class Formula(msgspec.Struct, frozen=True, omit_defaults=True):
    """A formula as a person would write it, and its source."""

    quantity: str
    """Field of Schedule; with "critic." in front for the critic's."""
    text: str
    """An expression of `rlstep_hooks.planning.formula` on quantities and settings (by their first name)."""
    source: str
    """Document, or file and function, with the version."""
    where: str = ""
    """The condition under which this formula holds; only a declaration has it."""
    inputs: dict[str, Any] = {}
    """The values used, by name, None for an unknown value; only a plan has them."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A system's reading of a launch."""

    schedule: Schedule
    formulas: tuple[Formula, ...] = ()
    notes: tuple[Note, ...] = ()
    facts: dict[str, Any] = {}
    """What rules take from a launch besides its schedule: `lr_constant` (bool), `lr_warmup` (ticks), `save_every` and
    `eval_every` (in this framework's steps)."""


class Conversion(msgspec.Struct, frozen=True):
    """A schedule in one framework's settings."""

    arguments: tuple[str, ...]
    """The launch command, word by word."""
    lost: tuple[str, ...] = ()
    """Quantities that the framework's settings cannot express, each with the reason."""
