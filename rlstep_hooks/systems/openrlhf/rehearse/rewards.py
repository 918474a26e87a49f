"""The user's reward function or agent in OpenRLHF: called as it is, watched, and asked once more with an empty response.

OpenRLHF calls a reward function with one sample at a time, and goes on without a reward where it raises (utils/agent.py, 0.11.2): the
run then ends later, with another message, or asks a reward model that there is none of. Here what it raised is said.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import wrapt

from rlstep_hooks.rehearse import data
from rlstep_hooks.rehearse.messages import Said, said, say, say_once, settings

if TYPE_CHECKING:
    from rlstep_hooks.rehearse.messages import Level

_SHOWN = 300
"""Characters of a response that a message shows."""
_FORMS = ("{}", "\\boxed{{{}}}", "<think>so</think>\n{}", "<think>\nso\n</think>\n<answer>\n{}\n</answer>", "#### {}")
"""Responses that hold a row's own answer."""
_PROBED = 4
"""Samples after which the function is asked about their own answers."""


def watch_function(module: Any) -> None:
    """`openrlhf.utils.agent`: the reward function is loaded where an engine's actor is built."""

    def around(wrapped: Any, executor: Any, args: Any, kwargs: Any) -> None:
        wrapped(*args, **kwargs)
        if executor.reward_func is not None:
            executor.reward_func = Watched(executor.reward_func)

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

        async def watched(*args: Any, **kwargs: Any) -> Any:
            try:
                found = await execute(*args, **kwargs)
            except Exception as error:
                missing = isinstance(error, ImportError)
                text = "needs what is not here:" if missing else "raised"
                _stop(f"the agent {text} {_described(error)}", "impossible" if missing else "problem")
                raise
            say("rewarded", name="the agent", value=_number(found.get("reward")))
            return found

        executor.execute = watched
        return executor

    module._load_agent_executor = _load_agent_executor


async def _without_server(wrapped: Any, executor: Any, args: Any, kwargs: Any) -> Any:
    """Rewards in the place of those of a server that this machine may not reach."""
    server = executor.reward_endpoints[0]
    say_once("reward server", f"the reward server {server}: not asked, rewards by the letters of a text", "replaced")
    queries = args[0] if args else kwargs["queries_list"]
    return [{"rewards": len(set(query)) / 100, "scores": len(set(query)) / 100} for query in queries]


class Watched:
    """What one reward function did."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._name = getattr(function, "__name__", type(function).__name__)
        self._probed = 0

    def __call__(self, queries: list[str], prompts: list[str], labels: list[Any]) -> Any:
        """Call the function as OpenRLHF does, and look at what it gives."""
        try:
            found = self._function(queries, prompts, labels)
        except Exception as error:
            self._raised(error, queries, prompts)
            raise
        self._look(found)
        if self._probed < _PROBED:
            self._probed += 1
            self._probe(prompts, labels)
        return found

    def _look(self, found: Any) -> None:
        if not isinstance(found, dict) or "rewards" not in found:
            kind = "a dict without it" if isinstance(found, dict) else type(found).__name__
            self._wrong(f'returned {kind}, not a dict with "rewards"')
            return
        rewards = found["rewards"]
        count = rewards.numel() if hasattr(rewards, "numel") else len(rewards) if hasattr(rewards, "__len__") else 1
        if count != 1:
            self._wrong(f"returned {count} rewards for 1 sample")
            return
        say("rewarded", name=self._name, value=_number(rewards))

    def _probe(self, prompts: list[str], labels: list[Any]) -> None:
        """Ask about an empty response, which any model may give, and about the row's own answer."""
        if self._probed == 1:
            try:
                self._function(list(prompts), prompts, labels)
            except Exception as error:  # noqa: BLE001 - this call is no part of the run
                self._wrong(f"raises {_described(error)} on an empty response")
        for form in _FORMS:
            queries = [prompt + form.format(label) for prompt, label in zip(prompts, labels, strict=True)]
            try:
                found = self._function(queries, prompts, labels)
                say("rewarded an answer", name=self._name, value=_number(found["rewards"]))
            except Exception:  # noqa: BLE001 - not an answer in this form
                continue

    def _raised(self, error: Exception, queries: list[str], prompts: list[str]) -> None:
        if isinstance(error, ImportError):
            _stop(f"{self._name} needs what is not here: {_described(error)}", "impossible")
            return
        query, prompt = str(queries[0]), str(prompts[0])
        response = query[len(prompt) :] if query.startswith(prompt) else query
        self._wrong(f"raised {_described(error)} on the response {response[:_SHOWN]!r}")

    def _wrong(self, text: str) -> None:
        _stop(f"{self._name} {text}")


def _stop(text: str, level: Level = "problem") -> None:
    """Say what is wrong; the run need not go on, and might wait for a reward that never comes."""
    say_once("reward", text, level)
    say_once("stop", text)


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


def sum_up() -> None:
    """Say what the rewards were like, once training has ended."""
    lines = said(settings())
    given = [each for each in lines if each.topic == "rewarded"]
    if not given or any(each.topic == "reward" and each.level == "problem" for each in lines):
        return
    name, values = given[0].values["name"], _values(given)
    if len(values) > 1:
        say("reward", f"{name}: different rewards for {len(given)} completions", signal=True, name=name)
        return
    answers = values | _values([each for each in lines if each.topic == "rewarded an answer"])
    differs = len(answers) > 1
    more = "; it does differ on the rows' own answers" if differs else ", and for the rows' own answers too"
    say(
        "reward",
        f"{name} gave {min(values, default=0.0):g} for each of {len(given)} completions of a random model{more}",
        level="fact" if differs else "warning",
        signal=differs,
        name=name,
    )


def _values(lines: list[Said]) -> set[float]:
    return {each.values["value"] for each in lines if each.values["value"] is not None}


def _number(reward: Any) -> float | None:
    found = reward.flatten()[0].item() if hasattr(reward, "flatten") else reward
    found = found[0] if isinstance(found, list | tuple) and found else found
    try:
        return float(found)
    except (TypeError, ValueError):
        return None


def _described(error: BaseException) -> str:
    made = ", on rows that were made" if data.made else ""
    return f"{type(error).__name__}: {error}".rstrip(": ") + made
