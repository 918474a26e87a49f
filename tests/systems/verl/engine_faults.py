"""Faults of the engine: its log-probs, where it is asked for them (of most the finding names the cause), and what it loads."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from tests.systems.verl.faults import fault, wrap_in_controller
from tests.systems.verl.number_faults import REQUESTS, on_requests, with_sampling


def _with_log_probs(at: int, alter: Any) -> None:
    """The engine gives other log-probs with the tokens of a rollout."""

    async def act(request: Any, kwargs: dict[str, Any]) -> Any:
        output = await request(**kwargs)
        output.log_probs = alter(list(output.log_probs))
        return output

    on_requests(at, act)


@fault(report="trl#4159", code="RLS403", variant="those at temperature 0.6")
def engine_scores_at_another_temperature(at: int) -> None:
    """The engine draws and scores at 0.6 times the temperature of the trainer."""
    with_sampling(at, temperature=0.6)


@fault(report="trl#7269", code="RLS403", variant="those of top_p 0.7")
def engine_scores_what_is_left(at: int) -> None:
    """The engine draws from the tokens that make up 0.7 of the distribution, and gives log-probs of that."""
    with_sampling(at, top_p=0.7)


@fault(report="vllm#32718, log-probs of fewer bits", code="RLS403", variant="its log-probs in bfloat16")
def engine_rounds_log_probs(at: int) -> None:
    """The engine's log-probs went through bfloat16."""

    def alter(log_probs: list[float]) -> list[float]:
        import torch

        rounded: list[float] = torch.tensor(log_probs).bfloat16().float().tolist()
        return rounded

    _with_log_probs(at, alter)


@fault(report="off by one between tokens and log-probs", code="RLS403", variant="that of the token before it")
def log_probs_of_the_token_before(at: int) -> None:
    """Each token has the log-prob of the one before it."""
    _with_log_probs(at, lambda log_probs: [*log_probs[:1], *log_probs[:-1]])


@fault(report="answers put together in another order", code="RLS403", variant="mean")
def log_probs_of_other_requests(at: int) -> None:
    """Each completion has the log-probs of another one of the rollout; the cause has no name where some completions are short."""
    waiting: list[Any] = []
    everyone = asyncio.Event()

    async def act(request: Any, kwargs: dict[str, Any]) -> Any:
        output = await request(**kwargs)
        waiting.append(output)
        if len(waiting) == REQUESTS:
            for length in {len(each.log_probs) for each in waiting}:
                alike = [each for each in waiting if len(each.log_probs) == length]
                given = [each.log_probs for each in alike]
                for own, others in zip(alike, [*given[1:], given[0]], strict=True):
                    own.log_probs = others
            everyone.set()
        await everyone.wait()
        return output

    on_requests(at, act)


@fault(report="trl#6789, tokens that a mean hides", code="RLS403", variant="tokens are outside of [0.9, 1.1]")
def log_probs_off_both_ways(at: int) -> None:
    """Every third token is off, by as much up as down.

    The distance is far enough for nine in ten of them to leave [0.9, 1.1] in spite of bfloat16's rounding (0.010 in the mean), and
    near enough for the mean of the rollout to stay below 0.05.
    """
    signs = itertools.cycle((1, 0, 0, -1, 0, 0))
    _with_log_probs(at, lambda log_probs: [value + 0.12 * sign for value, sign in zip(log_probs, signs, strict=False)])


@fault(report="verl#7495", code="RLS415", variant="the sync changed nothing", shows_after=1)
def push_not_loaded(at: int) -> None:
    """A push arrives, and the engine's loader drops it without a word.

    Pushes are counted, so a push that another fault leaves out moves this one to the next rollout.
    """
    pushes = itertools.count()

    def load_state_dict(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
        # The first push comes before the first rollout. Nothing else loads a state dict in the engine's process.
        return ((), ()) if next(pushes) == at + 1 else wrapped(*args, **kwargs)

    wrap_in_controller("torch.nn.modules.module", "Module", "load_state_dict", load_state_dict)
