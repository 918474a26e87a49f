"""Prompts of a rollout against the tokens of their rows, without a training run."""

from __future__ import annotations

import pytest

pytest.importorskip("trl")

import torch

from rlstep_hooks.systems.trl.observe.prompt_tokens import chosen_places, differing

IDS = torch.tensor([[0, 5, 6, 7], [3, 4, 5, 6]])
MASK = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])


@pytest.mark.parametrize(
    ("expected", "wrong"),
    [
        ([[5, 6, 7], [3, 4, 5, 6]], 0),
        ([[5, 6, 8], [3, 4, 5, 6]], 1),
        ([[6, 7], [3, 4, 5, 6]], 1),
        ([[5, 6, 7], [2, 3, 4, 5, 6]], 1),
        ([[3, 4, 5, 6], [5, 6, 7]], 2),
        ([[], []], 2),
    ],
)
def test_prompts_are_compared_token_by_token(expected: list[list[int]], wrong: int) -> None:
    assert int(differing(IDS, MASK, expected)) == wrong


def test_other_rows_are_looked_at_each_time() -> None:
    chosen = [chosen_places(16, 4, turn) for turn in range(8)]
    assert {place for of in chosen for place in of} == set(range(16))
    assert all(len({place // 4 for place in of}) == 2 for of in chosen)
    assert chosen_places(4, 4, 1) == (2, 3)
