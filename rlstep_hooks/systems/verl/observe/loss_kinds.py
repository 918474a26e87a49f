"""The losses of verl that are compared with their formulas: the policy's and the critic's, each from the numbers that have arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import torch

from rlstep_hooks.observe.deferred import finite
from rlstep_hooks.observe.microbatch_numbers import LossNumbers
from rlstep_hooks.systems.verl.observe import loss as of_policy
from rlstep_hooks.systems.verl.observe import value_loss as of_critic
from rlstep_hooks.systems.verl.observe.loss_meter import Arrived, LossKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

FITS = 32
"""Roundings within which a loss is the documented one, or one of those it is mistaken for."""


def _against(loss: float, documented: tuple[float, float], others: Iterable[tuple[str, float]]) -> LossNumbers:
    """A loss against its formula.

    Args:
        loss: What the trainer computed.
        documented: The loss of the formula, and one rounding of its terms.
        others: Losses that it is mistaken for, in words.
    """
    expected, rounding = documented[0], max(documented[1], torch.finfo(torch.float32).tiny)
    gap = abs(loss - expected) / rounding
    like = ""
    if gap > FITS:
        like = next((words for words, value in others if abs(loss - value) <= FITS * rounding), "")
    cancels = abs(expected) <= 100 * FITS * rounding
    return LossNumbers(ratio=None if cancels else finite(loss / expected), gap=finite(gap), like=like)


def _with_gradient(
    numbers: LossNumbers, arrived: Arrived, documented: Callable[[], tuple[Tensor, Tensor, float]]
) -> LossNumbers:
    """What was found of a loss, and of its gradient where its value is right.

    Args:
        numbers: Of the value.
        arrived: What the loss was computed from, with the gradient that arrived at the model's output.
        documented: Gives the gradient, where it is certain, and one rounding of it.
    """
    if arrived.gradient is None or (numbers.gap or 0.0) > FITS or arrived.gradient.shape != arrived.mask.shape:
        return numbers
    expected, certain, rounding = documented()
    distances = (arrived.gradient - expected).abs()[certain]
    if not distances.numel():
        return numbers
    gap = float(distances.max()) / max(rounding, torch.finfo(torch.float32).tiny)
    return msgspec.structs.replace(numbers, gradient_gap=finite(gap))


def _compare_policy(
    settings: of_policy.LossSettings, arrived: Arrived, loss: float, microbatches: int
) -> tuple[LossNumbers, float | None]:
    dtype = arrived.dtypes[0]
    of_entropy = arrived.dtypes[-1]
    fields, columns = arrived.fields, arrived.columns
    reference = arrived.given.get("ref_log_prob")
    given = of_policy.LossInputs(
        log_probs=columns[0],
        old=fields["old_log_probs"],
        advantages=fields["advantages"],
        mask=arrived.mask,
        reference=fields.get("ref_log_prob"),
        weights=fields.get("rollout_is_weights"),
        entropies=columns[1] if len(columns) > 1 else None,
        epsilons=of_policy.Epsilons(
            policy=_epsilon(dtype, arrived.given["old_log_probs"].dtype),
            kl=_epsilon(dtype, dtype if reference is None else reference.dtype),
            entropy=_epsilon(of_entropy, of_entropy),
        ),
        ranks=arrived.ranks,
        tokens=arrived.tokens,
        samples=arrived.samples,
    )
    others = of_policy.alternatives(settings, given, microbatches)
    numbers = _against(loss, of_policy.documented_loss(settings, given), others)
    numbers = _with_gradient(numbers, arrived, lambda: of_policy.documented_gradient(settings, given))
    return numbers, of_policy.clipped_fraction(settings, given)


def _compare_critic(
    settings: of_critic.ValueSettings, arrived: Arrived, loss: float, microbatches: int
) -> tuple[LossNumbers, float | None]:
    given = of_critic.ValueInputs(
        values=arrived.columns[0],
        old=arrived.fields["values"],
        returns=arrived.fields["returns"],
        mask=arrived.mask,
        epsilon=_epsilon(arrived.dtypes[0], arrived.given["returns"].dtype),
        ranks=arrived.ranks,
        tokens=arrived.tokens,
        samples=arrived.samples,
    )
    others = of_critic.alternatives(settings, given, microbatches)
    numbers = _against(loss, of_critic.documented_loss(settings, given), others)
    return _with_gradient(numbers, arrived, lambda: of_critic.documented_gradient(settings, given)), None


def _epsilon(one: torch.dtype, other: torch.dtype) -> float:
    return float(torch.finfo(torch.promote_types(one, other)).eps)


POLICY = LossKind(
    whose="the policy's",
    function="ppo_loss",
    fields=("old_log_probs", "advantages", "response_mask", "ref_log_prob", "rollout_is_weights"),
    outputs=("log_probs", "entropy"),
    read=of_policy.read_settings,
    compare=_compare_policy,
)

CRITIC = LossKind(
    whose="the critic's",
    function="value_loss",
    fields=("values", "returns", "response_mask"),
    outputs=("values",),
    read=of_critic.read_settings,
    compare=_compare_critic,
)
