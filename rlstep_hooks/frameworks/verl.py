"""The name of release 0.1 for `VERL_USE_EXTERNAL_MODULES`; today it is `rlstep_hooks.verl`."""

from __future__ import annotations

import os as _os

# verl itself imports this module, under this name, to ask for an audit; every other import attaches nothing.
if __name__ in _os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(","):
    from rlstep_hooks.systems.verl.observe.plugin import activate

    activate()
