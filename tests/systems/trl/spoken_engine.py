"""Stand-ins for vLLM beside a scripted policy: they give what the policy's script has, or what the policy draws, with its log-probs.

What TRL makes of their answers is TRL's own code: all of `VLLMGeneration.generate` where the stand-in is the client of a server or an
`LLM` of the trainer's process.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from tests.systems.trl.multi_turn import log_probs_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

Answer = tuple[list[int], list[int], list[float]]
"""The tokens of a prompt, those of its answer, and their log-probs."""


class Spoken:
    """What an engine answers.

    Args:
        trainer: Has the policy that speaks.
        change: Makes what is told of one call of what was drawn.
    """

    def __init__(self, trainer: Any, change: Callable[[list[Answer]], list[Answer]] = list) -> None:
        self._trainer, self._change = trainer, change

    def __call__(self, prompts: list[list[int]]) -> list[Answer]:
        """Answer the prompts of one call."""
        model, config = self._trainer.model, self._trainer.generation_config
        told = []
        for place, ids in enumerate(prompts):
            if model.script is None:
                given = model.generate(torch.tensor([ids]), generation_config=config)[0, len(ids) :].tolist()
            else:
                given = model.script(model.tokenizer.decode(ids), place)[: config.max_new_tokens]
            told.append((ids, given, log_probs_of(model, ids, given)))
        return self._change(told)


class Served:
    """The client of a server."""

    def __init__(self, spoken: Spoken) -> None:
        self._spoken = spoken

    def generate(self, prompts: list[list[int]], n: int = 1, **settings: Any) -> dict[str, Any]:
        """Answer each prompt n times, with the log-probs of another token before that of the drawn one, where they are asked for."""
        answers = self._spoken([ids for ids in prompts for _ in range(n)])
        return {
            "prompt_ids": prompts,
            "completion_ids": [given for _, given, _ in answers],
            "logprobs": [[[one] for one in values] for *_, values in answers],
            "logprob_token_ids": [[[one] for one in given] for _, given, _ in answers],
        }


class Colocated:
    """An `LLM` of vLLM."""

    llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=2048))

    def __init__(self, spoken: Spoken) -> None:
        self._spoken = spoken

    def generate(self, prompts: list[Any], sampling_params: Any = None, use_tqdm: bool = True) -> list[Any]:
        """Answer each prompt."""
        return [
            SimpleNamespace(
                prompt_token_ids=asked,
                outputs=[
                    SimpleNamespace(
                        token_ids=given,
                        logprobs=[
                            {one: SimpleNamespace(logprob=of, rank=1)} for one, of in zip(given, values, strict=True)
                        ],
                    )
                ],
            )
            for asked, given, values in self._spoken([prompt["prompt_token_ids"] for prompt in prompts])
        ]


def with_engine(
    mode: str, patch: pytest.MonkeyPatch, change: Callable[[list[Answer]], list[Answer]] = list
) -> Callable[[Any], None]:
    """A function that has a trainer sample with a stand-in, in a server or in its own process ("colocate")."""
    from trl.generation import vllm_generation

    patch.setattr(vllm_generation, "SamplingParams", dict, raising=False)

    def apply(trainer: Any) -> None:
        generation: Any = object.__new__(vllm_generation.VLLMGeneration)
        spoken = Spoken(trainer, change)
        generation.vllm_client, generation.llm = (
            (Served(spoken), None) if mode == "server" else (None, Colocated(spoken))
        )
        vars(generation).update(
            model=trainer.model,
            accelerator=trainer.accelerator,
            mode=mode,
            tensor_parallel_size=1,
            enable_sleep_mode=False,
            structured_outputs_regex=None,
            generation_kwargs={},
            logprobs=0,
            sync_weights=lambda: None,  # it speaks with the policy's own weights
            **{name: getattr(trainer, name) for name in _SETTINGS},
        )
        trainer.use_vllm, trainer.vllm_mode = True, mode
        trainer.vllm_importance_sampling_correction = True
        trainer.vllm_generation, trainer._last_loaded_step = generation, -1

    return apply


_SETTINGS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length")
