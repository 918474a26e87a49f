"""More of the fault corpus of verl (`tests.systems.verl.faults`): what samples are asked and scored about, where agent loops run.

These processes do not know which rollout they work for, and each rollout has as many samples.
"""

from __future__ import annotations

import itertools
from typing import Any

from tests.systems.verl.faults import fault, wrap_in_controller

LOOP = "verl.experimental.agent_loop.agent_loop"
MANAGER = "verl.experimental.reward_loop.reward_manager.naive"
SAMPLES = 16
"""Of a rollout."""


@fault(report="a parser that is handed what it parsed before", code="RLS515", variant="asked about another text")
def function_asked_about_a_cut_text(at: int) -> None:
    """The reward function gets the text of each completion without its last three tokens."""
    scored = itertools.count()

    async def run_single(wrapped: Any, manager: Any, args: Any, kwargs: Any) -> Any:
        data = args[0] if args else kwargs["data"]
        if next(scored) // SAMPLES == at:
            mask = data.batch["attention_mask"].clone()
            mask[:, -3:] = 0
            data.batch["attention_mask"] = mask
        return await wrapped(*args, **kwargs)

    wrap_in_controller(MANAGER, "NaiveRewardManager", "run_single", run_single)


@fault(report="answers of a reward server in another order", code="RLS515", variant="another score than the function")
def score_of_the_sample_before(at: int) -> None:
    """A sample is given the score of the sample that was scored before it."""
    scored, before = itertools.count(), [0.0]

    async def run_single(wrapped: Any, manager: Any, args: Any, kwargs: Any) -> Any:
        rollout, result = next(scored) // SAMPLES, await wrapped(*args, **kwargs)
        own, given = result["reward_score"], before[0]
        before[0] = own
        return {**result, "reward_score": given} if rollout == at else result

    wrap_in_controller(MANAGER, "NaiveRewardManager", "run_single", run_single)


@fault(report="rewards in a column of integers", code="RLS515", variant="samples with other rewards")
def rewards_rounded_behind_the_manager(at: int) -> None:
    """The reward of each sample is rounded on its way from the reward manager into the sample."""
    scored = itertools.count()

    async def compute_score(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        rollout, result = next(scored) // SAMPLES, await wrapped(*args, **kwargs)
        if rollout == at:
            last = (args[0] if args else kwargs["outputs"])[-1]
            last.reward_score = round(last.reward_score * 8) / 8 + 0.1
        return result

    wrap_in_controller(LOOP, "AgentLoopWorker", "_compute_score", compute_score)


@fault(report="a cache of encoded prompts", code="RLS306", variant="of those that were encoded again")
def prompts_without_their_last_token(at: int) -> None:
    """The engine is asked, and the policy is trained, behind prompts whose last token is lost."""
    begun = itertools.count()

    async def ct_build_initial_tokens(wrapped: Any, loop: Any, args: Any, kwargs: Any) -> Any:
        rollout, tokens = next(begun) // SAMPLES, await wrapped(*args, **kwargs)
        return tokens[:-1] if rollout == at else tokens

    wrap_in_controller(LOOP, "AgentLoopBase", "ct_build_initial_tokens", ct_build_initial_tokens)
