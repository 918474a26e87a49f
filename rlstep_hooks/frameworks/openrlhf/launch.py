"""The name of release 0.1 for `RAY_RUNTIME_ENV_HOOK`; today it is `rlstep_hooks.openrlhf.runtime_env_hook`."""

from rlstep_hooks.openrlhf import runtime_env_hook

__all__ = ["runtime_env_hook"]
