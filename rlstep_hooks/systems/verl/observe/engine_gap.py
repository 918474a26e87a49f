"""How far the log-probs of the rollout engine, or of the reference, are from those of the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.record.events import RolloutValues
from rlstep_hooks.systems.verl.observe.samples import rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


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


def mean_gap(own: Sequence[Tensor], others: Sequence[Tensor], masks: Sequence[Tensor]) -> float | None:
    """Mean |own - others| of log-probs over the tokens that count; None where there are none. Rows are without padding."""
    rows = zip(own, others, masks, strict=True)
    gaps = torch.cat([(mine.float() - theirs.float()).abs()[mask.bool()] for mine, theirs, mask in rows])
    return float(gaps.mean()) if gaps.numel() else None
