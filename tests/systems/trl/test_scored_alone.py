"""Rows that are scored again alone: silent on healthy runs, and mistakes of the batched forward are found and named (RLS314)."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from datasets import Dataset
from packaging.version import Version
from transformers import Qwen2ForCausalLM

from rlstep_hooks.record.events import Measured
from rlstep_hooks.testing.tiny_trl import tiny_architecture, tiny_tokenizer
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import codes, events_of, problems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from rlstep_hooks import StepAuditCallback

pytestmark = pytest.mark.skipif(Version("1.16") > RELEASE, reason="the faults are written for the scoring of 1.16")

FROM = 3
"""The update before which a fault begins: one of a compared cycle."""
TEMPERATURE = 0.7


def sharp_model(**more: Any) -> Any:
    """A tiny Qwen2 whose attention matters: usual initial weights give nearly the same logits whatever is attended to."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(tiny_architecture(tiny_tokenizer(), layers=2, initializer_range=0.25, **more))


def rows() -> Any:
    """Prompts of different lengths, so that batches are padded."""
    words = ["add", "two", "three", "five", "seven", "sum", "is", "equals", "the", "of", "and", "then"]
    return Dataset.from_dict({"prompt": [" ".join(words[i % 3 : i % 3 + 2 + (5 * i) % 9]) for i in range(36)]})


def trained(build: Callable[..., Any], fault: Callable[[Any], None] | None = None, **settings: Any) -> Any:
    """A run whose every micro-batch holds two prompts, is one rollout, and is one update."""
    settings = {
        "model": sharp_model(),
        "dataset": rows(),
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "temperature": TEMPERATURE,
        "max_steps": 6,
        "learning_rate": 1e-3,
    } | settings
    trainer, audit = build(**settings)
    if fault is not None:
        fault(trainer)
    trainer.train()
    return audit


def gaps(audit: StepAuditCallback) -> list[float]:
    values = [of for event in events_of(audit) if isinstance(event, Measured) for of in event.microbatches]
    return [of.clean_gap for of in values if of.clean_gap is not None]


