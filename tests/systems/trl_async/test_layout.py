"""Where a model of vLLM holds what the policy has: joined, padded, renamed and wrapped tensors."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from rlstep_hooks.systems.vllm_engine.layout import places_in


class Renames:
    """As vLLM's `WeightsMapper` does it."""

    def _map_name(self, name: str) -> str | None:
        return None if name.endswith("rotary") else name.replace("language_model.", "")


class Engine(torch.nn.Module):
    """Names and shapes as in vLLM: 4 heads of 8 and 2 of them for keys, a vocabulary padded from 59 to 64."""

    packed_modules_mapping: ClassVar = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    hf_to_vllm_mapper = Renames()

    def __init__(self) -> None:
        super().__init__()
        self.attn = torch.nn.Module()
        self.attn.qkv_proj = torch.nn.Linear(32, 64)
        self.attn.o_proj = torch.nn.Module()
        self.attn.o_proj.base_layer = torch.nn.Linear(32, 32)
        self.mlp = torch.nn.Module()
        self.mlp.gate_up_proj = torch.nn.Linear(32, 96, bias=False)
        self.embed = torch.nn.Embedding(64, 32)


def found(name: str, *shape: int, ranks: int = 1) -> tuple[Any, int] | None:
    engine = Engine()
    place = places_in(engine, ranks)(name, shape)
    if place is None:
        return None
    return next(own for own, tensor in engine.named_parameters() if tensor is place.tensor), place.row


def test_joined_tensors_are_found_at_their_row() -> None:
    assert found("attn.q_proj.weight", 32, 32) == ("attn.qkv_proj.weight", 0)
    assert found("attn.k_proj.weight", 16, 32) == ("attn.qkv_proj.weight", 32)
    assert found("attn.v_proj.bias", 16) == ("attn.qkv_proj.bias", 48)
    assert found("mlp.up_proj.weight", 48, 32) == ("mlp.gate_up_proj.weight", 48)


def test_padded_renamed_and_wrapped_tensors_are_found() -> None:
    assert found("embed.weight", 59, 32) == ("embed.weight", 0)
    assert found("language_model.embed.weight", 64, 32) == ("embed.weight", 0)
    assert found("attn.o_proj.weight", 32, 32) == ("attn.o_proj.base_layer.weight", 0)


def test_what_is_not_there_or_split_is_not_found() -> None:
    assert found("attn.k_proj.weight", 16, 32, ranks=2) is None
    assert found("mlp.gate_proj.weight", 40, 32) is None, "another size than half of both"
    assert found("embed.weight", 59, 16) is None
    assert found("rotary", 3) is None
