"""Releases of the packages involved in a run, for its record."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version


def versions_of(*packages: str) -> dict[str, str]:
    """Releases of Python, this package and the named ones; those that are not installed are left out."""
    from rlstep_hooks import __version__

    found = {"python": platform.python_version(), "rlstep-hooks": __version__}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
