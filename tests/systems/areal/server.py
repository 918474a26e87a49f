"""Stands for the vLLM server of AReaL: draws from the model whose weights AReaL has written, and says with which log-probs.

The five requests that areal 1.0.4 sends it (areal/engine/vllm_remote.py `VLLMBackend`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.cpu import sampling_server

if TYPE_CHECKING:
    from pathlib import Path


class Service(sampling_server.Service):
    """The model that draws; one request at a time."""

    def __init__(self, folder: Path, *, keeps: bool = False) -> None:
        super().__init__(folder, keeps=keeps)
        self._asked: Counter[tuple[int, ...]] = Counter()
        """How often a completion of each prompt was asked for: what is drawn does not depend on the order of requests."""

    def respond(self, path: str, request: dict[str, Any], headers: Any) -> dict[str, Any] | None:
        """A completion, or new weights."""
        if path == "/v1/completions":
            return self._completion(request)
        if path == "/areal_update_weights" and not self.keeps:
            self.load(request["model_path"])
        return {} if path.startswith("/areal_") else None

    def _completion(self, request: dict[str, Any]) -> dict[str, Any]:
        prompt = tuple(request["prompt"])
        self._asked[prompt] += 1
        drawn = self.draw(
            prompt,
            hash((*prompt, self._asked[prompt])) % 2**31,
            temperature=request["temperature"],
            most=request["max_tokens"],
            ends=request["stop_token_ids"],
        )
        named = {"tokens": [f"token:{token}" for token in drawn.tokens], "token_logprobs": drawn.log_probs}
        return {"choices": [{"finish_reason": drawn.reason, "logprobs": named}]}
