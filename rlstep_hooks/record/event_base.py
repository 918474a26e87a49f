"""What all events have in common."""

from __future__ import annotations

from typing import Literal

import msgspec

FORMAT_VERSION = 1
"""Increased when a reader of older files could misunderstand newer ones."""

Purpose = Literal["training", "evaluation"]
"""What a rollout is for."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field="event"):
    """The field that every event has."""

    at: float = 0.0
    """Seconds since this process began recording."""
