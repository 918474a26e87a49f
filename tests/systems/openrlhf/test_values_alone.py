"""Values of rows alone beside those that OpenRLHF's critic gives for a padded batch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rlstep_hooks.systems.openrlhf.rehearse.cpu import STUBS

sys.path.append(str(STUBS))  # a stand-in for flash_attn, which OpenRLHF imports
pytest.importorskip("openrlhf")

from openrlhf.models.model import _get_critic_model, _get_reward_model
from transformers import Qwen2Config, Qwen2Model, Qwen2PreTrainedModel

from rlstep_hooks.systems.openrlhf.observe.values_alone import Batch, as_values, look, of_rewards, why_not

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(params=[torch.float32, torch.bfloat16])
def critic(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, attention_dropout=0.5,
    )  # fmt: skip
    config.normalize_reward = False
    model = _get_critic_model(Qwen2PreTrainedModel, Qwen2Model)(config).to(request.param)
    with torch.no_grad():
        model.score.weight.normal_()
    return model.eval()


def batch() -> Batch:
    torch.manual_seed(1)
    attention = (torch.arange(12) < torch.tensor([[12], [7], [9]])).long()
    counted = attention[:, 1:].clone()
    counted[:, :3] = 0
    counted[2, 5] = 0  # an environment's word between two turns
    return Batch(torch.randint(0, 50, (3, 12)) * attention, attention, counted)


def test_the_values_of_a_padded_batch_are_those_of_its_rows(critic: Any) -> None:
    assert why_not(critic, whole=True) == ""
    tokens, attention, counted = batch()
    with torch.no_grad():
        values = critic(tokens, counted, attention)
    critic.train()
    for turn in range(3):
        assert look(critic, (tokens, attention, counted), values, turn)["clean_gap"] == 0.0
    assert critic.score.training
    assert critic.training


def test_numbers_that_normalise_values_are_those_of_the_configuration(critic: Any) -> None:
    tokens, attention, counted = batch()
    critic.normalize_reward = True
    critic.mean.fill_(0.0)
    critic.std.fill_(1.0)
    with torch.no_grad():
        assert look(critic, (tokens, attention, counted), critic(tokens, counted, attention), 0)["clean_gap"] == 0.0
        critic.std.fill_(-1e5)
        found = look(critic, (tokens, attention, counted), critic(tokens, counted, attention), 0)
    assert found["clean_gap"] > 0.05
    assert found["clean_like"] == "normalised by a mean and a deviation that the model's configuration does not have"


@pytest.mark.parametrize(
    ("change", "like"),
    [
        (lambda values: values.roll(1, 1), "those of the token before each"),
        (lambda values: values * 0, "0"),
        (lambda values: values * 1.5 + 0.3, ""),
        (lambda values: values.roll(1, 0), ""),
        (lambda values: values * torch.nan, ""),
    ],
)
def test_other_values_are_found(critic: Any, change: Callable[[Any], Any], like: str) -> None:
    tokens, attention, counted = batch()
    with torch.no_grad():
        values = change(critic(tokens, counted, attention))
    found = look(critic, (tokens, attention, counted), values, 0)
    assert found["clean_gap"] > 0.05
    # What stands before the first token of an answer is not among the values.
    assert found["clean_like"] in (like, "")


@pytest.mark.parametrize("normalised", [False, True])
def test_the_rewards_of_a_padded_batch_are_those_of_its_rows(critic: Any, normalised: bool) -> None:
    critic.config.normalize_reward = normalised
    model = _get_reward_model(Qwen2PreTrainedModel, Qwen2Model)(critic.config).to(critic.dtype).eval()
    model.load_state_dict(critic.state_dict())
    tokens, attention, _ = batch()
    model.mean.fill_(0.0)
    model.std.fill_(1.0)
    with torch.no_grad():
        rewards = model(tokens, attention)
        shorter = model(tokens, attention * (attention.cumsum(1) < attention.sum(1, keepdim=True)))
    given = of_rewards(tokens, attention)
    for turn in range(3):
        assert look(model, given, as_values(attention, rewards), turn)["clean_gap"] == 0.0
        found = look(model, given, as_values(attention, shorter), turn)
        assert found["clean_gap"] > 0.05
        assert found["clean_like"] == "those of the token before each"
    assert look(model, given, as_values(attention, torch.zeros(3)), 0)["clean_like"] == "0"
