"""The user's reward function or agent in OpenRLHF, watched where its engines call it.

OpenRLHF calls a reward function with one sample at a time, and goes on without a reward where it raises (utils/agent.py, 0.11.2): the
run then ends later, with another message, or asks a reward model that there is none of. Here what it raised is said.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import wrapt

from rlstep_hooks.rehearse.asked.witnesses import Row
from rlstep_hooks.rehearse.messages import say_once, settings
from rlstep_hooks.rehearse.rewards import Call, Watched, WrongRewardsError, timed

if TYPE_CHECKING:
    from collections.abc import Sequence


def watch_function(module: Any) -> None:
    """`openrlhf.utils.agent`: the reward function is loaded where an engine's actor is built."""

    def around(wrapped: Any, executor: Any, args: Any, kwargs: Any) -> None:
        wrapped(*args, **kwargs)
        if executor.reward_func is not None:
            executor.reward_func = watch(executor.reward_func)

    wrapt.wrap_function_wrapper(module.SingleTurnAgentExecutor, "__init__", around)
    if not settings().online:
        wrapt.wrap_function_wrapper(module.SingleTurnAgentExecutor, "_fetch_rewards_via_http", _without_server)


def watch_agent(module: Any) -> None:
    """`openrlhf.trainer.ray.vllm_engine`: the user's agent executor."""
    original = module._load_agent_executor

    @functools.wraps(original)
    def _load_agent_executor(path: str) -> Any:
        executor = original(path)
        execute = executor.execute
        watched = Watched("the agent", lambda found, _: [_number(found.get("reward"))], waits=True)

        async def watched_execute(*args: Any, **kwargs: Any) -> Any:
            call = Call(completions=())
            with watched.calling(call):
                found = await execute(*args, **kwargs)
            watched.gave(call, found)
            return found

        executor.execute = watched_execute
        return executor

    module._load_agent_executor = _load_agent_executor


async def _without_server(wrapped: Any, executor: Any, args: Any, kwargs: Any) -> Any:
    """Rewards in the place of those of a server that this machine may not reach."""
    server = executor.reward_endpoints[0]
    say_once("reward server", f"the reward server {server}: not asked, rewards by the letters of a text", "replaced")
    queries = args[0] if args else kwargs["queries_list"]
    return [{"rewards": len(set(query)) / 100, "scores": len(set(query)) / 100} for query in queries]


def watch(function: Any) -> Any:
    """A reward function that is watched; OpenRLHF calls it with one sample at a time."""
    name = getattr(function, "__name__", type(function).__name__)
    watched = Watched(name, _rewards_of, function=function, waits=True)

    def called(queries: list[str], prompts: list[str], labels: list[Any]) -> Any:
        def ask(places: Sequence[int], texts: Sequence[str | None]) -> Any:
            given = queries if texts[0] is None else [prompts[0] + texts[0]]
            return function(given, prompts, labels)

        query, prompt = str(queries[0]), str(prompts[0])
        row = Row(prompt=prompt, columns=(("label", labels[0]),))
        call = Call(completions=[query.removeprefix(prompt)], rows=[row], ask=ask)
        with watched.calling(call), timed() as seconds:
            found = function(queries, prompts, labels)
        watched.gave(call, found, seconds())
        return found

    return called


def _rewards_of(found: Any, wanted: int) -> list[float | None]:
    if not isinstance(found, dict) or "rewards" not in found:
        kind = "a dict without it" if isinstance(found, dict) else type(found).__name__
        raise WrongRewardsError(f'returned {kind}, not a dict with "rewards"')
    rewards = found["rewards"]
    count = rewards.numel() if hasattr(rewards, "numel") else len(rewards) if hasattr(rewards, "__len__") else 1
    if count != 1:
        raise WrongRewardsError(f"returned {count} rewards for 1 sample")
    return [_number(rewards)]


def look_at_normalization(module: Any) -> None:
    """`openrlhf.models.model`: what `--reward.normalize_enable` divides by must be what the configuration says, or 1.

    transformers 5 loads models without memory and leaves buffers that no checkpoint has as they come (modeling_utils.py,
    `_move_missing_keys_from_meta_to_device`, 5.15 and 5.19), but not under ZeRO-3 (OpenRLHF 0.11.2, models/model.py:205).
    """
    original = module.get_llm_for_sequence_regression

    @functools.wraps(original)
    def get_llm_for_sequence_regression(*args: Any, **kwargs: Any) -> Any:
        model = original(*args, **kwargs)
        if not getattr(model, "normalize_reward", False):
            return model
        mean, deviation = getattr(model.config, "mean", 0.0), getattr(model.config, "std", 1.0)
        held = float(model.mean[0]), float(model.std[0])
        if max(abs(held[0] - mean), abs(held[1] - deviation)) > 0.01 * max(abs(mean), deviation):
            say_once(
                "settings",
                f"--reward.normalize_enable subtracts {held[0]:g} and divides by {held[1]:g}, not {mean:g} and {deviation:g}: "
                "transformers leaves these buffers unset below --ds.zero_stage 3",
                "problem",
            )
        return model

    module.get_llm_for_sequence_regression = get_llm_for_sequence_regression


def _number(reward: Any) -> float | None:
    found = reward.flatten()[0].item() if hasattr(reward, "flatten") else reward
    found = found[0] if isinstance(found, list | tuple) and found else found
    try:
        return float(found)
    except (TypeError, ValueError):
        return None
