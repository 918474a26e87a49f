"""Environment variables that carry an audit from process to process."""

from __future__ import annotations

PARENT = "RLSTEP_PARENT"
"""Set by `rlstep run` for the processes whose report it prints, so that they do not print it too."""

OUTER_TEST = "RLSTEP_OUTER_TEST"
"""Set with it: the test of pytest that was running already, which no test of the audited command is."""
