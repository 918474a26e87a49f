"""How far the rollout engine's log-probs are from those of the trainer."""

from __future__ import annotations

from typing import Any

import torch

from rlstep_hooks.record.events import RolloutValues
from rlstep_hooks.systems.verl.observe.samples import rows_of


def sampler_gap(number: int, own: list[Any] | None, engine: list[Any] | None, data: Any) -> RolloutValues:
    """How far the engine's log-probs of the sampled tokens are from the trainer's, over real tokens."""
    masks = rows_of(data, "response_mask")
    if own is None or engine is None or masks is None:
        return RolloutValues(index=number)
    pairs = [(theirs[: len(mine)], mask[: len(mine)]) for mine, theirs, mask in zip(own, engine, masks, strict=True)]
    theirs, mask = (torch.cat(rows) for rows in zip(*pairs, strict=True))
    gaps = (torch.cat(own).float() - theirs.float()).abs()[mask.bool()]
    if not gaps.numel():
        return RolloutValues(index=number)
    return RolloutValues(index=number, sampler_gap_mean=float(gaps.mean()), sampler_gap_max=float(gaps.max()))
