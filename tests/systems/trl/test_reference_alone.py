"""The reference's log-probs beside its forward of a row alone: silent on healthy runs, and mistakes are found and named (RLS315)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from packaging.version import Version

from rlstep_hooks.record.events import Measured
from rlstep_hooks.systems.trl.observe.reference_alone import POLICY, is_the_policys
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import codes, events_of, problems
from tests.systems.trl.test_scored_alone import FROM, sharp_model, trained

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks import StepAuditCallback
    from rlstep_hooks.judge.report import Report

pytestmark = pytest.mark.skipif(Version("1.16") > RELEASE, reason="the faults are written for the scoring of 1.16")

BETA = 0.1


def with_adapters(**settings: Any) -> Any:
    """A model with adapters that do something from the start."""
    peft = pytest.importorskip("peft", reason="peft is installed in the session of the newest TRL only")
    kind = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False} | settings
    return peft.get_peft_model(sharp_model(), peft.LoraConfig(**kind))


def trained_with_adapters(
    build: Callable[..., Any],
    fault: Callable[[Any], None] | None = None,
    *,
    adapter: dict[str, Any] | None = None,
    **settings: Any,
) -> StepAuditCallback:
    """A run with adapters and a reference, whose policy is not loaded from a folder."""
    model = with_adapters(**(adapter or {}))

    def prepare(trainer: Any) -> None:
        trainer.beta = trainer.args.beta = BETA
        if fault is not None:
            fault(trainer)

    return trained(build, prepare, model=model, **settings)


def gaps(audit: StepAuditCallback) -> list[float]:
    measured = [event for event in events_of(audit) if isinstance(event, Measured)]
    values = [of for event in measured for of in (*event.microbatches, *event.rollouts)]
    return [of.reference_clean_gap for of in values if of.reference_clean_gap is not None]


def outcome(report: Report) -> Any:
    return next(of for of in report.rules if of.code == "RLS315")


HEALTHY: dict[str, dict[str, Any]] = {
    "on policy": {},
    "reused": {"num_iterations": 2},
    "RLOO": {"algorithm": "RLOO"},
    "bf16 autocast": {"bf16": True},
    "synced": {"sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.5, "num_iterations": 2},
    "gradient checkpointing": {"gradient_checkpointing": True},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_silent_on_healthy_runs(build: Callable[..., Any], name: str) -> None:
    audit = trained(build, beta=BETA, **HEALTHY[name])
    assert not codes(audit.report), problems(audit.report)
    assert outcome(audit.report).verdict == "PASS", outcome(audit.report)
    assert max(gaps(audit)) < (2e-5 if name != "bf16 autocast" else 0.05)


@pytest.mark.parametrize("adapter", [{}, {"lora_dropout": 0.2}, {"init_lora_weights": True}], ids=str)
def test_silent_with_adapters(build: Callable[..., Any], adapter: dict[str, Any]) -> None:
    audit = trained_with_adapters(build, adapter=adapter)
    assert "RLS315" not in codes(audit.report), problems(audit.report)
    assert outcome(audit.report).verdict == "PASS", outcome(audit.report)
    assert max(gaps(audit)) < 2e-5


def with_a_copy(trainer: Any) -> None:
    """The reference has a copy of the adapters that training begins with, as TRL makes it of adapters that were there before."""
    model = trainer.model
    model.add_adapter("ref", model.peft_config["default"])
    for name, parameter in model.named_parameters():
        if ".default." in name:
            model.get_parameter(name.replace(".default.", ".ref.")).data.copy_(parameter.data)


def test_silent_with_a_copy_of_the_adapters(build: Callable[..., Any]) -> None:
    audit = trained_with_adapters(build, with_a_copy)
    assert "RLS315" not in codes(audit.report), problems(audit.report)
    assert outcome(audit.report).verdict == "PASS", outcome(audit.report)
    assert max(gaps(audit)) < 2e-5


def test_adapters_that_are_off_in_the_place_of_their_copy_are_seen(build: Callable[..., Any]) -> None:
    def off(trainer: Any, score: Callable[..., Any]) -> Any:
        with trainer.model.disable_adapter():
            return score()

    def fault(trainer: Any) -> None:
        with_a_copy(trainer)
        altered(off)(trainer)

    audit = trained_with_adapters(build, fault)
    [finding, *_] = [of for of in audit.report.findings if of.code == "RLS315"]
    assert (finding.where.rollout, finding.where.update) == (FROM, FROM)


def test_adapters_are_as_they_were(build: Callable[..., Any]) -> None:
    seen: list[Any] = []

    def watch(trainer: Any) -> None:
        original = trainer._compute_loss

        def loss(model: Any, inputs: Any) -> Any:
            seen.append([parameter.requires_grad for parameter in trainer.model.parameters()])
            result = original(model, inputs)
            seen.append([parameter.requires_grad for parameter in trainer.model.parameters()])
            return result

        trainer._compute_loss = loss

    audit = trained_with_adapters(build, watch, max_steps=3)
    assert gaps(audit)
    assert all(each == seen[0] for each in seen)


# Faults


def altered(change: Callable[[Any, Callable[[], Any]], Any]) -> Callable[[Any], None]:
    """A fault in the scoring by the reference: `change(trainer, score)` gives what the method returns."""

    def fault(trainer: Any) -> None:
        original = trainer._get_per_token_logps_and_entropies
        passes = [0]

        def scores(model: Any, *args: Any, **kwargs: Any) -> Any:
            of_reference = not torch.is_grad_enabled() and (trainer.ref_model is None or model is trainer.ref_model)
            if trainer.ref_model is None and trainer.__class__.__name__.startswith("RLOO"):
                passes[0] += 1
                of_reference = of_reference and passes[0] % 2 == 0
            if of_reference and trainer.state.global_step >= FROM:
                return change(trainer, lambda *given: original(*(given or (model, *args)), **kwargs))
            return original(model, *args, **kwargs)

        trainer._get_per_token_logps_and_entropies = scores

    return fault


def shifted(trainer: Any, score: Callable[..., Any]) -> Any:
    log_probs, *others = score()
    return log_probs.roll(1, 1), *others


def dropping(trainer: Any, score: Callable[..., Any]) -> Any:
    model = trainer.ref_model
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3
    model.train()
    return score()


def adapters_left_on(trainer: Any, score: Callable[..., Any]) -> Any:
    trainer.model.base_model.enable_adapter_layers()
    return score()


def by_the_policy(trainer: Any, score: Callable[..., Any]) -> Any:
    reference, trainer.ref_model.__dict__["forward"] = trainer.ref_model.forward, trainer.model.forward
    try:
        return score()
    finally:
        trainer.ref_model.__dict__["forward"] = reference


@pytest.mark.parametrize("algorithm", ["GRPO", "RLOO"])
@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (shifted, "chunk of the head: each token has the log-prob of the one before it"),
        (dropping, ""),
        (by_the_policy, POLICY),
    ],
    ids=lambda of: getattr(of, "__name__", ""),
)
def test_a_mistake_of_the_reference_is_named(
    build: Callable[..., Any], change: Any, cause: str, algorithm: str
) -> None:
    audit = trained(build, altered(change), beta=BETA, algorithm=algorithm)
    [finding, *_] = [of for of in audit.report.findings if of.code == "RLS315"]
    assert (finding.where.rollout, finding.where.update) == (FROM, FROM)
    assert cause in finding.why


@pytest.mark.parametrize("rate", [1e-2, 1e-7])
def test_adapters_that_are_left_on_are_named(build: Callable[..., Any], rate: float) -> None:
    audit = trained_with_adapters(
        build, altered(adapters_left_on), adapter={"init_lora_weights": True}, learning_rate=rate
    )
    [finding, *_] = [of for of in audit.report.findings if of.code == "RLS315"]
    assert (finding.where.rollout, finding.where.update) == (FROM, FROM)
    assert "the policy scored" in finding.why
    assert finding.severity == "error" or rate == 1e-2


def test_equal_log_probs_say_nothing_where_both_models_give_equal_ones() -> None:
    one, other = torch.arange(6.0), torch.arange(6.0) + torch.tensor([1e-7, 0.1, 0.1, 0.1, 0.1, 0.1])
    assert is_the_policys(one, one, one, one) is None
    assert is_the_policys(one, one, one, other) is True
    assert is_the_policys(one, other, one, other) is False
    assert is_the_policys(one[:3], one[:3], one[:3], other[:3]) is None
