"""Installs at import what a rehearsal installs. Each part waits for the module of verl that it concerns."""

from __future__ import annotations

import wrapt

from rlstep_hooks.systems.verl.rehearse.cpu import HOOKS
from verl_cpu import vllm_weights

for module, place in HOOKS.items():
    wrapt.register_post_import_hook(place, module)
vllm_weights.install()
