"""RecurrentPPO's mini-batches: padded to sequences of one length. N rows of a padded mini-batch, B samples.

Source: sb3-contrib 2.7.0 and 2.9.2, common/recurrent/buffers.py `create_sequencers` and `pad_and_flatten`: the samples of a mini-batch
in their order, cut into sequences, each padded at its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor


@dataclass(frozen=True)
class Padding:
    """Which rows of a mini-batch are samples."""

    rows: Tensor
    """(B,), on the CPU."""
    length: int
    """N."""

    def taken_off(self, of: Any) -> Any:
        """The rows that are samples; what has another number of rows as it is."""
        if isinstance(of, dict):
            return {name: self.taken_off(part) for name, part in of.items()}
        return of[self.rows.to(of.device)] if isinstance(of, Tensor) and len(of) == self.length else of

    def of_samples(self, samples: Any) -> Any:
        """What a buffer gave for a mini-batch, without its padding; its other parts stay."""
        numbers = ("old_values", "old_log_prob", "advantages", "returns")
        return samples._replace(**{name: self.taken_off(getattr(samples, name)) for name in numbers})


def padding_of(buffer: Any, samples: Any) -> Padding | None:
    """The padding of the mini-batch that a buffer has just given; None where it has none.

    Args:
        buffer: The buffer of a RecurrentPPO, or another one.
        samples: The number of its samples.
    """
    starts = getattr(buffer, "seq_start_indices", None)
    if starts is None:
        return None
    lengths = numpy.diff(numpy.append(starts, samples))
    longest = int(lengths.max())
    rows = [number * longest + numpy.arange(length) for number, length in enumerate(lengths)]
    return Padding(torch.as_tensor(numpy.concatenate(rows)), longest * len(lengths))
