"""What the plan of torchrl's PPO rests on: its sampler leaves the last mini-batch of a pass short. Its documentation says that a new
permutation fills it up; neither 0.10.0 nor the release of this environment does."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement

from rlstep_hooks.planning.minibatches import cut_by_size_kept


def buffer(*, drop_last: bool) -> TensorDictReplayBuffer:
    made = TensorDictReplayBuffer(
        storage=LazyTensorStorage(10), sampler=SamplerWithoutReplacement(drop_last=drop_last), batch_size=4
    )
    made.extend(TensorDict({"place": torch.arange(10)}, [10]))
    return made


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_last_minibatch_is_short_or_dropped(drop_last: bool) -> None:
    sizes = cut_by_size_kept(10, 4)
    expected = list(sizes[:2] if drop_last else sizes)
    replay = buffer(drop_last=drop_last)
    for _ in range(2):
        passed = [batch["place"].tolist() for batch in replay]
        assert [len(places) for places in passed] == expected
        assert len({place for places in passed for place in places}) == sum(expected)
    assert [len(replay.sample()["place"]) for _ in expected] == expected