HEALTHY: dict[str, dict[str, Any]] = {
    "on policy": {},
    "old log-probs": {"num_iterations": 2},
    "RLOO": {"algorithm": "RLOO"},
    "bf16 autocast": {"bf16": True},
    "gradient checkpointing": {"gradient_checkpointing": True, "num_iterations": 2},
    "accumulation": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_silent_on_healthy_runs(build: Callable[..., Any], name: str) -> None:
    audit = trained(build, **HEALTHY[name])
    assert "RLS314" not in codes(audit.report), problems(audit.report)
    [outcome] = [of for of in audit.report.rules if of.code == "RLS314"]
    assert outcome.verdict == "PASS", outcome
    found = gaps(audit)
    assert found
    assert max(found) < (2e-5 if name != "bf16 autocast" else 0.05)


def test_silent_with_lora(build: Callable[..., Any]) -> None:
    peft = pytest.importorskip("peft", reason="peft is installed in the session of the newest TRL only")
    adapter = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    audit = trained(build, model=peft.get_peft_model(sharp_model(), adapter))
    assert "RLS314" not in codes(audit.report), problems(audit.report)
    assert max(gaps(audit)) < 2e-5


def test_dropout_is_said_and_not_judged(build: Callable[..., Any]) -> None:
    audit = trained(build, model=sharp_model(attention_dropout=0.2), max_steps=2)
    assert not gaps(audit)
    assert "RLS314" not in codes(audit.report)
    assert "dropout makes each forward in training mode another one" in str(audit.report.not_evaluated)


def test_somebodys_own_hooks_see_no_forward_of_ours(build: Callable[..., Any]) -> None:
    model, forwards = sharp_model(), []
    model.model.layers[0].register_forward_hook(lambda *_: forwards.append(torch.is_grad_enabled()))
    audit = trained(build, model=model, max_steps=2)
    assert not gaps(audit)
    assert "somebody's own hooks of the model's modules" in str(audit.report.not_evaluated)
    assert sum(forwards) == 2, "one forward of each update has a gradient"


class Counting(Qwen2ForCausalLM):
    """A model whose class is somebody's own."""


def test_a_class_of_somebodys_own_is_left_alone() -> None:
    from rlstep_hooks.observe.clean_forward import why_not_alone

    plain = sharp_model()
    own = Counting(plain.config)
    assert not why_not_alone(plain)
    assert "not transformers' own" in why_not_alone(own)
    plain.norm = torch.nn.BatchNorm1d(2)
    assert "running statistics" in why_not_alone(plain)


def test_the_random_state_and_the_mode_of_the_model_stay_as_they_were(build: Callable[..., Any]) -> None:
    from rlstep_hooks.observe.clean_forward import CleanForward, LayersAndHead, row_of

    trainer, _ = build(model=sharp_model())
    model = trainer.model.train()
    state, python, modes = torch.get_rng_state(), random.getstate(), [of.training for of in model.modules()]
    ones = torch.ones(3, dtype=torch.long)
    row = row_of(torch.tensor([0, 5, 6]), torch.tensor([0, 1, 1]), torch.tensor([7, 8, 9]), ones)
    scored = CleanForward(LayersAndHead(model, trainer.accelerator.autocast), TEMPERATURE).score(row)
    logits = model(input_ids=torch.tensor([[5, 6, 7, 8, 9]])).logits[0, 1:4] / TEMPERATURE
    expected = logits.log_softmax(-1)[torch.arange(3), torch.tensor([7, 8, 9])]
    assert torch.allclose(scored, expected, atol=1e-5)
    assert not scored.requires_grad
    assert torch.equal(state, torch.get_rng_state())
    assert python == random.getstate()
    assert modes == [of.training for of in model.modules()]
    assert all(parameter.grad is None for parameter in model.parameters())


# Faults: each scores rows by its own code, through the whole model


def logits_of(model: Any, tokens: Tensor, mask: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
    """(L, V), of one row."""
    mask = torch.ones_like(tokens) if mask is None else mask
    given = {} if positions is None else {"position_ids": positions[None]}
    return model(input_ids=tokens[None], attention_mask=mask[None], use_cache=False, **given).logits[0]


def row_by_row(
    logits_for: Callable[[Any, list[Tensor], int, Tensor, Tensor, int], Tensor], *, only_old: bool = False
) -> Callable[[Any], None]:
    """A fault that scores each row by `logits_for(model, real rows, its index, padded row, its mask, C)`, (C, V)."""

    def fault(trainer: Any) -> None:
        original = trainer._get_per_token_logps_and_entropies

        def scores(model: Any, ids: Tensor, mask: Tensor, keep: int, *args: Any, **kwargs: Any) -> Any:
            if trainer.state.global_step < FROM or (only_old and torch.is_grad_enabled()):
                return original(model, ids, mask, keep, *args, **kwargs)
            real = [row[seen.bool()] for row, seen in zip(ids, mask, strict=True)]
            log_probs, entropies = [], []
            for place in range(len(ids)):
                logits = logits_for(model, real, place, ids[place], mask[place], keep)
                of = logits.log_softmax(-1)
                length = int(mask[place, -keep:].sum())
                chosen = ids[place, -keep:][:length]
                of = of[:length]
                padding = of.new_zeros(keep - length)
                log_probs.append(torch.cat([of.gather(1, chosen[:, None])[:, 0], padding]))
                entropies.append(torch.cat([-(of.exp() * of).sum(1), padding]))
            return torch.stack(log_probs), torch.stack(entropies).detach(), None

        trainer._get_per_token_logps_and_entropies = scores

    return fault


def completion_of(row: Tensor, mask: Tensor, keep: int) -> int:
    return int(mask[-keep:].sum())


def temperature_twice(model: Any, real: Any, place: int, padded: Any, mask: Any, keep: int) -> Tensor:
    count = completion_of(padded, mask, keep)
    return logits_of(model, real[place])[-count - 1 : -1] / TEMPERATURE**2


def no_temperature(model: Any, real: Any, place: int, padded: Any, mask: Any, keep: int) -> Tensor:
    count = completion_of(padded, mask, keep)
    return logits_of(model, real[place])[-count - 1 : -1]


def chunk_too_late(model: Any, real: Any, place: int, padded: Any, mask: Any, keep: int) -> Tensor:
    count = completion_of(padded, mask, keep)
    return logits_of(model, real[place])[-count:] / TEMPERATURE


def completion_further(model: Any, real: Any, place: int, padded: Any, mask: Any, keep: int) -> Tensor:
    count = completion_of(padded, mask, keep)
    positions = torch.arange(len(real[place]))
    positions[-count:] += 1
    return logits_of(model, real[place], positions=positions)[-count - 1 : -1] / TEMPERATURE


def positions_begin_again(model: Any, real: Any, place: int, padded: Any, mask: Any, keep: int) -> Tensor:
    count = completion_of(padded, mask, keep)
    positions = torch.arange(len(real[place]))
    positions[-count:] = torch.arange(count)
    return logits_of(model, real[place], positions=positions)[-count - 1 : -1] / TEMPERATURE


def mask_of_ones(model: Any, real: Any, place: int, padded: Any, mask: Any, keep: int) -> Tensor:
    return logits_of(model, padded)[-keep - 1 : -1] / TEMPERATURE


def padding_between(model: Any, real: Any, place: int, padded: Any, mask: Any, keep: int) -> Tensor:
    prompt, seen = padded[:-keep], mask[:-keep].bool()
    turned = torch.cat([prompt[seen], prompt[~seen], padded[-keep:]])
    attention = torch.cat([mask[:-keep][seen], mask[:-keep][~seen], mask[-keep:]])
    count = int(seen.sum())
    logits = logits_of(model, turned, attention)
    # The last token of the prompt, which gives the first of the completion, stands before the padding.
    return torch.cat([logits[count - 1 : count], logits[-keep:-1]]) / TEMPERATURE


def neighbour_read(model: Any, real: Any, place: int, padded: Any, mask: Any, keep: int) -> Tensor:
    count = completion_of(padded, mask, keep)
    return logits_of(model, torch.cat([real[place - 1], real[place]]))[-count - 1 : -1] / TEMPERATURE


def neighbour_read_own_positions(model: Any, real: Any, place: int, padded: Any, mask: Any, keep: int) -> Tensor:
    count = completion_of(padded, mask, keep)
    pair = [real[place - 1], real[place]]
    positions = torch.cat([torch.arange(len(of)) for of in pair])
    return logits_of(model, torch.cat(pair), positions=positions)[-count - 1 : -1] / TEMPERATURE


@contextmanager
def dropping(model: Any) -> Iterator[None]:
    handles = [
        layer.register_forward_hook(lambda _, given, out: torch.nn.functional.dropout(out, 0.2))
        for name, layer in model.named_modules()
        if name.endswith("mlp")
    ]
    yield
    for handle in handles:
        handle.remove()


def old_with_dropout(model: Any, real: Any, place: int, padded: Any, mask: Any, keep: int) -> Tensor:
    count = completion_of(padded, mask, keep)
    with dropping(model):
        return logits_of(model, real[place])[-count - 1 : -1] / TEMPERATURE


FAULTS: list[tuple[Any, str]] = [
    (temperature_twice, "temperature: applied twice"),
    (no_temperature, "temperature: not applied"),
    (chunk_too_late, "chunk of the head: each token is scored one position too late"),
    (completion_further, "position ids: the completion is one place too far"),
    (positions_begin_again, "position ids: they begin again at the completion"),
    (mask_of_ones, "attention mask: the padding before the prompt is attended to"),
    (padding_between, "position ids: padding stands between prompt and completion (padding side)"),
    (neighbour_read, "a neighbour: the row is read after another row of the batch"),
    (
        neighbour_read_own_positions,
        "a neighbour: the row is read after another row of the batch, with position ids of its own",
    ),
]


@pytest.mark.parametrize(("logits_for", "cause"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_a_mistake_of_the_batched_forward_is_named(build: Callable[..., Any], logits_for: Any, cause: str) -> None:
    audit = trained(build, row_by_row(logits_for))
    [finding, *_] = [of for of in audit.report.findings if of.code == "RLS314"]
    assert (finding.where.rollout, finding.where.update, finding.where.microbatch) == (FROM, FROM, FROM)
    assert finding.why == f"these are its log-probs under another forward: {cause}"
    assert finding.expected.startswith("log-probs of the loss as")


def test_noise_in_the_old_log_probs_alone_is_told_from_noise_in_the_loss(build: Callable[..., Any]) -> None:
    # Cycle FROM begins at update 2 * FROM; the fault begins at update FROM, within cycle 1.
    audit = trained(build, row_by_row(old_with_dropout, only_old=True), num_iterations=2, max_steps=10)
    [finding, *_] = [of for of in audit.report.findings if of.code == "RLS314"]
    assert finding.where.rollout == 2
    assert finding.expected.startswith("old log-probs as a forward of the row alone")
    assert finding.why.endswith("by none of the usual mistakes")
