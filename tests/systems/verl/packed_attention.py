"""Attention over packed rows on a CPU, in the place of flash attention, which exists for GPUs alone.

verl's Ulysses wraps the function that transformers' flash attention calls (models/transformers/monkey_patch.py 0.9.1:87, 551): it
exchanges sequences for heads before, and heads for sequences after. So transformers' own `flash_attention_forward` is registered under
another name, which transformers lets pass without the package, and what verl's wrapper calls is computed here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

NAME = "packed_on_cpu"
"""What `attn_implementation` is set to."""


def install() -> None:
    """Register it, and let verl's wrapper call it."""
    from transformers import AttentionInterface
    from transformers.integrations import flash_attention
    from verl.models.transformers import monkey_patch

    AttentionInterface.register(NAME, flash_attention.flash_attention_forward)
    flash_attention._flash_attention_forward = monkey_patch._flash_attention_forward = attention


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    query_length: int,
    *arguments: Any,
    position_ids: Tensor,
    softmax_scale: float | None = None,
    **more: Any,
) -> Tensor:
    """Causal attention within each packed row; a row begins where the position is 0.

    Args:
        query: (1, S, heads, width).
        key: (1, S, heads of keys, width).
        value: (1, S, heads of keys, width).
        attention_mask: None, because rows are packed without padding.
        query_length: S.
        arguments: Settings of flash attention, which change nothing here.
        position_ids: (1, S), each token's place in its row.
        softmax_scale: The factor of the scores.
        more: Further settings.

    Returns:
        (1, S, heads, width).
    """
    row = (position_ids == 0).cumsum(1)
    same = row[:, :, None] == row[:, None, :]
    causal = torch.ones(same.shape[1:], dtype=torch.bool, device=same.device).tril()
    of_heads = (tensor.transpose(1, 2) for tensor in (query, key, value))
    found = scaled_dot_product_attention(
        *of_heads, attn_mask=(same & causal)[:, None], scale=softmax_scale, enable_gqa=True
    )
    return found.transpose(1, 2)
