"""Which releases of TRL have the PPOTrainer that was read and trained for real."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

if TYPE_CHECKING:
    from rlstep_hooks.systems.trl.releases import TrlRelease

FIRST_UNSUPPORTED = Version("0.25")
"""First release after them; the first one is that of all of TRL (`rlstep_hooks.systems.trl.releases`)."""


def refusal(release: TrlRelease) -> str:
    """Why PPOTrainer is not supported in a release; empty where it is."""
    supported = release.supported and Version(release.trl) < FIRST_UNSUPPORTED
    return "" if supported else f"PPOTrainer of TRL {release.trl} is not supported (0.16 to 0.24 are)"
