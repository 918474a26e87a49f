"""Documented estimates of a KL divergence, by their names (joschu.net/blog/kl-approx.html)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.observe.losses import k3

if TYPE_CHECKING:
    from torch import Tensor


def divergence(estimator: str, difference: Tensor) -> Tensor:
    """The estimate of each token.

    Args:
        estimator: Its name.
        difference: Log-prob of the policy less that of the reference.

    Raises:
        ValueError: There is no such estimate.
    """
    if estimator == "k1":
        return difference
    if estimator == "abs":
        return difference.abs()
    if estimator == "k2":
        return difference.square() / 2
    if estimator == "k3":
        return k3(-difference)
    raise ValueError(f"no estimate {estimator!r}")
