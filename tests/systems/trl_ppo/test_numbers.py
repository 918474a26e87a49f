"""PPOTrainer from the score to the gradient: each fault is found by the rule of its link at its first event, sound runs are silent."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.planning.finding import Where
from tests.detection.outcomes import Detected, delay_of, note
from tests.systems.trl.helpers import events_of, problems

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES: dict[str, Any] = {
    "rows": 16,
    "num_ppo_epochs": 2,
    "total_episodes": 16,
    "learning_rate": 1e-2,
    "response_length": 24,
}
"""Four rollouts of four samples, two updates on each; some responses end before the others."""
FIRST = 2
"""The first rollout that is wrong, and half the number of its first update."""
LINKS = {"RLS516", "RLS518", "RLS801", "RLS803", "RLS805", "RLS810"}


@dataclass(frozen=True)
class Fault:
    """One mistake, and what must be said of it."""

    make: Callable[[Any, pytest.MonkeyPatch], None]
    code: str
    cause: str
    update: int | None = 2 * FIRST


def functions() -> Any:
    """The module whose functions the loop calls."""
    return sys.modules["trl.trainer.ppo_trainer"]


def late(trainer: Any) -> bool:
    return bool(trainer.state.global_step >= FIRST)


def replaced(name: str, change: Callable[..., Any]) -> Callable[[Any, pytest.MonkeyPatch], None]:
    """A function of the loop's module that does something else from the third rollout on."""

    def make(trainer: Any, patch: pytest.MonkeyPatch) -> None:
        before = getattr(functions(), name)

        def called(*args: Any, **kwargs: Any) -> Any:
            return change(before, *args, **kwargs) if late(trainer) else before(*args, **kwargs)

        patch.setattr(functions(), name, called)

    return make


def not_whitened(before: Any, values: Any, mask: Any, shift_mean: bool = True) -> Any:
    return values.clone()


def whitened_with_padding(before: Any, values: Any, mask: Any, shift_mean: bool = True) -> Any:
    return before(values, torch.ones_like(mask), shift_mean)


def negated(before: Any, values: Any, mask: Any, shift_mean: bool = True) -> Any:
    return -before(values, mask, shift_mean)


def scores_of_others(before: Any, model: Any, *args: Any) -> Any:
    logits, scores, lengths = before(model, *args)
    return logits, scores.roll(1, 0), lengths


def no_values(before: Any, model: Any, *args: Any) -> Any:
    logits, scores, lengths = before(model, *args)
    return torch.zeros_like(logits), scores, lengths


def whole_mean(before: Any, values: Any, mask: Any, axis: Any = None) -> Any:
    return before(values, torch.ones_like(mask), axis)


def colder_in_training(before: Any, logits: Any, index: Any) -> Any:
    return before(2 * logits, index) if logits.requires_grad else before(logits, index)


def shifted_in_training(before: Any, logits: Any, index: Any) -> Any:
    return before(logits, index.roll(1, 1)) if logits.requires_grad else before(logits, index)


def last_token_left_out(before: Any, bools: Any, dtype: Any = torch.long) -> Any:
    return (before(bools, dtype) - 1).clamp(min=1)


