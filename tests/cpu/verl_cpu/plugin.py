"""Installs everything at import. Each part waits for the module of verl that it concerns."""

from __future__ import annotations

from verl_cpu import offload, platform, process_group, rollout_registry, value_head, vllm_weights

platform.install()
process_group.install()
offload.install()
value_head.install()
rollout_registry.install()
vllm_weights.install()
