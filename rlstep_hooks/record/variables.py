"""Variables of the environment that carry an audit from process to process."""

from __future__ import annotations

PARENT = "RLSTEP_PARENT"
"""Set in processes whose report is printed by `rlstep run`, so that none of them prints it too."""
