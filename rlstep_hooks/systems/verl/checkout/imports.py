"""Modules of a copy of verl that its trainer imports and that are not in it: a clone lacks what a `.gitignore` leaves out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import Line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.launch.checkout import Checkout, Source

_IMPORTED = re.compile(r"^from (?P<package>\w+)\.(?P<module>[\w.]+) import ", re.MULTILINE)


def absent_modules(checkout: Checkout, source: Source) -> Iterator[Line]:
    """What the trainer imports of its own copy in any run, and what that does not have: no run of it starts.

    Args:
        checkout: The copy. One without `__init__.py` is laid over the package that is installed, and need not be whole.
        source: The trainer's file.
    """
    if not (checkout.package / "__init__.py").is_file():
        return
    for found in _IMPORTED.finditer(source.text):
        path = checkout.package / found["module"].replace(".", "/")
        if found["package"] == checkout.package.name and not path.is_dir() and not path.with_suffix(".py").is_file():
            says = f"{found['package']}.{found['module']}, which the trainer imports, is not here"
            yield Line(says, source.at(source.text.count("\n", 0, found.start()) + 1))
