"""Stands for flash_attn.bert_padding (skyrl 0.3.0, workers/model_wrapper.py); both are for packed samples alone."""

from __future__ import annotations

from typing import Any


def pad_input(*given: Any, **named: Any) -> Any:
    """Is not called."""
    raise NotImplementedError("trainer.remove_microbatch_padding needs flash-attention")


unpad_input = pad_input
