"""Loaded by every Python process of a launch, before its own code."""

from openrlhf_cpu.shims import install

install()
