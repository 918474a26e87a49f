"""What else healthy loops over the client do: evaluations between rollouts, a second training client, log-probs that a sampler is asked
for, gradients of several calls in one update, a loss of the loop's own, and answers that are all alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tinker
import torch
from tinker import types

from rlstep_hooks import Schedule
from tests.systems.tinker.loops import GROUP, PROMPTS, RATE, audited, datum, gold, reward
from tests.systems.tinker.tiny import served

if TYPE_CHECKING:
    from pathlib import Path

VARIANTS = ("evaluated", "two clients", "scored", "accumulated", "a loss of its own", "alike")


def _rows(sampler: Any, prompt: list[int], variant: str) -> list[types.Datum]:
    settings = types.SamplingParams(max_tokens=1 if variant == "alike" else 4, temperature=1.0)
    drawn = sampler.sample(types.ModelInput.from_ints(prompt), GROUP, settings).result().sequences
    mean = sum(reward(one.tokens) for one in drawn) / GROUP
    rows = []
    for one in drawn:
        scores = list(one.logprobs)
        if variant == "scored":
            row = types.ModelInput.from_ints(prompt + list(one.tokens))
            scores = sampler.compute_logprobs(row).result()[len(prompt) :]
        rows.append(datum(prompt, list(one.tokens), scores, reward(one.tokens) - mean))
    return rows


def _own(data: Any, log_probs: Any) -> Any:
    """The loss of importance sampling, on the client's side."""
    terms = [
        torch.exp(new - of.loss_fn_inputs["logprobs"].to_torch()) * of.loss_fn_inputs["advantages"].to_torch()
        for of, new in zip(data, log_probs, strict=True)
    ]
    return -sum(each.sum() for each in terms), {}


def _loop(service: Any, variant: str, audit: Any) -> Any:
    client = service.create_lora_training_client(base_model="tiny/model", rank=4).result()
    other = service.create_lora_training_client(base_model="tiny/model", rank=4).result()
    calls = len(PROMPTS) if variant == "accumulated" else 1
    plan = Schedule.ppo(actors=len(PROMPTS), steps=GROUP, rollouts=3, microbatches=calls)
    with audited(client, audit, plan, sampling={"temperature": 1.0}) as seen:
        for _ in range(3):
            sampler = client.save_weights_and_get_sampling_client().result()
            if variant == "evaluated":
                greedy = types.SamplingParams(max_tokens=4, temperature=1e-3)
                for prompt in PROMPTS:
                    sampler.sample(types.ModelInput.from_ints(prompt), 1, greedy).result()
            if variant == "two clients":
                other.forward_backward([gold(PROMPTS[0], [3, 4])], "cross_entropy").result()
                other.optim_step(types.AdamParams(learning_rate=RATE)).result()
            groups = [_rows(sampler, prompt, variant) for prompt in PROMPTS]
            if calls == 1:
                groups = [[row for rows in groups for row in rows]]
            for rows in groups:
                if variant == "a loss of its own":
                    client.forward_backward_custom(rows, _own).result()
                else:
                    client.forward_backward(rows, "importance_sampling").result()
            client.optim_step(types.AdamParams(learning_rate=RATE)).result()
    return seen


@pytest.mark.parametrize("variant", VARIANTS)
def test_healthy(home: Path, variant: str) -> None:
    """No finding, with the plan and without one; a loss that nobody documented is not evaluated."""
    for audit, verdict in (("planned", "PASS"), ("bare", "NOT_EVALUATED")):
        with served(home) as address, tinker.ServiceClient(base_url=address) as service:
            report = _loop(service, variant, audit).report
        assert [found for found in report.findings if found.severity != "info"] == []
        assert (report.verdict, report.counts.rollouts, report.counts.updates) == (verdict, 3, 3)
        assert ("formula" in report.not_evaluated) == (variant == "a loss of its own")
