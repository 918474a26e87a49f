"""Releases of ms-swift, and what differs between them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

PACKAGE = "ms-swift"

FIRST, FIRST_UNSUPPORTED = (4, 4), (4, 7)
"""Releases whose runs are observed: from 4.4 on a rollout is a list of micro-batches with a GRPOBatch each. 4.4.0, 4.5.3 and 4.6.0 were
read (swift/rlhf_trainers/grpo_trainer.py, rollout_mixin.py); 4.6.0 was trained for real (tests/systems/swift)."""

COMPUTED_SINCE = (3, 11)
"""The first release that computes old log-probs with every rollout (`_prepare_batch_inputs`; 3.11.3, 3.12.6, 4.0.0 to 4.6.0).
Before, only if `old_policy()` says so: several passes, or an accumulation that is not a multiple of the generation (3.9.0,
3.10.3)."""


def installed_swift() -> str | None:
    """The installed release of ms-swift, or None."""
    try:
        return installed(PACKAGE)
    except PackageNotFoundError:
        return None
