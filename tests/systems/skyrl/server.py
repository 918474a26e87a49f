"""Stands for the vLLM server of SkyRL: draws from the weights that SkyRL has sent, and says with which log-probs.

The requests that skyrl 0.3.0 sends it (inference_servers/remote_inference_client.py). Weights come in a file, where vLLM would take
them over NCCL (`tests.cpu.skyrl_cpu`).
"""

from __future__ import annotations

import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tests.cpu import sampling_server

if TYPE_CHECKING:
    from collections.abc import Sequence

TURNS = frozenset({"/pause", "/resume", "/reset_prefix_cache", "/finish_session"})
"""Requests that change nothing here: completions are drawn one after the other, and nothing of a prompt is kept."""
SECONDS = 30.0
"""How long weights are waited for; the request for them is sent beside them."""


class Service(sampling_server.Service):
    """The model that draws; one request at a time.

    Args:
        folder: The weights that it begins with.
        ends: Tokens after which a completion ends.
        keeps: Whether it keeps these weights, whatever it is sent.
    """

    def __init__(self, folder: Path, ends: Sequence[int], *, keeps: bool = False) -> None:
        super().__init__(folder, keeps=keeps)
        self._ends = ends
        self._file = Path()
        self._received = 0
        """How often weights came."""

    def respond(self, path: str, request: dict[str, Any], headers: Any) -> dict[str, Any] | None:
        """A completion, or new weights."""
        if path == "/inference/v1/generate":
            return self._completion(request, headers["X-Session-ID"])
        if path == "/init_weight_transfer_engine":
            from vllm.distributed.weight_transfer.nccl_engine import handed_over

            self._file = handed_over(request["init_info"]["master_port"])
            return {}
        if path == "/collective_rpc":
            if request["method"] == "update_weights_nccl":
                self._receive(request["kwargs"]["update_info"]["names"])
            return {}
        return {} if path in TURNS else None

    def _receive(self, names: list[str]) -> None:
        since = time.monotonic()
        while not self._file.exists():
            if time.monotonic() - since > SECONDS:
                raise TimeoutError("no weights came")
            time.sleep(0.005)
        weights = torch.load(self._file)
        self._file.unlink()
        self._received += 1
        if sorted(weights) != sorted(names):
            raise ValueError("other weights came than were announced")
        if not self.keeps:
            self.model.load_state_dict(weights)

    def _completion(self, request: dict[str, Any], session: str) -> dict[str, Any]:
        settings = request["sampling_params"]
        drawn = self.draw(
            request["token_ids"],
            # The session is the number of the sample of its prompt, and a prompt may come again in a later pass over the rows.
            zlib.crc32(f"{session} {self._received}".encode()),
            temperature=settings["temperature"],
            most=settings["max_tokens"],
            ends=self._ends,
        )
        of_each = {"content": [{"logprob": number} for number in drawn.log_probs]}
        return {"choices": [{"token_ids": drawn.tokens, "finish_reason": drawn.reason, "logprobs": of_each}]}
