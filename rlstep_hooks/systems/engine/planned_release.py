"""The release that a launch is planned for, and the one that its checkout installs."""

from __future__ import annotations

import msgspec

from rlstep_hooks.planning.finding import Finding
from rlstep_hooks.planning.reading import Note


class Pinned(msgspec.Struct, frozen=True):
    """The release that a checkout installs."""

    version: str
    note: Note
    """The note that says where the checkout names the release."""


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """The release that a launch is planned for."""

    version: str
    notes: tuple[Note, ...] = ()
    findings: tuple[Finding, ...] = ()
    """The names of settings that the framework refuses, and those that only a fork can have."""
    refused: tuple[str, ...] = ()
    """Settings that the findings say are refused."""
    foreign: tuple[str, ...] = ()
    """Settings that no release has and that are no misspelling: the launch is one of a fork."""
