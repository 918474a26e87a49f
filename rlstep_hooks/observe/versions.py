"""Releases of the packages in a run, for its record."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from rlstep_hooks.version import __version__


def versions_of(*packages: str) -> dict[str, str]:
    """Releases of Python, this package and the named packages; packages that are not installed are left out."""
    found = {"python": platform.python_version(), "rlstep-hooks": __version__}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
