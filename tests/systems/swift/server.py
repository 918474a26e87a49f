"""A stand-in for the vLLM server that ms-swift samples with: it has weights of its own, and tells the log-probs that a test wants.

What it stands in for is `swift rollout` with vLLM, of which ms-swift sees a client alone. Its tokens are drawn by transformers.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class Client:
    """What ms-swift calls of its `VLLMClient` (swift/rlhf_trainers/vllm_client.py 4.6.0)."""

    use_async_engine = False
    enable_multi_turn = False
    enable_lora = False
    use_gym_env = False
    tell: Callable[[list[float]], list[float]] = list
    """Makes the log-probs of a sample that are told of those with which it was drawn."""

    def __init__(self, **settings: Any) -> None:
        self._trainer: Any = None
        self._engine: Any = None

    def belongs_to(self, trainer: Any) -> None:
        """Take a copy of the weights of a trainer."""
        from swift.infer_engine import TransformersEngine

        template = copy.copy(trainer.template)
        template.remove_unused_columns = True
        template.set_mode("transformers")
        self._trainer = trainer
        self._engine = TransformersEngine(copy.deepcopy(trainer.model), template=template, max_batch_size=0)

    def infer(self, requests: list[dict[str, Any]], config: dict[str, Any], *, use_tqdm: bool) -> list[Any]:
        """Draw, and tell."""
        from swift.infer_engine.protocol import RequestConfig, RolloutInferRequest, RolloutOutput

        asked = [RolloutInferRequest(**request) for request in requests]
        answers = self._engine.infer(asked, RequestConfig(**config), use_tqdm=False)
        for answer in answers:
            tokens = answer.choices[0].logprobs["content"]
            for token, told in zip(tokens, self.tell([token["logprob"] for token in tokens]), strict=True):
                token["logprob"] = told
        return [RolloutOutput(response=answer) for answer in answers]

    def process_weights_after_loading(self) -> None:
        """The weights of a sync have arrived."""
        self._engine.model.load_state_dict(self._trainer.model.state_dict())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


def far(drawn: list[float]) -> list[float]:
    """A fifth off, token by token."""
    return [value + 0.2 * math.sin(place + 1) for place, value in enumerate(drawn)]


SETTINGS = {
    "use_vllm": "true",
    "vllm_mode": "server",
    "vllm_server_host": "127.0.0.1",
    "vllm_server_port": 8000,
    "temperature": 1.0,
}
"""Of the command line, for sampling with a server."""


def serve(patch: pytest.MonkeyPatch, tell: Callable[[list[float]], list[float]] = far) -> type[Client]:
    """Have ms-swift sample with a stand-in from here on."""
    kind = type("Client", (Client,), {"tell": staticmethod(tell)})
    patch.setattr("swift.rlhf_trainers.VLLMClient", kind, raising=False)
    patch.setattr("swift.rlhf_trainers.rollout_mixin.is_vllm_available", lambda: True)
    patch.setattr("swift.rlhf_trainers.rollout_mixin.check_vllm_version_ge", lambda version: version == "0.10.2")
    return kind
