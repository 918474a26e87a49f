"""Loops over Tinker's client as different people write them, without a line of the cookbook; and the mistakes that they make.

Each takes the client of a service, an audit to enter (or none), and the name of a mistake; rewards are the share of even tokens.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tinker
import torch
from tinker import types

from rlstep_hooks import Schedule, StepAuditTinker

if TYPE_CHECKING:
    from collections.abc import Callable

Audit = Literal["planned", "bare", "none"]
PROMPTS = [[5, 9, 13, 2], [7, 7, 30], [11, 3, 8, 21, 40], [2, 17, 29]]
GROUP = 4
LENGTH = 6
RATE = 1e-2


def reward(tokens: Any) -> float:
    """The share of even tokens, with something for length that makes ties rare."""
    return sum(token % 2 == 0 for token in tokens) / len(tokens) + 0.01 * len(tokens)


def audited(client: Any, audit: Audit, schedule: Schedule, **told: Any) -> Any:
    """The audit of a loop that says its plan, of one that says nothing, or none."""
    if audit == "planned":
        return StepAuditTinker(client, schedule, log_dir=None, listeners=(), **told)
    return StepAuditTinker(client, log_dir=None, listeners=()) if audit == "bare" else nullcontext()


def datum(prompt: list[int], tokens: list[int], log_probs: list[float], advantage: float) -> types.Datum:
    """The row of one sample, as the documentation of the losses builds it."""
    row, before = prompt + tokens, len(prompt) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(row[:-1]),
        loss_fn_inputs={
            "target_tokens": row[1:],
            "logprobs": [0.0] * before + log_probs,
            "advantages": [0.0] * before + [advantage] * len(tokens),
        },
    )


# One person: GRPO by hand, one update a batch, synchronous calls.


def grpo(service: tinker.ServiceClient, *, audit: Audit = "planned", broken: str = "", rounds: int = 4) -> Any:
    """GRPO with one update a batch."""
    client = service.create_lora_training_client(base_model="tiny/model", rank=4)
    settings = types.SamplingParams(max_tokens=LENGTH, temperature=0.5 if broken == "temperature" else 1.0)
    plan = Schedule.ppo(actors=len(PROMPTS), steps=GROUP, rollouts=rounds)
    told = {
        "loss": "importance_sampling",
        "learning_rate": RATE,
        "adam": types.AdamParams(),
        "sampling": {"temperature": 1.0},
    }
    first = None
    with audited(client, audit, plan, **told) as seen:
        for number in range(rounds):
            late = number == 2
            sampler = client.save_weights_and_get_sampling_client()
            sampler = sampler.result()
            first = first or sampler
            if broken == "first sampler":
                sampler = first
            futures = [sampler.sample(types.ModelInput.from_ints(prompt), GROUP, settings) for prompt in PROMPTS]
            data = []
            for prompt, future in zip(PROMPTS, futures, strict=True):
                drawn = [(list(one.tokens), list(one.logprobs)) for one in future.result().sequences]
                rewards = np.array([reward(tokens) for tokens, _ in drawn])
                for (tokens, log_probs), advantage in zip(drawn, rewards - rewards.mean(), strict=True):
                    data.append(_grpo_row(broken if late else "", prompt, tokens, log_probs, float(advantage), drawn))
            if broken == "samples left out" and late:
                data = data[:-3]
            if broken == "a sample twice" and late:
                data = [data[1], *data[1:]]
            rate = RATE / 2 if broken == "rate" and late else RATE
            passed = client.forward_backward(
                data, "ppo" if broken == "another loss" and late else "importance_sampling"
            )
            if broken == "forward_backward twice" and late:
                client.forward_backward(data, "importance_sampling").result()
            if not (broken == "no step" and late):
                client.optim_step(
                    types.AdamParams(learning_rate=rate, beta2=0.999 if broken == "beta" else 0.95)
                ).result()
            if broken == "two steps" and late:
                client.optim_step(types.AdamParams(learning_rate=rate)).result()
            passed.result()
    return seen


def _grpo_row(
    broken: str, prompt: list[int], tokens: list[int], scores: list[float], advantage: float, group: Any
) -> Any:
    if broken == "last token" and len(tokens) > 2:
        tokens = [*tokens[:-1], (tokens[-1] + 1) % 50]
    if broken == "prompt cut":
        prompt = prompt[1:]
    if broken == "zeros":
        scores = [0.0] * len(scores)
    if broken == "log-probs of the next token":
        scores = [*scores[1:], 0.0]
    if broken == "log-probs of others":
        scores = next(
            (list(other) for _, other in group if len(other) == len(scores) and list(other) != scores), scores
        )
    made = datum(prompt, tokens, scores, advantage)
    if broken == "advantage of the prompt":
        made.loss_fn_inputs["advantages"] = types.TensorData.from_numpy(
            np.full(len(prompt) + len(tokens) - 1, advantage, np.float32)
        )
    if broken == "targets not shifted":
        made.loss_fn_inputs["target_tokens"] = types.TensorData.from_numpy(np.array(prompt + tokens)[:-1])
    return made


# Another: PPO with two passes of two mini-batches, in asyncio, pipelined, with advantages that each mini-batch normalises, a rate that
# falls, a stop token that is cut off, and weights that come by a path.

PASSES, PARTS = 2, 2


def ppo(service: tinker.ServiceClient, *, audit: Audit = "planned", broken: str = "", rounds: int = 3) -> Any:
    """PPO with several updates a rollout."""
    return asyncio.run(_ppo(service, audit=audit, broken=broken, rounds=rounds))


async def _ppo(service: tinker.ServiceClient, *, audit: Audit, broken: str, rounds: int) -> Any:
    client = await service.create_lora_training_client_async(base_model="tiny/model", rank=4)
    sampler: Any = await service.create_sampling_client_async(base_model="tiny/model")
    plan = Schedule.ppo(actors=len(PROMPTS), steps=GROUP, epochs=PASSES, minibatches=PARTS, rollouts=rounds)
    clips = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.3}
    shuffle = random.Random(3)

    def rate(rollout: int, update: int) -> float:
        return RATE * (1 - update / (rounds * PASSES * PARTS + 1))

    with audited(client, audit, plan, loss="ppo", loss_config=clips, learning_rate=rate) as seen:
        updates = 0
        for number in range(rounds):
            late = number == 1
            rows = [
                row for rows in await asyncio.gather(*(_group(sampler, prompt) for prompt in PROMPTS)) for row in rows
            ]
            for part in range(PASSES):
                if not (broken == "not shuffled" or part == 0):
                    shuffle.shuffle(rows)
                batches = [rows[at::PARTS] for at in range(PARTS)]
                if broken == "mini-batch twice" and late and part == 1:
                    batches = [batches[0], batches[0]]
                if broken == "one pass" and late and part == 1:
                    break
                for batch in batches:
                    advantages = torch.tensor([row[3] for row in batch])
                    normalised = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
                    data = [
                        _ppo_row(row, float(own), broken if late else "")
                        for row, own in zip(batch, normalised, strict=True)
                    ]
                    bounds = {} if broken == "bounds" and late else clips
                    passed = client.forward_backward(data, "ppo", bounds)
                    due = rate(number, number * PASSES * PARTS if broken == "rate by rollout" else updates)
                    stepped = client.optim_step(types.AdamParams(learning_rate=due))
                    updates += 1
                    await passed
                    await stepped
            saved = await client.save_weights_for_sampler(f"step-{number}")
            if not (broken == "old path" and late):
                sampler = await service.create_sampling_client_async(model_path=saved.path)
    return seen


async def _group(sampler: Any, prompt: list[int]) -> list[tuple[list[int], list[int], list[float], float]]:
    answer = await sampler.sample_async(
        prompt=types.ModelInput.from_ints(prompt),
        num_samples=GROUP,
        sampling_params=types.SamplingParams(max_tokens=LENGTH, stop=[4]),
    )
    rows = []
    for one in answer.sequences:
        tokens, scores = list(one.tokens), list(one.logprobs)
        if len(tokens) > 1 and tokens[-1] == 4:
            tokens, scores = tokens[:-1], scores[:-1]
        rows.append((prompt, tokens, scores, reward(tokens)))
    return rows


def _ppo_row(row: tuple[list[int], list[int], list[float], float], advantage: float, broken: str) -> types.Datum:
    prompt, tokens, scores, _ = row
    if broken == "shifted":
        scores = [0.0, *scores[:-1]]
    return datum(prompt, tokens, scores, advantage)


# A third: samples drawn ahead, by weights that are one or two rollouts old, and old log-probs from the sampler.


def ahead(
    service: tinker.ServiceClient, *, audit: Audit = "planned", broken: str = "", rounds: int = 5, age: int = 2
) -> Any:
    """Asynchronous sampling: a queue of batches that were asked for earlier."""
    client = service.create_lora_training_client(base_model="tiny/model", rank=4)
    plan = Schedule.ppo(actors=len(PROMPTS), steps=GROUP, rollouts=rounds)
    settings = types.SamplingParams(max_tokens=LENGTH)
    told = {
        "loss": "cispo",
        "learning_rate": lambda rollout, update: RATE * min(1.0, (rollout + 1) / 3),
        "max_age": age,
    }
    with audited(client, audit, plan, **told) as seen:
        queue: deque[Any] = deque()
        sampler: Any = None
        for number in range(rounds):
            if sampler is None or not (broken == "stale" and number):
                sampler = client.save_weights_and_get_sampling_client().result()
            while len(queue) <= age:
                queue.append([(p, sampler.sample(types.ModelInput.from_ints(p), GROUP, settings)) for p in PROMPTS])
            data = []
            for prompt, future in queue.popleft():
                sequences = future.result().sequences
                mean = sum(reward(one.tokens) for one in sequences) / GROUP
                data += [datum(prompt, list(s.tokens), list(s.logprobs), reward(s.tokens) - mean) for s in sequences]
            client.forward_backward(data, "cispo").result()
            rate = RATE if broken == "no warm-up" else RATE * min(1.0, (number + 1) / 3)
            client.optim_step(types.AdamParams(learning_rate=rate)).result()
    return seen


# A fourth: a supervised warm-up, then two turns a sample with a user between them, gradients of two halves in one update.

ANSWERS = [[4, 6, 8], [10, 12], [2, 4, 6, 8], [6, 6]]
USER = [33, 34]


def warmed(service: tinker.ServiceClient, *, audit: Audit = "planned", broken: str = "", rounds: int = 3) -> Any:
    """Supervision, then reinforcement in several turns."""
    client = service.create_lora_training_client(base_model="tiny/model", rank=4)
    plan = Schedule.ppo(actors=len(PROMPTS), steps=2, microbatches=2, rollouts=rounds)
    with audited(client, audit, plan, loss="importance_sampling") as seen:
        base = service.create_sampling_client(base_model="tiny/model").result()
        for _ in range(3):
            client.forward_backward(
                [gold(*pair) for pair in zip(PROMPTS, ANSWERS, strict=True)], "cross_entropy"
            ).result()
            client.optim_step(types.AdamParams(learning_rate=RATE)).result()
        for number in range(rounds):
            sampler = base if broken == "base" else client.save_weights_and_get_sampling_client().result()
            episodes = [_episode(sampler, prompt) for prompt in PROMPTS for _ in range(2)]
            mean = sum(each[3] for each in episodes) / len(episodes)
            data = [_two_turns(*each[:3], each[3] - mean, broken if number == 1 else "") for each in episodes]
            half = len(data) // 2
            futures = [client.forward_backward(part, "importance_sampling") for part in (data[:half], data[half:])]
            if broken == "step between" and number == 1:
                futures = futures[:1]
                client.optim_step(types.AdamParams(learning_rate=RATE)).result()
            client.optim_step(types.AdamParams(learning_rate=RATE)).result()
            for future in futures:
                future.result()
    return seen


def gold(prompt: list[int], answer: list[int]) -> types.Datum:
    """The row of an answer that is trained by supervision."""
    row = prompt + answer
    weights = [0.0] * (len(prompt) - 1) + [1.0] * len(answer)
    return types.Datum(
        model_input=types.ModelInput.from_ints(row[:-1]), loss_fn_inputs={"target_tokens": row[1:], "weights": weights}
    )


def _episode(sampler: Any, prompt: list[int]) -> tuple[list[int], Any, Any, float]:
    settings = types.SamplingParams(max_tokens=4)
    first = sampler.sample(types.ModelInput.from_ints(prompt), 1, settings).result().sequences[0]
    more = prompt + list(first.tokens) + USER
    second = sampler.sample(types.ModelInput.from_ints(more), 1, settings).result().sequences[0]
    return prompt, first, second, reward(list(first.tokens) + list(second.tokens))


def _two_turns(prompt: list[int], first: Any, second: Any, advantage: float, broken: str) -> types.Datum:
    user = [33, 35] if broken == "another user" else USER
    row = prompt + list(first.tokens) + user + list(second.tokens)
    drawn = [0.0] * len(prompt) + [1.0] * len(first.tokens) + [0.0] * len(user) + [1.0] * len(second.tokens)
    if broken == "user trained":
        drawn = [float(at >= len(prompt)) for at in range(len(row))]
    scores = [0.0] * len(prompt) + list(first.logprobs) + [0.0] * len(user) + list(second.logprobs)
    return types.Datum(
        model_input=types.ModelInput.from_ints(row[:-1]),
        loss_fn_inputs={
            "target_tokens": row[1:],
            "logprobs": scores[1:],
            "advantages": [advantage * counts for counts in drawn[1:]],
        },
    )


# A fifth: old log-probs that the training client computes again before the updates, and dro.


def recomputed(service: tinker.ServiceClient, *, audit: Audit = "planned", broken: str = "", rounds: int = 3) -> Any:
    """Old log-probs by a forward of the training client, two updates on them."""
    client = service.create_lora_training_client(base_model="tiny/model", rank=4)
    plan = Schedule.ppo(actors=len(PROMPTS), steps=GROUP, epochs=2, rollouts=rounds, old_logprobs="recompute")
    settings = types.SamplingParams(max_tokens=LENGTH)
    with audited(client, audit, plan, loss="dro", loss_config={"beta": 0.05}) as seen:
        old: list[Any] = []
        for number in range(rounds):
            sampler = client.save_weights_and_get_sampling_client().result()
            drawn = [
                (prompt, one)
                for prompt in PROMPTS
                for one in sampler.sample(types.ModelInput.from_ints(prompt), GROUP, settings).result().sequences
            ]
            plain = [
                datum(prompt, list(one.tokens), list(one.logprobs), reward(one.tokens) - 0.5) for prompt, one in drawn
            ]
            for _ in range(2):
                if not old or broken == "recomputed each time":
                    outputs = client.forward(plain, "importance_sampling").result().loss_fn_outputs
                    old = [np.asarray(each["logprobs"].to_numpy()) for each in outputs]
                data = [_with_old(one, of) for one, of in zip(plain, old, strict=True)]
                client.forward_backward(data, "dro", {"beta": 0.05}).result()
                client.optim_step(types.AdamParams(learning_rate=RATE)).result()
            if not (broken == "kept" and number == 0):
                old = []
    return seen


def _with_old(one: types.Datum, old: np.ndarray) -> types.Datum:
    tokens = len(one.loss_fn_inputs["advantages"].to_numpy())
    kept = np.resize(old, tokens).astype(np.float32)
    kept[one.loss_fn_inputs["advantages"].to_numpy() == 0] = 0
    return types.Datum(
        model_input=one.model_input,
        loss_fn_inputs=one.loss_fn_inputs | {"logprobs": types.TensorData.from_numpy(kept)},
    )


# A sixth: the best of each group by supervision, with a loss that the service does not know in the end.


def best(service: tinker.ServiceClient, *, audit: Audit = "planned", broken: str = "", rounds: int = 3) -> Any:
    """Rejection sampling: samples above the mean, and only those."""
    client = service.create_lora_training_client(base_model="tiny/model", rank=4)
    plan = Schedule.ppo(actors=len(PROMPTS), steps=GROUP, rollouts=rounds)
    settings = types.SamplingParams(max_tokens=LENGTH)
    with audited(client, audit, plan, loss="cross_entropy", filtered=True, learning_rate=RATE) as seen:
        for _ in range(rounds):
            sampler = client.save_weights_and_get_sampling_client().result()
            data = []
            for prompt in PROMPTS:
                sequences = sampler.sample(types.ModelInput.from_ints(prompt), GROUP, settings).result().sequences
                mean = sum(reward(one.tokens) for one in sequences) / GROUP
                data += [gold(prompt, list(one.tokens)) for one in sequences if reward(one.tokens) > mean]
            client.forward_backward(data, "cross_entropy").result()
            client.optim_step(types.AdamParams(learning_rate=0.0 if broken == "rate at zero" else RATE)).result()
    return seen


LOOPS: dict[str, Callable[..., Any]] = {
    "grpo": grpo,
    "ppo": ppo,
    "ahead": ahead,
    "warmed": warmed,
    "recomputed": recomputed,
    "best": best,
}
