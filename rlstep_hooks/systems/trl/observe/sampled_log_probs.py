"""The log-probs of the tokens that transformers' `generate` draws, at the trainer's temperature, for the loss that trains them.

Where a rollout is trained once, TRL computes no old log-probs: nothing else in the run says whether the forward of the loss is that of
the sampling. Shapes: B samples, V tokens of the vocabulary, T completion tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.token_log_probs import token_log_probs
from rlstep_hooks.systems.trl.observe.facts import forward_noise

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.observe.guard import GapRecorder

SAMPLED = "rlstep_sampled"
"""Key added to a rollout's tensors: (B, T) float32, the log-probs of its tokens when they were drawn; nan where they are not known. TRL
shuffles and splits it with all others."""


def _writes(logits: Tensor) -> int:
    """How often a tensor was written to; 0 where that is not counted."""
    return 0 if logits.is_inference() else logits._version


class _Draws:
    """A processor of logits that changes nothing: it computes the log-prob of each token that is drawn from them."""

    def __init__(self, temperature: float, recorder: GapRecorder) -> None:
        self.recorder = recorder
        """Learns what is not observed."""
        self._temperature = temperature
        self._logits: Tensor | None = None
        self._writes = self._length = -1
        self._whole = True
        """Whether the calls followed each other token by token."""
        self._tokens: list[Tensor] = []
        self._log_probs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Called by transformers before each token with all ids so far and the logits of the next, (B, V) float32."""
        self._see(input_ids, scores)
        return scores

    @contained("drawn_log_probs")
    def _see(self, input_ids: Tensor, scores: Tensor) -> None:
        if input_ids.dim() != 2:  # continuous batching draws for a changing number of sequences, laid end to end
            self._whole = False
            return
        self._see_sampled(input_ids)
        # A tensor of inference mode counts no writes, so a copy of it is kept, which nobody writes to.
        self._logits = scores.clone() if scores.is_inference() else scores
        self._writes, self._length = _writes(self._logits), input_ids.shape[1]

    def _see_sampled(self, input_ids: Tensor) -> None:
        """The last token of `input_ids` was drawn from the logits of the call before."""
        logits = self._logits
        if logits is None:
            return
        # Beams and assisted generation draw otherwise; a processor may write into the logits.
        if (
            input_ids.shape[1] != self._length + 1
            or logits.shape[0] != input_ids.shape[0]
            or _writes(logits) != self._writes
        ):
            self._whole = False
            return
        tokens = input_ids[:, -1:]
        self._tokens.append(tokens)
        self._log_probs.append(token_log_probs((logits / self._temperature).unsqueeze(1), tokens))

    def of(self, ids: Tensor) -> Tensor | None:
        """(B, T): the log-probs of completions, nan where other tokens were drawn, and at the last one, which no call followed.

        Args:
            ids: (B, T), the completions that the rollout came with.
        """
        if not self._whole or not self._tokens or self._tokens[0].shape[0] != ids.shape[0]:
            return None
        long = min(len(self._tokens), ids.shape[1])
        drawn, log_probs = torch.cat(self._tokens[:long], 1), torch.cat(self._log_probs[:long], 1)
        found = torch.full(ids.shape, torch.nan, dtype=log_probs.dtype, device=ids.device)
        found[:, :long] = torch.where(drawn == ids[:, :long], log_probs, torch.nan)
        return found


class SampledLogProbs:
    """Looks at the generation of one rollout at a time. Not with dropout or NEFTune, with which each forward is another one.

    Args:
        trainer: The trainer, whose temperature is that of the loss.
        recorder: Learns what is not observed.
    """

    def __init__(self, trainer: Any, recorder: GapRecorder) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._comparable = not forward_noise(trainer)
        self._looks = False
        self._draws: list[_Draws] = []

    def begin(self, *, looks: bool) -> None:
        """A rollout begins; the log-probs of its tokens are taken if `looks`."""
        self._looks, self._draws = looks and self._comparable, []

    def see(self, processors: list[Any]) -> None:
        """A generation is about to draw with these processors of logits; one that changes nothing becomes their first.

        Args:
            processors: The list that transformers goes through for each token.
        """
        if self._looks:
            draws = _Draws(float(self._trainer.temperature), self._recorder)
            processors.insert(0, draws)
            self._draws.append(draws)

    def take(self, ids: Tensor) -> Tensor | None:
        """The log-probs of the completions (B, T); None where they were not all drawn in one call."""
        draws, self._draws, self._looks = self._draws, [], False
        return draws[0].of(ids) if len(draws) == 1 else None
