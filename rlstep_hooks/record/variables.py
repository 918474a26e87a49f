"""Environment variables that carry an audit from process to process."""

from __future__ import annotations

PARENT = "RLSTEP_PARENT"
"""Set by `rlstep run` for the processes whose report it prints, so that they do not print it too."""
