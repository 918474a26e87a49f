"""A rollout engine: a transformers model in a Ray actor that behaves towards verl as its vLLM server does.

Followed are workers/rollout/vllm_rollout/vllm_async_server.py and vllm_rollout.py of verl 0.9.1: log-probs are those of
the distribution that was sampled from, `extra_fields["global_steps"]` is the version of the weights when the request
ended, an abort ends running requests with what they have so far, and later requests wait until generation resumes.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from rlstep_hooks.systems.verl.rehearse.cpu.engine import ENGINE
from rlstep_hooks.systems.verl.rehearse.cpu.held import held_by

if TYPE_CHECKING:
    from collections.abc import Generator


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; the same order as vLLM's: temperature, then the k most likely, then the fewest that make up p."""

    temperature: float
    top_p: float
    top_k: int

    def processed(self, raw: torch.Tensor) -> torch.Tensor:
        """Log-probs of the distribution that is drawn from."""
        if self.temperature <= 0:
            return raw
        logits = raw / self.temperature
        if 0 < self.top_k < len(logits):
            logits = logits.masked_fill(logits < logits.topk(self.top_k).values[-1], -torch.inf)
        if self.top_p < 1:
            ordered, places = torch.softmax(logits, -1).sort(descending=True)
            beyond = ordered.cumsum(-1) - ordered >= self.top_p  # what lies before a token makes up p already
            logits = logits.index_fill(-1, places[beyond], -torch.inf)
        return torch.log_softmax(logits, -1)


def _server_name(replica_rank: int) -> str:
    return f"{ENGINE}_server_{replica_rank}"


