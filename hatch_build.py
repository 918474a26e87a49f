"""The addresses in the package's metadata: those of `rlstep_hooks/version.py`, and none as long as there is none."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Addresses(MetadataHookInterface):
    """Sets `project.urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Take the repository's address, if it is known."""
        repository = runpy.run_path(str(Path(self.root, "rlstep_hooks", "version.py")))["REPOSITORY"]
        home = f"https://github.com/{repository}"
        metadata["urls"] = {"Repository": home, "Issues": f"{home}/issues"} if repository else {}
