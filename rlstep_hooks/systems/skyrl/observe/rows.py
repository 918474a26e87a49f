"""Rows of a rollout and of its micro-batches. S samples of a rollout, L tokens of the longest, T of the longest completion.

Everything is padded on the left (skyrl 0.3.0, train/dataset/preprocess.py `convert_prompts_responses_to_batch_tensors`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

PLACE = "rlstep_place"
"""Column with the place of each sample in its rollout, from when it is trained until its micro-batch is taken."""


class Sampled:
    """What a rollout came with, as the generator handed it over.

    Args:
        output: SkyRL's `GeneratorOutput`.
    """

    def __init__(self, output: Mapping[str, Any]) -> None:
        self.prompts = [list(of) for of in output["prompt_token_ids"]]
        self.completions = [list(of) for of in output["response_ids"]]
        self.rewards = [list(of) if isinstance(of, list) else of for of in output["rewards"]]
        log_probs = output.get("rollout_logprobs")
        self.log_probs = None if log_probs is None else [list(of) for of in log_probs]

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.completions)

    def tokens_moved(self, sequences: Tensor, there: Tensor) -> int:
        """Samples whose tokens are others by now.

        Args:
            sequences: (S, L), tokens.
            there: (S, L), not 0 where a token is none of the padding.
        """
        rows = [row[real != 0].tolist() for row, real in zip(sequences, there, strict=True)]
        sampled = [prompt + drawn for prompt, drawn in zip(self.prompts, self.completions, strict=True)]
        return sum(row != own for row, own in zip(rows, sampled, strict=True))

    def token_rewards(self, width: int) -> Tensor:
        """(S, T), the reward of each token; that of a whole sample is at its last."""
        of_tokens = [
            of if isinstance(of, list) else [*[0.0] * (len(drawn) - 1), float(of)]
            for of, drawn in zip(self.rewards, self.completions, strict=True)
        ]
        return on_the_right(of_tokens, width)

    def drawn(self, width: int) -> Tensor:
        """(S, T), 1 on the tokens of completions."""
        return on_the_right([[1.0] * len(drawn) for drawn in self.completions], width)

    def engine_log_probs(self, width: int) -> Tensor | None:
        """(S, T), the engine's log-probs; None where it gave none."""
        return None if self.log_probs is None else on_the_right(self.log_probs, width)


def on_the_right(rows: Sequence[Sequence[float]], width: int) -> Tensor:
    """(S, T), with zeros before each row."""
    return torch.tensor([[0.0] * (width - len(row)) + list(row) for row in rows], dtype=torch.float32)


def columns(sequences: Tensor, mask: Tensor, advantages: Tensor, reference: Tensor | None) -> dict[str, Tensor]:
    """What is followed of rows, by name: tokens (S, L), and what belongs to tokens of completions, (S, T)."""
    drawn = torch.zeros_like(sequences, dtype=torch.bool)
    drawn[:, -mask.shape[1] :] = mask != 0
    followed = {"completions": sequences * drawn, "prompts": sequences * ~drawn, "mask": mask}
    followed["advantages"] = advantages * (mask != 0)
    return followed if reference is None else followed | {"reference": reference * (mask != 0)}
