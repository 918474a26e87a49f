"""Prompts of verl's single-turn agent loop, encoded once more as verl documents it, in the processes where the loops run.

A prompt is the chat template of the row's messages with a generation prompt, and of one that is too long the end is kept
(experimental/agent_loop/single_turn_agent_loop.py 0.9.1:54, agent_loop.py 0.9.1:446, utils/tokenizer/continuous_token.py 0.9.1:226).
"""

from __future__ import annotations

import copy
from typing import Any

from rlstep_hooks.record import cadence

PROMPTS = 4
"""Sessions of a step whose prompt is encoded again in one process, since that costs time."""
SINGLE_TURN = "single_turn_agent"


class EncodedPrompts:
    """Chooses sessions, and encodes their prompts."""

    def __init__(self) -> None:
        self._steps: dict[Any, int] = {}
        """Step of the trainer -> sessions of it that were chosen."""
        self._tokenizer: Any = None

    def begin(self, worker: Any, loop: str, step: Any, messages: Any) -> list[Any] | None:
        """A session begins.

        Args:
            worker: verl's, which runs it.
            loop: Name of the agent loop.
            step: The trainer's step that it is for.
            messages: The prompt of the row.

        Returns:
            The messages, which nobody can write to any more; None where the prompt is not encoded again.
        """
        chosen = self._steps.setdefault(step, 0)
        number = len(self._steps) - 1
        looks = number < cadence.ALL_OF_FIRST or number % cadence.ONE_OF == 0
        if loop != SINGLE_TURN or worker.processor is not None or not looks or chosen >= PROMPTS:
            return None
        self._steps[step] = chosen + 1
        return copy.deepcopy(list(messages))

    def tokens(self, worker: Any, messages: list[Any]) -> list[int]:
        """The tokens of a whole prompt."""
        if self._tokenizer is None:
            # The tokenizer of the worker may be at work in other threads, and a fast one does not bear two at a time.
            self._tokenizer = copy.deepcopy(worker.tokenizer)
        given = dict(worker.config.data.get("apply_chat_template_kwargs") or {})
        tokens = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **given
        )
        return list(tokens)
