"""Which sequence a row is taken for where several begin with its tokens."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tinker import types

from rlstep_hooks.systems.tinker.observe.drawn import Samplers
from rlstep_hooks.systems.tinker.observe.origins import Origins, Row

PROMPT = [5, 9, 13]


def _drawn(sequences: dict[str, list[int]]) -> Samplers:
    """A sampler whose one answer has these sequences; equal tokens have equal log-probs."""
    future: Future[Any] = Future()
    future.set_result(
        SimpleNamespace(
            sequences=[
                SimpleNamespace(
                    sequence_id=name,
                    tokens_np=np.array(tokens),
                    logprobs_np=np.array([-0.1 * token for token in tokens], np.float32),
                )
                for name, tokens in sequences.items()
            ]
        )
    )
    samplers = Samplers()
    samplers.asked(
        SimpleNamespace(_sampling_session_id="session"),
        future,
        types.ModelInput.from_ints(PROMPT),
        types.SamplingParams(max_tokens=4),
    )
    return samplers


def _row(tokens: list[int]) -> Row:
    before = len(PROMPT)
    counts = np.arange(before + len(tokens)) >= before
    scores = np.array([0.0] * before + [-0.1 * token for token in tokens], np.float32)
    return Row(np.array(PROMPT + tokens), counts, scores)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("longer_first", [False, True])
def test_a_stop_token_that_is_cut_off(*, longer_first: bool, ahead: bool) -> None:
    """A row that ends before its stop token is not taken for a longer sample that begins with the same tokens."""
    sequences = {"longer": [7, 12, 4], "shorter": [7, 4]}
    origins = Origins(_drawn(sequences if longer_first else dict(reversed(sequences.items()))), ahead=ahead)
    origins.collect()
    for _ in range(2):
        assert [turn.sequence for turn in origins.turns(_row([7]), trained=True)] == ["shorter"]
        assert [turn.sequence for turn in origins.turns(_row([7, 12]), trained=True)] == ["longer"]
