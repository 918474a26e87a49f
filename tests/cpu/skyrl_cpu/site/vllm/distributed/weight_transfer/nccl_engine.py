"""Stands for vLLM's NCCL engine on the sending side: hands the tensors to the server of the tests in a file.

Its two calls are those of skyrl 0.3.0, weight_sync/broadcast_strategy.py. The tensors are those that SkyRL's own extractor gives.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


def handed_over(port: int) -> Path:
    """The file in which the weights of a connection lie until they are loaded."""
    return Path(tempfile.gettempdir(), f"skyrl-weights-{port}.pt")


class NCCLWeightTransferEngine:
    """What a trainer sends weights with."""

    @staticmethod
    def trainer_init(info: dict[str, Any]) -> Path:
        """Connect; the server learns the same port from SkyRL."""
        return handed_over(info["master_port"])

    @staticmethod
    def trainer_send_weights(iterator: Iterator[tuple[str, torch.Tensor]], trainer_args: dict[str, Any]) -> None:
        """Send all tensors."""
        file: Path = trainer_args["group"]
        written = file.with_suffix(".part")
        torch.save({name: tensor.detach().clone() for name, tensor in iterator}, written)
        written.rename(file)
