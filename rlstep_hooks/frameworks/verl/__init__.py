"""verl: the trainers of `verl.trainer.main_ppo` (and of 0.8's `main_ppo_sync`), releases 0.6.1 to 0.9."""

from __future__ import annotations

import os as _os

# Imported by verl itself, under this name, to ask for an audit; every other import is for a plan and attaches nothing.
if __name__ in _os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(","):
    from rlstep_hooks.frameworks.verl import plugin as plugin
