"""Log-probs of tokens, from logits that a hook has seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def token_log_probs(logits: Tensor, tokens: Tensor) -> Tensor:
    """The log-prob of each token: its logit less the logarithm of the sum of all exponentials.

    Nothing of the size of the logits is made, as it is by `log_softmax` (TRL 1.16.0, trainer/utils.py `selective_log_softmax`).

    Args:
        logits: (..., V), divided by the temperature.
        tokens: (...), ids below V.

    Returns:
        (...), of the dtype of the logits.
    """
    return logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
