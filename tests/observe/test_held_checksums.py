"""Checksums of what a process holds of a model and of its optimizer."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from rlstep_hooks.observe.held_checksums import checksum_of_all, kept_of, stepped_by  # noqa: E402


def test_what_an_optimizer_keeps_of_tensors_that_stand_in_none_of_its_groups_counts() -> None:
    """As between two steps of ZeRO-3."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    whole = checksum_of_all(kept_of(optimizer))
    optimizer.param_groups[0]["params"] = []
    assert [tensor is weight for tensor in stepped_by(optimizer)] == [True]
    assert checksum_of_all(kept_of(optimizer)) == whole
    optimizer.state[weight]["exp_avg"].mul_(0.5)
    assert checksum_of_all(kept_of(optimizer)) != whole
