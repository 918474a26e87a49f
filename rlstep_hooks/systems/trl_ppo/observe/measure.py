"""Log ratios of a PPOTrainer's micro-batches, from what its models return. Nothing is held back and nothing waits for the device.

Shapes: N samples of a rollout, B of a micro-batch, L tokens of prompt and response, T of the response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.hidden_loss import HiddenLosses
from rlstep_hooks.observe.numbers import Columns
from rlstep_hooks.observe.token_log_probs import token_log_probs
from rlstep_hooks.record.events import MicroBatchValues

if TYPE_CHECKING:
    from rlstep_hooks.observe.guard import Guard
    from rlstep_hooks.systems.trl_ppo.observe.loss import FollowedLoss

COLUMNS = ("tokens", "max_abs_log_ratio", "sum_abs_log_ratio", "tokens_intact")
"""Real tokens, the largest and the sum of their |log ratio|, and samples that are not of the rollout."""

_BASE = 6364136223846793005
"""An odd number whose powers modulo 2**64 have a long period (Knuth's multiplier)."""


class Matched(msgspec.Struct, frozen=True, gc=False):
    """The samples of a micro-batch."""

    place: Tensor
    """(B,), the place of each sample in the rollout."""
    tokens: Tensor
    """(B, T), the responses of the samples."""
    new: Tensor
    """(B, T), the current log-probs of the responses."""
    known: Tensor
    """Whether the rollout has all samples of the micro-batch, as a tensor of one truth value."""


class RatioMeter:
    """Compares the log-probs of training forwards with those of generation, sample by sample.

    Both are computed as in the trainer: logits are divided by the temperature, and tokens after the stop token or from the first pad
    token on are left out (trl 0.16.1 to 0.24.0 ppo_trainer.py `train`, utils.py `selective_log_softmax`, `truncate_response`).
    Samples are recognised by a checksum of their tokens, since the loop shuffles them in a local variable.

    Args:
        temperature: The temperature of the configuration; the trainer adds 1e-7.
        pad_token: Id of the pad token.
        stop_token: Id of the token that ends a response; None where none does.
        guard: Keeps what fails in a comparison of losses from the run.
    """

    def __init__(self, temperature: float, pad_token: int, stop_token: int | None, guard: Guard) -> None:
        self.temperature = temperature + 1e-7
        self._pad = pad_token
        self._stop = stop_token
        self._chunks: list[tuple[Tensor, Tensor, Tensor]] = []
        self._rollout: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
        self._ratios: list[Tensor] = []
        self._done: list[tuple[Columns, Tensor]] = []
        self._context = 0
        self._losses = HiddenLosses(guard)
        self._microbatch = -1
        """The number of the latest micro-batch."""
        self.matched: Matched | None = None
        """The samples of the latest micro-batch; None before the first of a rollout."""

    def begin(self) -> None:
        """Forget the samples of the rollout before."""
        self._chunks, self._rollout, self._ratios, self.matched = [], None, [], None

    def generated(self, queries: Tensor, mask: Tensor, sequences: Tensor, scores: tuple[Tensor, ...]) -> None:
        """Keep the log-probs of generated samples.

        Args:
            queries: (B, L - T), prompts as the policy got them.
            mask: (B, L - T), which of their tokens are real.
            sequences: (B, L), prompts and responses.
            scores: T tensors (B, vocabulary): logits that the tokens were sampled from, temperature included.
        """
        self._context = queries.shape[1]
        responses = sequences[:, self._context :]
        columns = [
            token_log_probs(score.float(), tokens) for score, tokens in zip(scores, responses.unbind(1), strict=True)
        ]
        real = torch.cat([mask.bool(), responses != self._pad], 1)
        keys = _keys(torch.cat([queries, responses], 1), real)
        self._chunks.append((keys, responses, torch.stack(columns, 1)))

    def trained(self, index: int, ids: Tensor, mask: Tensor, logits: Tensor) -> None:
        """Measure one micro-batch.

        Args:
            index: The micro-batch.
            ids: (B, L), its tokens.
            mask: (B, L), which of them are real.
            logits: (B, L, vocabulary), before the temperature.
        """
        keys, responses, old, valid = self._known()
        same = _keys(ids, mask.bool()).unsqueeze(1) == keys
        found, place = same.any(1), same.to(torch.uint8).argmax(1)
        tokens = responses[place]
        new = torch.stack(
            [
                self._log_probs(row, chosen)
                for row, chosen in zip(logits[:, -tokens.shape[1] - 1 : -1], tokens, strict=True)
            ]
        )
        counts = valid[place] & found.unsqueeze(1)
        log_ratio = (new - old[place]) * counts
        self._ratios.append(log_ratio.exp().mean())  # masked tokens count as 1, as in the trainer's own mean
        size = log_ratio.abs()
        columns = [counts.sum(), size.max(), size.sum(), (~found).sum()]
        vector = torch.stack(columns).float()
        self._done.append((Columns(MicroBatchValues, (index,), COLUMNS, padded=True), vector))
        self._microbatch = index
        self.matched = Matched(place, tokens, new, found.all())

    def add(self, loss: FollowedLoss) -> None:
        """Hold the loss of the latest micro-batch, whose gradients have arrived."""
        self._losses.add(self._microbatch, loss)
        if self._losses.are_many:
            self._done += self._losses.work_up()

    def log_probs_of(self, ids: Tensor, logits: Tensor) -> Tensor:
        """Log-probs of the responses of some samples, as another model has them.

        Args:
            ids: (B, L), prompts and responses.
            logits: (B, L, vocabulary), before the temperature.

        Returns:
            (B, T).
        """
        tokens = ids[:, self._context :]
        width = tokens.shape[1]
        return torch.stack(
            [self._log_probs(row, chosen) for row, chosen in zip(logits[:, -width - 1 : -1], tokens, strict=True)]
        )

    @property
    def rollout(self) -> tuple[Tensor, Tensor, Tensor]:
        """Responses, their old log-probs, and which of their tokens count, each (N, T)."""
        _, *rest = self._known()
        responses, old, counted = rest
        return responses, old, counted

    def _known(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if self._rollout is None:
            self._rollout = self._joined()
        return self._rollout

    def _log_probs(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """(T, vocabulary), (T,) -> (T,)."""
        return token_log_probs((logits / self.temperature).float(), tokens)

    def _joined(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Keys (N,), responses, their log-probs, and which tokens count (N, T)."""
        width = max(responses.shape[1] for _, responses, _ in self._chunks)
        keys = torch.cat([keys for keys, _, _ in self._chunks])
        responses = torch.cat([_padded(tokens, width, self._pad) for _, tokens, _ in self._chunks])
        old = torch.cat([_padded(log_probs, width, 0.0) for _, _, log_probs in self._chunks])
        over = (responses == self._pad).cumsum(1)
        if self._stop is not None:
            stopped = (responses == self._stop).long()
            over = over + stopped.cumsum(1) - stopped  # the stop token itself still counts
        self._chunks = []
        return keys, responses, old, over == 0

    def mean_ratio(self) -> Tensor | None:
        """The mean ratio of this rollout's micro-batches so far, shape (1,); None if none was measured."""
        return torch.stack(self._ratios).mean().reshape(1) if self._ratios else None

    def work_up(self) -> list[tuple[Columns, Tensor]]:
        """The numbers of all micro-batches since the last call, as vectors of float32."""
        done, self._done = self._done, []
        return done + self._losses.work_up()


def _keys(ids: Tensor, real: Tensor) -> Tensor:
    """(B, L) -> (B,) int64, a polynomial of the real tokens modulo 2**64; pad tokens at the end change nothing."""
    powers = torch.full((ids.shape[1],), _BASE, device=ids.device, dtype=torch.int64).cumprod(0)
    return ((ids + 1) * real * powers).sum(1)


def _padded(values: Tensor, width: int, fill: float) -> Tensor:
    return torch.nn.functional.pad(values, (0, width - values.shape[1]), value=fill)
