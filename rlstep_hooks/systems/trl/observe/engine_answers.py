"""What TRL's vLLM engine was asked for and gave, request by request, where that can be seen in this process.

`VLLMGeneration.generate` asks an `LLM` of this process (colocate) or a client of a server, and hands on what they give
(generation/vllm_generation.py 1.16.0:643). The hook is placed there, so that what TRL makes of the answers is under judgement too. A
`rollout_func` calls one of them by itself.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from rlstep_hooks.observe.turn_rows import Ids, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlstep_hooks.observe.hooks import Call


class EngineCalls(NamedTuple):
    """Where an engine is asked, and how a call is read."""

    owner: Any
    """What has the method `generate`."""
    read: Callable[[Call], list[Request]]
    """The requests of one call, each with what was given for it; a prompt with several completions stands once for each."""


def engine_calls(trainer: Any) -> EngineCalls | None:
    """Where the engine of a trainer is asked; None where this release asks it in another way than those that were read."""
    generation = getattr(trainer, "vllm_generation", None)
    places = (
        EngineCalls(getattr(generation, "llm", None), _of_llm),
        EngineCalls(getattr(generation, "vllm_client", None), _of_client),
        EngineCalls(generation, _of_generation),
    )
    return next((place for place in places if callable(getattr(place.owner, "generate", None))), None)


def _of_llm(call: Call) -> list[Request]:
    """`LLM.generate` of vLLM takes prompts and gives a `RequestOutput` for each, with its completions."""
    prompts = call.argument("prompts", 0)
    asked = prompts if isinstance(prompts, list) and len(prompts) == len(call.result) else [None] * len(call.result)
    return [
        Request(_with_images(prompt) or list(answer.prompt_token_ids), list(given.token_ids), _of_dictionaries(given))
        for prompt, answer in zip(asked, call.result, strict=True)
        for given in answer.outputs
    ]


def _of_client(call: Call) -> list[Request]:
    """`VLLMClient.generate` takes prompts and gives lists, the completions of one prompt behind each other."""
    result = call.result
    return _of_lists(
        result["prompt_ids"], result["completion_ids"], result.get("logprobs"), result.get("logprob_token_ids")
    )


def _of_generation(call: Call) -> list[Request]:
    """`VLLMGeneration.generate` takes each prompt once for each of its completions, and gives a tuple of lists."""
    _, given, log_probs, tokens = call.result
    return _of_lists(call.argument("prompts", 0), given, log_probs, tokens)


def _of_lists(asked: Sequence[Ids], given: Sequence[Ids], log_probs: Any, tokens: Any) -> list[Request]:
    copies = len(given) // max(len(asked), 1)
    if not copies or copies * len(asked) != len(given):
        return []
    return [
        Request(
            list(asked[place // copies]),
            list(ids),
            _told(ids, log_probs[place] if log_probs else None, tokens[place] if tokens else None),
        )
        for place, ids in enumerate(given)
    ]


def _with_images(prompt: Any) -> Ids:
    """The tokens of a prompt with images, whose places vLLM may write anew; none of any other prompt."""
    if not isinstance(prompt, dict) or not prompt.get("multi_modal_data"):
        return []
    return list(prompt.get("prompt_token_ids") or [])


def _of_dictionaries(given: Any) -> list[float] | None:
    """The log-prob of each drawn token; vLLM may tell those of others beside it."""
    if not given.logprobs or len(given.logprobs) != len(given.token_ids):
        return None
    return _float32([of[token].logprob for token, of in zip(given.token_ids, given.logprobs, strict=True)])


def _told(ids: Ids, log_probs: Any, tokens: Any) -> list[float] | None:
    """The log-prob of each drawn token, from the list that is told for it, the first of which is the only one as TRL asks."""
    if not log_probs or len(log_probs) != len(ids):
        return None
    places = [0] * len(ids) if tokens is None else [of.index(one) for one, of in zip(ids, tokens, strict=True)]
    return _float32([of[place] for place, of in zip(places, log_probs, strict=True)])


def _float32(numbers: list[float | None]) -> list[float]:
    """The numbers as the loss gets them, nan where none is known."""
    return list(torch.tensor([math.nan if one is None else one for one in numbers], dtype=torch.float32).tolist())


def as_tensors(requests: Sequence[Request], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, P), the prompts padded on the left, and (N, P + T), these with what was given, padded on the right: as `generate` of
    transformers takes and gives them."""
    before, behind = max(len(one.asked) for one in requests), max(len(one.given) for one in requests)
    rows = [[pad] * (before - len(one.asked)) + one.whole + [pad] * (behind - len(one.given)) for one in requests]
    whole = torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)
    return whole[:, :before], whole
