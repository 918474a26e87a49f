"""The name for `RAY_RUNTIME_ENV_HOOK`: Ray calls `runtime_env_hook` in the driver of an OpenRLHF run."""

from rlstep_hooks.systems.openrlhf.observe.ray_hooks import runtime_env_hook

__all__ = ["runtime_env_hook"]
