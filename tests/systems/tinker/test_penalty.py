"""The documented KL penalty beside the cookbook's own function, on random data without a model."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tinker
from tinker_cookbook.rl import metrics

from rlstep_hooks.systems.tinker.observe.data import Sent
from rlstep_hooks.systems.tinker.observe.penalty import Penalty, scored

TOKENS = (5, 9, 3)


def _data(generator: np.random.Generator) -> list[Any]:
    """Data whose first two tokens are of prompts."""
    made = []
    for tokens in TOKENS:
        mask = (np.arange(tokens) >= 2).astype(np.float32)
        inputs = {
            "target_tokens": generator.integers(1, 50, tokens),
            "logprobs": (-3 * generator.random(tokens)).astype(np.float32) * mask,
            "advantages": np.float32(generator.normal()) * mask,
            "mask": mask,
        }
        given = {name: tinker.TensorData.from_numpy(of) for name, of in inputs.items()}
        made.append(tinker.Datum(model_input=tinker.ModelInput.from_ints([1] * tokens), loss_fn_inputs=given))
    return made


@pytest.mark.parametrize("discount", [0.0, 0.9])
def test_a_documented_penalty_is_that_of_the_cookbook(discount: float, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    data = _data(generator)
    base = [[None, *map(float, -3 * generator.random(tokens))] for tokens in TOKENS]

    async def score(*given: Any) -> Any:
        return base, None

    monkeypatch.setattr(metrics, "score_sequences", score)
    monkeypatch.setattr(metrics, "_full_sequence_inputs", lambda data: data)
    rows = [Sent(datum) for datum in data]
    asyncio.run(metrics.incorporate_kl_penalty(data, None, 0.3, discount))
    found = [scored(row, Sent(datum).advantages, of) for row, datum, of in zip(rows, data, base, strict=True)]
    known = [one for one in found if one is not None]
    right = Penalty(0.3, discount)
    off, why = right.compare(known)
    assert (len(known), off <= 1, why) == (len(rows), True, "")
    off, why = replace(right, coefficient=-0.3).compare(known)
    assert (off > 1, why) == (True, "those with a KL penalty of the opposite sign")
    assert replace(right, coefficient=0.5).compare(known)[0] > 1
    assert replace(right, centred=False).compare(known)[0] > 1
