"""The releases of OpenRLHF that are known; what differs between them is in `rlstep_hooks.systems.openrlhf.system`."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from packaging.version import Version

FIRST = Version("0.5")
"""First supported release."""
FIRST_UNSUPPORTED = Version("0.12")
"""First release after those that were read."""
SUPPORTED = "0.5 to 0.11"
"""The supported releases, in words."""


class OpenRLHFRelease(msgspec.Struct, frozen=True):
    """One release of OpenRLHF."""

    openrlhf: str

    @property
    def supported(self) -> bool:
        """Whether the source of this release was read."""
        return FIRST <= Version(Version(self.openrlhf).base_version) < FIRST_UNSUPPORTED

    def since(self, release: str) -> bool:
        """Whether this is the named release of OpenRLHF or a later one."""
        return Version(Version(self.openrlhf).base_version) >= Version(release)


@lru_cache(maxsize=1)
def installed_release() -> OpenRLHFRelease | None:
    """The release that is installed here, or None without OpenRLHF. Looked up once: reading metadata takes milliseconds."""
    from importlib.metadata import PackageNotFoundError  # 15 ms that a plan of a launch does not need
    from importlib.metadata import version as installed

    try:
        return OpenRLHFRelease(installed("openrlhf"))
    except PackageNotFoundError:
        return None
