"""The releases of Stable-Baselines3 that can be audited."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import msgspec
from packaging.version import Version

FIRST = Version("2.7")
"""First supported release."""
FIRST_UNSUPPORTED = Version("2.10")
"""First release after those whose training code was read and compared; 2.9.2 was trained for real (tests/systems/classic)."""
SUPPORTED = "2.7 to 2.9"
"""The supported releases, in words."""


class Sb3Release(msgspec.Struct, frozen=True):
    """One release of Stable-Baselines3."""

    sb3: str

    @property
    def supported(self) -> bool:
        """Whether the training code of the release was read."""
        return FIRST <= Version(Version(self.sb3).base_version) < FIRST_UNSUPPORTED


def installed_release() -> Sb3Release | None:
    """What is installed here; None without Stable-Baselines3. Imports nothing of it."""
    try:
        return Sb3Release(version("stable-baselines3"))
    except PackageNotFoundError:
        return None
