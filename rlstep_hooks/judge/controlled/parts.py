"""The numbers of a rollout that is trained in parts: those of its parts, put together so that no part hides what another shows."""

from __future__ import annotations

from typing import Any

import msgspec

from rlstep_hooks.record.events import RolloutValues

_TOGETHER = (
    ("clean_gap", ("max_clean_gap", "clean_gap_99", "clean_outside", "clean_of", "clean_like")),
    ("reference_clean_gap", ("reference_clean_max", "reference_clean_like")),
    ("slope_gap", ("slope_doubt", "slope_layer")),
)
"""A number that tells how far one row of a part is away, and the fields that belong to that row: they come from the part in which it is
the largest."""

_LARGEST = (
    *("max_abs_advantage", "sampler_gap_mean", "sampler_gap_max", "sampler_gap_99", "sampler_gap_outside"),
    *(
        "sampler_gap_tokens",
        "sampler_gap_fresh",
        "reference_changed",
        "reference_written",
        "reference_gap",
        "weights_off",
    ),
)
_COUNTED = ("reference_moved", "tokens_moved", "rewards_moved", "masks_wrong")
_FLAGS = ("reference_unscored", "reference_is_policy", "reference_shared")


def put_together(one: RolloutValues, other: RolloutValues) -> RolloutValues:
    """The numbers of two parts of one rollout, as a trainer of a controlled run measures them.

    What neither a size nor a count tells is that of the first part that has it.
    """
    first, second = msgspec.structs.asdict(one), msgspec.structs.asdict(other)
    found = {name: second[name] if value in (None, "") else value for name, value in first.items()}
    for name in _LARGEST:
        found[name] = _of_both(first[name], second[name], max)
    for name in _COUNTED:
        found[name] = _of_both(first[name], second[name], lambda a, b: a + b)
    for name in _FLAGS:
        found[name] = _of_both(first[name], second[name], lambda a, b: a or b)
    for leading, others in _TOGETHER:
        if first[leading] is not None and second[leading] is not None:
            farther = max(first, second, key=lambda of: _beyond_doubt(of, leading))
            found |= {name: farther[name] for name in (leading, *others)}
    return RolloutValues(**found)


def _beyond_doubt(values: dict[str, Any], name: str) -> float:
    """A distance, less what a slope leaves in doubt."""
    doubt = values["slope_doubt"] if name == "slope_gap" else None
    return float(values[name] - (doubt or 0.0))


def _of_both(one: Any, other: Any, both: Any) -> Any:
    """What both parts say together; what one says where the other says nothing."""
    if one is None or other is None:
        return other if one is None else one
    return both(one, other)
