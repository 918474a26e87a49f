"""Hooks on the import of frameworks, for processes that do not know this package.

The index of systems says what is attached at which import. wrapt calls a hook when the named module has been imported, and imports the
hook itself only then. This module is loaded by every Python process of an audited command, so it imports next to nothing.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import wrapt

_INDEX = Path(__file__).parents[1] / "engine" / "index.json"


def on_import() -> dict[str, str]:
    """Module of a framework -> what is called with it once it is imported, "module:function". `System.on_import` says so."""
    entries = json.loads(_INDEX.read_bytes())
    return {module: hook for entry in entries for module, hook in entry.get("on_import", {}).items()}


@cache
def register() -> None:
    """Register all hooks of this process, once."""
    for module, hook in on_import().items():
        wrapt.register_post_import_hook(hook, module)
