"""The reward of the tiny runs: the share of digits in a response."""

from __future__ import annotations

from typing import Any

import torch


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
    """OpenRLHF's signature (utils/agent.py:286): whole texts and their prompts; one reward for each."""
    responses = [query[len(prompt) :] for query, prompt in zip(queries, prompts, strict=True)]
    rewards = torch.tensor([sum(c.isdigit() for c in text) / max(len(text), 1) for text in responses])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"digits": rewards}}
