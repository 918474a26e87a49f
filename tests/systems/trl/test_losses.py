"""The documented formula of every loss that it covers: the trainer's loss equals it, and one that is off by a factor is found."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from typing import TYPE_CHECKING, Any

import pytest
import trl
from packaging.version import Version

from rlstep_hooks.record.events import Measured
from rlstep_hooks.testing.tiny_trl import tiny_tokenizer
from rlstep_hooks.testing.trl_faults import replace_method
from tests.faults.mistakes.losses import in_losses, inner_loss
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import codes, events_of, problems

if TYPE_CHECKING:
    from collections.abc import Callable

REUSED = {"rows": 12, "gradient_accumulation_steps": 2, "num_iterations": 2, "num_train_epochs": 1, "beta": 0.0}

LOSSES: dict[str, dict[str, Any]] = {
    "rloo": {"algorithm": "RLOO"},
    "rloo with KL": {"algorithm": "RLOO", "beta": 0.04},
    "two-sided clip": {"delta": 1.5, "epsilon": 0.01},
    "sequence-level grpo": {"importance_sampling_level": "sequence", "loss_type": "grpo"},
    "sequence-level dr_grpo with KL": {"importance_sampling_level": "sequence", "loss_type": "dr_grpo", "beta": 0.04},
    "sequence-level bnpo, two-sided": {"importance_sampling_level": "sequence", "loss_type": "bnpo", "delta": 1.2},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.05, "use_bias_correction_kl": False},
    "cispo with KL": {"loss_type": "cispo", "beta": 0.04, "use_bias_correction_kl": True},
    "sapo": {"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05},
    "vespo": {"loss_type": "vespo", "vespo_k_pos": 2.0},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence", "vespo_k_pos": 2.0},
    "tokens with high entropy": {"top_entropy_quantile": 0.5, "loss_type": "grpo"},
    "tokens with high entropy and KL": {"top_entropy_quantile": 0.25, "loss_type": "bnpo", "beta": 0.04},
    "off-policy mask": {"off_policy_mask_threshold": 0.01, "loss_type": "grpo", "learning_rate": 0.05},
    "off-policy mask of tokens with high entropy and KL": {
        "off_policy_mask_threshold": 1e-3,
        "top_entropy_quantile": 0.5,
        "loss_type": "dapo",
        "beta": 0.04,
        "learning_rate": 0.05,
    },
    "reference in the loss or not": {"beta": 0.04, "loss_type": "bnpo"},
    "entropy bonus": {"entropy_coef": 0.1, "loss_type": "grpo"},
    "auxiliary loss": {"router_aux_loss_coef": 0.05, "loss_type": "bnpo"},
}


def experts() -> Any:
    """A tiny mixture of experts."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            moe_intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            num_experts=4,
            num_experts_per_tok=2,
            output_router_logits=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_the_formula_covers_it(build: Callable[..., Any], loss: str) -> None:
    settings = LOSSES[loss]
    config = getattr(trl, f"{settings.get('algorithm', 'GRPO')}Config")
    known = {field.name for field in dataclasses.fields(config)} | {"algorithm"}
    if not settings.keys() <= known or "steps_per_generation" not in known:
        pytest.skip(f"TRL {RELEASE} has no {loss}")
    if "off_policy_mask_threshold" in settings and Version("1.16") > RELEASE:
        pytest.skip("the mask of this release was not read")
    if "router_aux_loss_coef" in settings:
        settings = settings | {"model": experts()}
    trainer, audit = build(**REUSED | settings)
    trainer.train()
    assert not problems(audit.report)
    outcome = next(rule for rule in audit.report.rules if rule.code == "RLS801")
    assert (outcome.verdict, outcome.checks > 0) == ("PASS", True), outcome.reason
    gaps = gradient_gaps(audit)
    assert 0 <= len(gaps) - outcome.checks <= 1  # a mask may leave all of a micro-batch out, whose loss is then 0
    assert max(gaps) < 4  # of the 32 roundings that are no finding

    trainer, audit = build(**REUSED | settings)

    def halve(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) / 2

    replace_method(trainer, "compute_loss", halve)
    trainer.train()
    assert codes(audit.report) == {"RLS801"}, problems(audit.report)
    assert audit.report.findings[0].observed.startswith("0.5 ")

    trainer, audit = build(**REUSED | settings)

    def teach_twice(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        return 2 * value - value.detach()

    replace_method(trainer, "compute_loss", teach_twice)
    trainer.train()
    # RLS801 where the terms of a loss cancel: its gradient is then that of a loss of twice the size.
    assert {"RLS805"} <= codes(audit.report) <= {"RLS801", "RLS805"}, problems(audit.report)


def test_a_micro_batch_of_another_shape_is_named_by_what_the_others_say(build: Callable[..., Any]) -> None:
    """Completions end early now and then. A micro-batch that has no other of its shape says little by itself."""
    if Version("0.18") > RELEASE:
        pytest.skip("a rollout of earlier releases is one micro-batch")
    settings = {"num_iterations": 2, "gradient_accumulation_steps": 2, "max_steps": 8, "loss_type": "dr_grpo"}
    trainer, audit = build(**settings, temperature=1.3, scale_rewards=False)
    calls = itertools.count()

    def loss(original: Callable[..., Any], model: Any, inputs: dict[str, Any]) -> Any:
        changed = {"advantages": inputs["advantages"].clamp(min=0)} if next(calls) >= 3 else {}
        return original(model, inputs | changed)

    replace_method(trainer, inner_loss(trainer), loss)
    trainer.train()
    causes = [of.why for of in audit.report.findings if of.code == "RLS801"]
    assert causes == ["the loss is that of advantages whose negative ones are 0"]


def gradient_gaps(audit: Any) -> list[float]:
    """Of the micro-batches whose gradients were compared with those of the formula."""
    values = [of for event in events_of(audit) if isinstance(event, Measured) for of in event.microbatches]
    return [of.gradient_gap for of in values if of.gradient_gap is not None]


def test_evaluations_take_nothing_from_what_is_compared(build: Callable[..., Any]) -> None:
    if Version("0.18") > RELEASE:
        pytest.skip("TRL before 0.18 takes evaluations for training")
    checks = []
    for evaluated in ({}, {"evaluation_rows": 12, "eval_strategy": "steps", "eval_steps": 1}):
        trainer, audit = build(**REUSED | evaluated)
        trainer.train()
        assert not problems(audit.report)
        assert not [reason for reason in audit.report.not_evaluated.values() if "hook failed" in reason]
        checks.append(
            {rule.code: rule.checks for rule in audit.report.rules if rule.code in ("RLS516", "RLS801", "RLS804")}
        )
    # Evaluations make three rollouts after each of the twelve updates, so that later training rollouts are not among the first 8.
    assert checks[0] == checks[1]
    assert checks[0]["RLS801"]
    assert checks[0]["RLS516"] or Version("0.20") > RELEASE  # rewards are not seen before


OWN_LOGITS: dict[str, dict[str, Any]] = {
    # Small logits nearly keep their values behind the cap, and so do their log-probs; their gradients are smaller.
    "Gemma2": {"hidden_size": 32, "head_dim": 16, "final_logit_softcapping": 2.0},
    # Nearly uniform log-probs hardly change with the scale, and their gradients do.
    "Cohere": {"hidden_size": 8, "logit_scale": 0.5, "initializer_range": 1e-3},
}


@pytest.mark.parametrize("kind", OWN_LOGITS)
def test_a_model_that_changes_its_logits_is_no_finding(build: Callable[..., Any], kind: str) -> None:
    import torch
    import transformers

    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(tokenizer),
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **OWN_LOGITS[kind],
    )
    trainer, audit = build(**REUSED, model=getattr(transformers, f"{kind}ForCausalLM")(config))
    trainer.train()
    assert not problems(audit.report)


def test_what_the_formula_does_not_cover_says_so(build: Callable[..., Any]) -> None:
    known = inspect.signature(trl.GRPOConfig).parameters
    uncovered = {
        "off_policy_mask_threshold": (0.5, "an off-policy mask"),
        "use_adaptive_entropy": (True, "an adaptive entropy bonus"),
    }
    for name, (value, reason) in uncovered.items():
        if name == "off_policy_mask_threshold" and Version("1.16") <= RELEASE:
            continue  # covered
        if name not in known or (name == "loss_type" and "use_bias_correction_kl" not in known):
            continue
        trainer, audit = build(**REUSED | {name: value})
        trainer.train()
        assert not problems(audit.report)
        assert reason in audit.report.not_evaluated["RLS801"]


def test_a_kl_term_whose_reference_was_not_seen_is_not_compared(build: Callable[..., Any]) -> None:
    if not Version("0.18") <= RELEASE < Version("0.19"):
        pytest.skip("the loss of 0.18 computes the reference's log-probs itself")
    trainer, audit = build(**REUSED | {"beta": 0.5})
    in_losses(trainer, first=0, beta=0.0)  # nor does it compute them then
    trainer.train()
    assert "KL term" in audit.report.not_evaluated["RLS801"]
