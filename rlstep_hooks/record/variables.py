"""Environment variables that carry an audit from process to process."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PARENT = "RLSTEP_PARENT"
"""Set by `rlstep run` for the processes whose report it prints, so that they do not print it too."""

OUTER_TEST = "RLSTEP_OUTER_TEST"
"""The variable that names the test of pytest which was running already when the command was started; no test of the command is
that one."""


AS_RELEASE = "RLSTEP_AS_RELEASE"
"""Releases by whose formulas a checkout is judged that nobody read: "trl=1.16.0 verl=0.9.1". For nightly runs of a main branch."""


def judged_as(package: str) -> str:
    """The release by whose formulas the user wants an installed package judged; empty without such a wish, or if it is no number."""
    wished = re.search(rf"(?<!\S){package}=(\d+(?:\.\d+)*)(?!\S)", os.environ.get(AS_RELEASE, ""))
    return wished[1] if wished else ""


def running_test(variables: Mapping[str, str]) -> str:
    """The test of pytest that runs, by the variables of its process; empty outside of one."""
    # "tests/test_x.py::test_y[z] (call)": pytest 3.2 and later.
    return variables.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
