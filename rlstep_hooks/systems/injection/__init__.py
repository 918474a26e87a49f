"""How `rlstep run` reaches a program that does not know this package: a `sitecustomize` in the environment of its processes.

`environment` gives the variables; `site/sitecustomize.py` is what each Python process then loads; `hooks` attaches to the frameworks
that it imports. A process that imports none of them is left alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rlstep_hooks.record.variables import OUTER_TEST, PARENT, running_test

if TYPE_CHECKING:
    from collections.abc import Mapping

SITE = Path(__file__).parent / "site"
"""The folder with our `sitecustomize`."""


def environment(folder: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a command and all that it starts are audited.

    Args:
        folder: Where to record.
        inherited: The environment to start from.
    """
    paths = [str(SITE), *filter(None, inherited.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **inherited,
        "RLSTEP_DIR": str(folder.absolute()),
        PARENT: str(os.getpid()),
        OUTER_TEST: running_test(inherited),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
    }
