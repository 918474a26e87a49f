"""The backward pass inside of the layers: silent on healthy runs, and a wrong one is found in its layer (RLS813)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from packaging.version import Version
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig, MixtralConfig, Qwen3Config

from rlstep_hooks.observe.layer_slope import faulty_layer, slope_of, why_no_slope
from rlstep_hooks.record.events import Measured
from rlstep_hooks.record.values import SLOPE_EXPLAINED
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import codes, events_of, problems
from tests.systems.trl.test_reference_alone import with_adapters
from tests.systems.trl.test_scored_alone import sharp_model, trained

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

pytestmark = pytest.mark.skipif(Version("1.16") > RELEASE, reason="helpers of the rows' tests are written for 1.16")

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.15,
}
KINDS = {
    "Llama": lambda: LlamaConfig(**SIZES),
    "Qwen3": lambda: Qwen3Config(**SIZES),
    "Gemma2": lambda: Gemma2Config(**SIZES, final_logit_softcapping=None),
    "Mixtral": lambda: MixtralConfig(**SIZES, num_local_experts=4),
    "GPT2": lambda: GPT2Config(vocab_size=96, n_embd=32, n_layer=3, n_head=4, initializer_range=0.15, embd_pdrop=0.0),
}


TRAINED = 400
"""Tokens of a rollout."""


def model_of(kind: str) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(KINDS[kind](), attn_implementation="eager").eval()


def tokens_of(model: Any) -> Tensor:
    return 1 + torch.arange(40) * 7 % (model.config.vocab_size - 1)


class Shrunk(torch.autograd.Function):
    """A function that brings the wrong backward pass."""

    @staticmethod
    def forward(context: Any, numbers: Tensor) -> Tensor:
        return numbers.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return 0.3 * gradient


def replaced(module: Any, forward: Callable[[Callable[..., Any], Any], Any]) -> None:
    original = module.forward
    module.forward = lambda numbers: forward(original, numbers)


FAULTS: dict[str, Callable[[Any], None]] = {
    "a kernel's backward scales": lambda layer: replaced(layer.mlp, lambda of, x: Shrunk.apply(of(x))),
    "the input of the keys is detached": lambda layer: replaced(layer.self_attn.k_proj, lambda of, x: of(x.detach())),
    "the input of a norm is detached": lambda layer: replaced(
        layer.post_attention_layernorm, lambda of, x: of(x.detach())
    ),
    "a residual is detached": lambda layer: replaced(layer.mlp, lambda of, x: of(x) + (x - x.detach())),
}


@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_transformers_have_the_slope_of_their_forward(kind: str) -> None:
    model = model_of(kind)
    assert not why_no_slope(model)
    state, weights = torch.get_rng_state(), [parameter.clone() for parameter in model.parameters()]
    slope = slope_of(model, tokens_of(model), TRAINED)
    assert slope is not None
    assert slope.gap < SLOPE_EXPLAINED + slope.doubt
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(now, before) for now, before in zip(model.parameters(), weights, strict=True))
    assert not model.get_input_embeddings()._forward_hooks


@pytest.mark.parametrize(("trained", "row"), [(0, 16), (24 * 120, 24), (10**6, 40)])
def test_a_first_look_at_healthy_layers_costs_seven_passes_of_a_short_row(trained: int, row: int) -> None:
    model, given = model_of("Llama"), []
    model.model.register_forward_pre_hook(
        lambda module, args, kwargs: given.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    slope = slope_of(model, tokens_of(model), trained)
    assert slope is not None
    assert slope.doubt == 0
    assert given == [(1, row), (4, row)]


@pytest.mark.parametrize("times", [3, 10, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_steep_places_that_are_smaller_than_a_step_are_not_judged(kind: str, times: int) -> None:
    """Learning rates of 1 and 10 leave such weights: attention chooses one token, and another a little to the side."""
    model = model_of(kind)
    for parameter in model.parameters():
        parameter.data.mul_(times)
    slope = slope_of(model, tokens_of(model), TRAINED)
    assert slope is None or slope.gap < SLOPE_EXPLAINED + slope.doubt


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("layer", [0, 2])
def test_a_wrong_backward_pass_is_found_in_its_layer(fault: str, layer: int) -> None:
    model = model_of("Llama")
    FAULTS[fault](model.model.layers[layer])
    slope = slope_of(model, tokens_of(model), TRAINED)
    assert slope is not None
    assert slope.gap > 10 * (SLOPE_EXPLAINED + slope.doubt)
    assert faulty_layer(model, tokens_of(model)) == f"layers.{layer}"


def test_what_cannot_be_measured_says_why() -> None:
    model = model_of("Llama")
    assert "float32" in why_no_slope(model.to(torch.bfloat16))
    model = model_of("Llama").train()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    assert "reentrant" in why_no_slope(model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert not why_no_slope(model)
    slope = slope_of(model, tokens_of(model), TRAINED)
    assert slope is not None
    assert slope.gap < SLOPE_EXPLAINED
    model.model.layers[0].register_full_backward_hook(lambda *given: None)
    assert "backward hooks" in why_no_slope(model)


def gaps(audit: Any) -> list[float]:
    values = [of for event in events_of(audit) if isinstance(event, Measured) for of in event.rollouts]
    return [of.slope_gap for of in values if of.slope_gap is not None]


HEALTHY: dict[str, dict[str, Any]] = {
    "GRPO": {"max_steps": 11},
    "RLOO": {"algorithm": "RLOO"},
    "bf16 autocast": {"bf16": True},
    "gradient checkpointing": {"gradient_checkpointing": True},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_silent_on_healthy_runs(build: Callable[..., Any], name: str) -> None:
    audit = trained(build, **HEALTHY[name])
    assert not codes(audit.report), problems(audit.report)
    assert len(gaps(audit)) == (2 if "max_steps" in HEALTHY[name] else 1)
    assert max(gaps(audit)) < SLOPE_EXPLAINED


def test_adapters_are_looked_through(build: Callable[..., Any]) -> None:
    audit = trained(build, model=with_adapters())
    assert not codes(audit.report), problems(audit.report)
    assert gaps(audit)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_backward_pass_is_named_in_a_run(build: Callable[..., Any], fault: str) -> None:
    audit = trained(build, lambda trainer: FAULTS[fault](trainer.model.model.layers[1]))
    [finding] = [of for of in audit.report.findings if of.code == "RLS813"]
    assert (finding.severity, finding.where.rollout) == ("error", 1)
    assert finding.why == "the backward pass of layers.1 is not that of its forward"


def test_weights_in_half_precision_are_not_evaluated(build: Callable[..., Any]) -> None:
    audit = trained(build, model=sharp_model().to(torch.bfloat16))
    outcome = next(of for of in audit.report.rules if of.code == "RLS813")
    assert (outcome.verdict, "float32" in outcome.reason) == ("NOT_EVALUATED", True)
