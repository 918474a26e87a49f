"""A tiny transformer that a server of the tests trains, and the losses that Tinker documents."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as functions

WIDTH = 32
LONGEST = 512

CLIPS = {"ppo": (0.8, 1.2), "cispo": (0.0, 4.0)}
"""Bounds of the ratio where a request names none: https://tinker-docs.thinkingmachines.ai/tinker/losses."""


class TinyTransformer(nn.Module):
    """Two causal layers over a small vocabulary, in float32.

    Args:
        vocabulary: Number of tokens.
        stop: The token that ends a turn, which is made probable, so that some completions end and others do not.
    """

    def __init__(self, vocabulary: int, stop: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.places = nn.Embedding(LONGEST, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, vocabulary)
        with torch.no_grad():
            self.head.bias[stop] += 2.5

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the token after each: (B, T) -> (B, T, V)."""
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.tokens(tokens) + self.places(torch.arange(length))
        return self.head(self.layers(hidden, mask=mask, is_causal=True))


def log_probs(model: nn.Module, tokens: list[int], targets: list[int]) -> Tensor:
    """The log-prob of each target after the tokens before it."""
    logits = model(torch.tensor([tokens]))[0]
    return functions.log_softmax(logits, -1).gather(-1, torch.tensor(targets)[:, None])[:, 0]


def loss_of(name: str, new: Tensor, given: dict[str, Tensor], settings: dict[str, float]) -> Tensor:
    """The loss of one datum, a sum over its tokens.

    Args:
        name: As the request has it.
        new: Log-probs of the targets.
        given: The tensors of the datum.
        settings: What the request configures.

    Raises:
        ValueError: This server does not know the loss.
    """
    if name == "cross_entropy":
        return -(new * given["weights"]).sum()
    advantages = given["advantages"]
    if name == "dro":
        return -(new * advantages - 0.5 * settings["beta"] * (new - given["logprobs"]) ** 2).sum()
    ratio = torch.exp(new - given["logprobs"])
    low, high = CLIPS.get(name, (0.0, 0.0))
    clipped = ratio.clamp(settings.get("clip_low_threshold", low), settings.get("clip_high_threshold", high))
    # What is not documented of stable_reinforce and gspo is left out: a loss of their kind is enough for the protocol.
    if name in ("importance_sampling", "stable_reinforce", "gspo"):
        return -(ratio * advantages).sum()
    if name == "ppo":
        return -torch.minimum(ratio * advantages, clipped * advantages).sum()
    if name == "cispo":
        return -(clipped.detach() * new * advantages).sum()
    raise ValueError(f"no loss {name}")