class HfCpuServer:
    """Generates token by token; requests take turns after each token.

    Args:
        model_path: Folder of the model and its tokenizer.
        prompt_length: Tokens of the longest prompt.
        response_length: Tokens of the longest response.
        logprobs_mode: "processed_logprobs" (after the temperature) or "raw_logprobs".
        max_num_seqs: Requests that take turns; others wait.
        seed: The seed of the sampling.
        seconds_per_token: Slows generation down, so that a weight sync finds requests under way.
        full_determinism: Whether a sample depends on its request and the weights alone, and not on the order of requests.
    """

    def __init__(
        self,
        model_path: str,
        *,
        prompt_length: int,
        response_length: int,
        logprobs_mode: str,
        max_num_seqs: int,
        seed: int,
        seconds_per_token: float,
        full_determinism: bool,
    ) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, attn_implementation="eager")
        self._model = model.eval().requires_grad_(False)
        self._held = held_by(model)
        self._tied = bool(model.config.tie_word_embeddings)
        self._prompt_length = prompt_length
        self._response_length = response_length
        self._processed = {"processed_logprobs": True, "raw_logprobs": False}[logprobs_mode]
        self._seed = seed
        self._full_determinism = full_determinism
        self._asked: Counter[int] = Counter()
        """Requests of each prompt so far."""
        self._seconds_per_token = seconds_per_token
        self._global_steps: int | None = None
        self._requests = 0
        self._slots = asyncio.Semaphore(max_num_seqs)
        self._admitted = asyncio.Event()
        self._admitted.set()
        self._rejecting = False

    async def load_weights(self, weights: dict[str, torch.Tensor], global_steps: int | None) -> None:
        """Take new weights. As with vLLM, the version only changes where one is given."""
        if self._held is not None:
            self._held.arrive(weights)
        missing, unknown = self._model.load_state_dict(weights, strict=False)
        tied = set(getattr(self._model, "_tied_weights_keys", None) or ()) if self._tied else set()
        if unknown or set(missing) - tied:
            raise RuntimeError(f"weights that the model has not: {unknown}; that it did not get: {missing}")
        if self._tied:
            self._model.tie_weights()
        if global_steps is not None:
            self._global_steps = global_steps
        if self._held is not None:
            self._held.loaded(self._global_steps)

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_unused: Any
    ) -> TokenOutput:
        """Sample one response.

        Raises:
            NotImplementedError: The sampling has a penalty, with which log-probs would be other ones.
        """
        how = Sampling(
            temperature=float(sampling_params["temperature"]),
            top_p=float(sampling_params.get("top_p", 1.0)),
            top_k=int(sampling_params.get("top_k", -1)),
        )
        penalty = sampling_params.get("repetition_penalty", 1.0)
        if penalty != 1.0:
            raise NotImplementedError(f"{ENGINE} has no repetition_penalty, and {penalty} was asked for")
        budget = self._prompt_length + self._response_length - len(prompt_ids)
        limit = sampling_params.get("max_tokens", min(self._response_length, budget))
        if self._rejecting:
            return TokenOutput(
                token_ids=[], log_probs=[], stop_reason="aborted", extra_fields={"global_steps": self._global_steps}
            )
        await self._admitted.wait()
        if self._held is not None:
            self._held.generates(self._global_steps)
        self._requests += 1
        try:
            async with self._slots:
                source = self._source(request_id, prompt_ids)
                tokens, log_probs, stop_reason = await self._tokens(list(prompt_ids), how, limit, source)
        finally:
            self._requests -= 1
        return TokenOutput(
            token_ids=tokens,
            log_probs=log_probs if sampling_params.get("logprobs") else None,
            stop_reason=stop_reason,
            extra_fields={"global_steps": self._global_steps},
        )

    async def _tokens(
        self, prompt_ids: list[int], how: Sampling, limit: int, source: torch.Generator
    ) -> tuple[list[int], list[float], str]:
        """Tokens up to the end of text, the limit or an abort; their log-probs; why it stopped."""
        tokens: list[int] = []
        log_probs: list[float] = []
        unseen, cache = torch.tensor([prompt_ids]), None
        while len(tokens) < limit:
            if not self._admitted.is_set():
                return tokens, log_probs, "aborted"
            output = self._model(input_ids=unseen, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            raw = torch.log_softmax(output.logits[0, -1].float(), -1)
            processed = how.processed(raw)
            token = _sample(processed, source) if how.temperature > 0 else int(processed.argmax())
            tokens.append(token)
            log_probs.append(float((processed if self._processed else raw)[token]))
            if token == self._model.config.eos_token_id:
                break
            unseen = torch.tensor([[token]])
            await asyncio.sleep(self._seconds_per_token)
        return tokens, log_probs, "completed"

    def _source(self, request_id: str, prompt_ids: list[int]) -> torch.Generator:
        """The random numbers of a request, which do not depend on the requests that are answered beside it: a rehearsal draws the same
        tokens each time. With determinism asked for, verl's RayPPOTrainer numbers the requests of a batch."""
        prompt = zlib.crc32(str(prompt_ids).encode())
        self._asked[prompt] += 1
        number = f"{self._global_steps} {request_id}" if self._full_determinism else str(self._asked[prompt])
        return torch.Generator().manual_seed(zlib.crc32(f"{self._seed} {number} {prompt_ids}".encode()))

    async def abort_all_requests(self, reject_request: bool = False, **_unused: Any) -> None:
        """End requests, running or waiting, with the tokens that they have; hold new ones until `resume_generation`.

        Returns when none is left, so that no request reports a version which it did not sample from.

        Args:
            reject_request: Send new ones away instead: this server takes no part in generation for a while.
        """
        self._rejecting = reject_request
        self._admitted.clear()
        while self._requests:
            await asyncio.sleep(0.001)

    async def resume_generation(self) -> None:
        """Let requests in again."""
        self._rejecting = False
        self._admitted.set()

    # A CPU model has no memory to give back, no cache between requests and no profiler.
    async def wake_up(self, **_unused: Any) -> None: ...
    async def sleep(self) -> None: ...
    async def clear_kv_cache(self) -> None: ...
    async def release_kv_cache(self) -> None: ...
    async def resume_kv_cache(self) -> None: ...
    async def start_profile(self, **_unused: Any) -> None: ...
    async def stop_profile(self) -> None: ...


def _sample(log_probs: torch.Tensor, source: torch.Generator) -> int:
    return int(torch.multinomial(log_probs.exp(), 1, generator=source))


class HfCpuReplica(RolloutReplica):  # type: ignore[misc]  # verl is not typed
    """Starts one server actor."""

    async def launch_servers(self) -> None:
        options = self.config.engine_kwargs.get(ENGINE) or {}
        server = (
            ray.remote(HfCpuServer)
            .options(num_cpus=0, name=_server_name(self.replica_rank), max_concurrency=self.max_concurrency)
            .remote(
                self.model_config.path,
                prompt_length=self.config.prompt_length,
                response_length=self.config.response_length,
                logprobs_mode=self.config.logprobs_mode,
                max_num_seqs=self.config.max_num_seqs,
                seed=self.replica_rank,
                seconds_per_token=float(options.get("seconds_per_token", 0.0)),
                full_determinism=self.config.full_determinism,
            )
        )
        await server.clear_kv_cache.remote()  # returns when the model is loaded
        self.servers = [server]
        self._server_handle = server
        self._server_address = _server_name(self.replica_rank)


class HfCpuAdapter(BaseRollout):  # type: ignore[misc]  # verl is not typed
    """The trainer's side: hands the weights of the rank's engine to its replica."""

    def __init__(
        self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1, **_unused: Any
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        rank, ranks_per_replica = int(os.environ["RANK"]), self.config.tensor_model_parallel_size
        self._replica_rank = rank // ranks_per_replica if replica_rank == -1 else replica_rank
        self._leads = rank % ranks_per_replica == 0

    async def resume(self, tags: list[str]) -> None: ...
    async def release(self) -> None: ...

    async def update_weights(
        self,
        weights: Generator[tuple[str, torch.Tensor], None, None],
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        **_unused: Any,
    ) -> None:
        """Send all weights and their version.

        Raises:
            NotImplementedError: The weights should be sent in the delta wire format.
        """
        if wire_format != "named_tensors":
            raise NotImplementedError(f"{ENGINE} takes whole tensors, not {wire_format}")
        # Every rank goes through the generator: gathering a tensor is a collective.
        state = {
            name: tensor.detach().to("cpu", torch.float32).clone()
            async for name, tensor in ensure_async_iterator(weights)
        }
        if self._leads:
            await ray.get_actor(_server_name(self._replica_rank)).load_weights.remote(state, global_steps)
