"""Loaded by every Python process of the server, before its own code."""

from verl_cpu import vllm_weights
from vllm_server import gloo

vllm_weights.install()
gloo.install()
