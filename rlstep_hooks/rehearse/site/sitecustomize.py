"""Loaded by every Python process of a rehearsal, before its own code: makes way for the script, then lets the audit attach."""

import importlib.util
import sys
from pathlib import Path

# Only this file goes: the audit's own `sitecustomize` comes next on the path and looks for those behind it.
sys.path[:] = [entry for entry in sys.path if not entry or Path(entry) != Path(__file__).parent]

_spec = importlib.util.spec_from_file_location("rlstep_rehearse_guard", Path(__file__).parents[1] / "guard.py")
_guard = importlib.util.module_from_spec(_spec)  # type: ignore[arg-type]
_spec.loader.exec_module(_guard)  # type: ignore[union-attr]
_guard.begin("RLSTEP_REHEARSE")

try:
    from rlstep_hooks.rehearse.child import register
except ImportError:  # another environment of the command, which has no wrapt or not this package
    pass
else:
    register()

del sys.modules["sitecustomize"]
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401 - the one that this file stands before
