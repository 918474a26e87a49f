"""The `rlstep` command. Exit status: 0 pass, 1 findings, 2 the command could not be carried out."""

from __future__ import annotations

from rlstep_hooks.cli.app import main

__all__ = ["main"]
