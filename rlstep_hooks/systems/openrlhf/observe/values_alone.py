"""Values of two rows of one micro-batch, computed again alone, beside those that OpenRLHF's critic or reward model gave.

B samples, L tokens. Both are the layers of a model and a head of one number (models/model.py 0.11.2, `_get_critic_model`). Layers and
head are called here by themselves, past the forward that puts them together, in evaluation mode and with the same weights.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from rlstep_hooks.observe.clean_forward import hooked_by_others, unseen
from rlstep_hooks.observe.clean_values import farthest, fields_of_values

if TYPE_CHECKING:
    from collections.abc import Iterator


class Batch(NamedTuple):
    """What a critic computes values of."""

    tokens: Tensor
    """(B, L), with padding."""
    attention: Tensor
    """(B, L), 1 on real tokens."""
    counted: Tensor
    """(B, L - 1), whether the token after a position is one of an answer."""


def why_not(critic: Any, *, whole: bool) -> str:
    """Why no value can be computed again; empty where values can.

    Args:
        critic: The model.
        whole: Whether this process holds all of its weights, and whole rows.
    """
    if not whole:
        return "the critic's weights or its rows are shared out among processes"
    if why := why_not_of_critic(critic):
        return why
    if hooked_by_others(critic):
        return "somebody's own hooks of the critic's modules would see forwards that training does not make"
    return ""


def why_not_of_critic(critic: Any) -> str:
    """Why the critic's layers and head are not known, or its rows are not whole; empty where they are."""
    if hasattr(critic, "peft_config"):
        return "adapters stand between the critic and its layers"
    if not hasattr(critic, "value_head_prefix") or getattr(critic, "packing_samples", False):
        return "the critic is none of OpenRLHF's own, or its rows are packed"
    return ""


def head_of(critic: Any) -> Any:
    """What makes values of the output of the critic's layers."""
    return getattr(critic, critic.value_head_prefix)


def look(critic: Any, batch: Batch, observed: Tensor, turn: int) -> dict[str, Any]:
    """Compare the values of two rows, the one with the longest answer and another; waits for the device.

    Args:
        critic: The model.
        batch: What it computed values of.
        observed: (B, L - 1), the values that the critic gave, 0 where nothing counts.
        turn: Which other row is looked at.

    Returns:
        Fields of `MicroBatchValues`; none where no row has an answer.
    """
    tokens, attention, counted = batch
    lengths = counted.bool().sum(1).tolist()
    places = [place for place, length in enumerate(lengths) if length]
    if not places:
        return {}
    chosen = {max(places, key=lengths.__getitem__), places[turn % len(places)]}
    return farthest(_of_row(critic, tokens[row], attention[row], counted[row].bool(), observed[row]) for row in chosen)


def of_rewards(tokens: Tensor, attention: Tensor) -> Batch:
    """What a reward model gives a reward of, as if that were a value (models/model.py 0.11.2, `_get_reward_model`).

    Args:
        tokens: (B, L), with padding.
        attention: (B, L), 1 on real tokens.

    Returns:
        (B, L + 1): its value at the last token is the reward. A value stands before the token that follows it, and there is none here.
    """
    counted = torch.zeros_like(attention).scatter(1, _last(attention), 1).bool()
    longer, attended = (torch.nn.functional.pad(tensor, (0, 1)) for tensor in (tokens, attention))
    return Batch(longer, attended, counted)


def as_values(attention: Tensor, rewards: Tensor) -> Tensor:
    """(B, L), the rewards (B,) at the last real token of each row, 0 elsewhere."""
    given = torch.zeros_like(attention, dtype=rewards.dtype)
    return given.scatter(1, _last(attention), rewards.to(attention.device).unsqueeze(1))


def _last(attention: Tensor) -> Tensor:
    return attention.shape[1] - 1 - attention.long().fliplr().argmax(1, keepdim=True)


def _of_row(critic: Any, tokens: Tensor, attention: Tensor, counted: Tensor, observed: Tensor) -> dict[str, Any]:
    values, sizes = _values(critic, tokens[attention.bool()])
    return fields_of_row(critic, ComputedRow(0, attention, counted, values, sizes), observed)


class ComputedRow(NamedTuple):
    """What a row gives alone. N of its L tokens are real."""

    place: int
    """In its micro-batch."""
    attention: Tensor
    """(L,), 1 on real tokens."""
    counted: Tensor
    """(L - 1,), whether the token after a position is one of an answer."""
    values: Tensor
    """(N,), as the head gives them."""
    sizes: Tensor
    """(N,), the sizes of what each value is added up from."""


def fields_of_row(critic: Any, row: ComputedRow, observed: Tensor) -> dict[str, Any]:
    """Compare the values of one row with those that the critic gave; waits for the device.

    Args:
        critic: The model.
        row: The row.
        observed: (L - 1,), what the critic gave.

    Returns:
        Fields of `MicroBatchValues`.
    """
    real, counted, values, sizes = row.attention.bool().cpu(), row.counted.cpu(), row.values.float(), row.sizes
    if critic.normalize_reward:
        mean, deviation = _configured(critic)
        values, sizes = (values - mean) / deviation, sizes / abs(deviation)
    values, sizes = values.cpu(), sizes.cpu()
    # A value stands before the token that follows it.
    at = real.nonzero().squeeze(1)
    of_row = torch.nn.functional.pad(counted, (0, 1))[at]
    given = observed.detach().cpu().float()[counted]
    return fields_of_values(given, values, sizes, of_row, critic.dtype, _normalised_otherwise(critic, values, of_row))


def _values(critic: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """(N,), what the head gives at each token of a row alone, and the sizes of what that is added up from."""
    layers, head = getattr(critic, critic.base_model_prefix), head_of(critic)
    positions = torch.arange(tokens.numel(), device=tokens.device).unsqueeze(0)
    training = [module for module in critic.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with unseen(tokens.device, nullcontext):
            hidden = layers(
                tokens.unsqueeze(0), attention_mask=torch.ones_like(tokens).unsqueeze(0), position_ids=positions
            ).last_hidden_state[0]
            values = head(hidden).squeeze(-1)
            sizes = hidden.abs().float() @ head.weight.abs().float().squeeze(0)
    finally:
        for module in training:
            module.training = True
    return values, sizes


def _configured(critic: Any) -> tuple[float, float]:
    """What values are normalised by: the numbers of the model's configuration, or 0 and 1 (models/model.py:258-266)."""
    return float(getattr(critic.config, "mean", 0.0)), float(getattr(critic.config, "std", 1.0))


def _normalised_otherwise(critic: Any, values: Tensor, counted: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The values by the numbers that the model holds, where these are others than configured: transformers 5 builds a model without
    memory, and fills no buffer that is not saved."""
    if critic.normalize_reward:
        mean, deviation = _configured(critic)
        raw = values[counted] * deviation + mean
        yield (
            "normalised by a mean and a deviation that the model's configuration does not have",
            (raw - critic.mean.float().cpu()) / critic.std.float().cpu(),
        )