def doubled_before_backward(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    backward = trainer.accelerator.backward
    trainer.accelerator.backward = lambda loss, **more: backward(2 * loss if late(trainer) else loss, **more)


def critic_detached(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    def detach(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        return (output[0], output[1].detach()) if late(trainer) else None

    trainer.model.register_forward_hook(detach, with_kwargs=True)


def policy_term_multiplied(factor: float) -> Callable[..., None]:
    def multiplied(before: Any, logits: Any, index: Any) -> Any:
        found = before(logits, index)
        return found.detach() + factor * (found - found.detach()) if logits.requires_grad else found

    return replaced("selective_log_softmax", multiplied)


def layer_zeroed_by_a_hook(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    weight = trainer.model.policy.get_input_embeddings().weight
    weight.register_hook(lambda gradient: torch.zeros_like(gradient) if late(trainer) else None)


def not_cleared(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    clears = trainer.optimizer.zero_grad
    trainer.optimizer.zero_grad = lambda *args, **more: None if late(trainer) else clears(*args, **more)


def discount_lowered(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    from transformers import TrainerCallback

    class Lowers(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if late(trainer):
                args.gamma = 0.5

    trainer.add_callback(Lowers())


FAULTS = {
    "advantages not whitened": Fault(replaced("masked_whiten", not_whitened), "RLS516", "not normalised"),
    "advantages whitened with padding": Fault(
        replaced("masked_whiten", whitened_with_padding), "RLS516", "with the tokens that do not count"
    ),
    "advantages negated": Fault(replaced("masked_whiten", negated), "RLS516", "of the opposite sign"),
    "scores of other samples": Fault(replaced("get_reward", scores_of_others), "RLS516", "the sample before it"),
    "no values": Fault(replaced("get_reward", no_values), "RLS516", "without the critic's values"),
    "loss over all tokens": Fault(replaced("masked_mean", whole_mean), "RLS801", "padding included"),
    "colder in training": Fault(replaced("selective_log_softmax", colder_in_training), "RLS801", "as far as rounding"),
    "tokens shifted in training": Fault(
        replaced("selective_log_softmax", shifted_in_training), "RLS801", "as far as rounding"
    ),
    "policy's term flipped": Fault(policy_term_multiplied(-1.0), "RLS801", "sign of the policy's term flipped"),
    "policy's term tripled": Fault(policy_term_multiplied(3.0), "RLS801", "a policy's term 3 times as large"),
    "critic detached": Fault(critic_detached, "RLS801", "without the value's term"),
    "last token left out": Fault(replaced("first_true_indices", last_token_left_out), "RLS518", "samples"),
    "loss doubled": Fault(doubled_before_backward, "RLS805", "2 times"),
    "layer zeroed by a hook": Fault(layer_zeroed_by_a_hook, "RLS810", "embed_tokens"),
    "gradients not cleared": Fault(not_cleared, "RLS803", "a gradient in", 2 * FIRST + 1),
    "discount lowered": Fault(discount_lowered, "RLS101", "gamma = 0.5"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found_by_its_rule_at_its_event(
    name: str, build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlstep_hooks.session.session.INTERVAL", 0.0)
    fault = FAULTS[name]
    trainer, audit = build(**SIZES)
    fault.make(trainer, monkeypatch)
    trainer.train()
    report = audit.report
    named = [finding for finding in report.findings if finding.code == fault.code]
    place = Where(rollout=FIRST, update=fault.update)
    early = [f for f in report.findings if f.severity != "info" and (f.where.rollout or 0) < FIRST]
    note(
        Detected(
            framework="TRL PPOTrainer",
            fault=name,
            report="foreign",
            code=fault.code,
            found=bool(named) and named[0].where.rollout == FIRST,
            delay=delay_of(events_of(audit), Judge(), fault.code, place),
            early=len(early),
        )
    )
    assert named, (problems(report), report.not_evaluated)
    found = named[0]
    assert (found.where.rollout, found.where.update) == (FIRST, fault.update), str(found)
    assert fault.cause in f"{found.expected} {found.observed} {found.why}", str(found)
    assert not early, problems(report)


SOUND: dict[str, dict[str, Any]] = {
    "plain": {},
    "many updates, tight clips": {
        "num_ppo_epochs": 4,
        "cliprange": 0.02,
        "cliprange_value": 0.02,
        "learning_rate": 3e-2,
    },
    "whitened rewards": {"whiten_rewards": True, "per_device_train_batch_size": 8, "kl_coef": 0.3},
    "discounts and penalties": {"gamma": 0.9, "lam": 0.8, "missing_eos_penalty": 1.5, "vf_coef": 0.7},
    "two windows": {"gradient_accumulation_steps": 2, "rows": 24},
    "no stop token": {"stop_token": None, "missing_eos_penalty": 1.0},
    "a word as stop token": {"stop_token": None, "stop_token_id": 12, "missing_eos_penalty": 1.0},
    "in small parts": {"local_rollout_forward_batch_size": 3, "per_device_train_batch_size": 8, "total_episodes": 32},
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_runs_are_silent_and_every_link_is_compared(name: str, build: Callable[..., Any]) -> None:
    trainer, audit = build(**(SIZES | SOUND[name]))
    trainer.train()
    report = audit.report
    assert not problems(report)
    passed = {rule.code for rule in report.rules if rule.verdict == "PASS"}
    assert passed >= LINKS, report.not_evaluated


def test_a_loop_of_ones_own_is_not_compared(build: Callable[..., Any]) -> None:
    import trl

    class Mine(trl.PPOTrainer):  # type: ignore[misc]
        def train(self) -> Any:
            return super().train()

    trainer, audit = build(trainer_class=Mine, **SIZES)
    trainer.train()
    assert audit.report.verdict == "PASS", problems(audit.report)
    assert "a training loop of its own" in audit.report.not_evaluated["RLS801"]
    assert "a training loop of its own" in audit.report.not_evaluated["RLS516"]
