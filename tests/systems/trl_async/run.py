"""A real AsyncGRPOTrainer on the CPU: its own queue, batcher, collator and loss, with a worker that generates while it trains.

TRL lets a worker and a transfer of weights be given (`rollout_worker`, `weight_transfer`). Here the worker is a thread of this process
that samples with a copy of the model, and the transfer copies the weights that the trainer streams into that copy. Two things need a
GPU: the attention kernel (FlashAttention 3), in whose place stands the same attention, written out, and a metric of its speed.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rlstep_hooks.testing.tiny_trl import quiet_settings, tiny_model, tiny_reward, tiny_rows, tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


class Attention:
    """`flash_attn_varlen_func` of FlashAttention 3, for one device without the kernel."""

    @staticmethod
    def flash_attn_varlen_func(
        query: Any, key: Any, value: Any, starts_q: Any, starts_k: Any, *sizes: Any, softmax_scale: Any, **options: Any
    ) -> Any:
        """Each segment attends causally to its own keys; the last query stands at the last key."""
        parts = []
        for (q0, q1), (k0, k1) in zip(_pairs(starts_q), _pairs(starts_k), strict=True):
            q, k, v = query[q0:q1], key[k0:k1], value[k0:k1]
            groups = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            scores = torch.einsum("qhd,khd->hqk", q, k) * (softmax_scale or q.shape[-1] ** -0.5)
            rows, columns = torch.arange(q1 - q0)[:, None], torch.arange(k1 - k0)[None]
            scores = scores.masked_fill(columns > rows + (k1 - k0) - (q1 - q0), float("-inf"))
            parts.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
        return torch.cat(parts)


def _pairs(starts: Any) -> list[tuple[int, int]]:
    values = starts.tolist()
    return list(itertools.pairwise(values))


class Engine:
    """What holds the weights that sample: receives them as the trainer streams them."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.lock = threading.Lock()
        self.receives = True

    # WeightTransferProtocol

    def init_weight_transfer(self) -> None:
        """Nothing to set up within one process."""

    def pause(self) -> None:
        """Wait for the generation that is under way."""
        self.lock.acquire()

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Take the weights over, under their names."""
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in iterator:
                if self.receives:
                    own[name].copy_(tensor)

    def resume(self) -> None:
        """Go on generating."""
        self.lock.release()

    def destroy(self) -> None:
        """Nothing to release."""


class Worker:
    """A rollout worker: generates groups of samples with the engine, and puts each on the queue with its version.

    Args:
        engine: The weights.
        tokenizer: Of the prompts.
        rows: The prompts, in turn.
        generations: Samples of a prompt.
        ahead: Samples on the queue above which it waits.
        change: What becomes of a sample before it is put on the queue: the samples to put.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        rows: Sequence[str],
        generations: int,
        *,
        ahead: int,
        change: Callable[[Worker, Any], list[Any]] | None = None,
    ) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self.version = 0
        self.put = 0
        self._engine, self._tokenizer, self._rows, self._generations = engine, tokenizer, rows, generations
        self._ahead, self._change = ahead, change
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    # RolloutWorkerProtocol

    def start(self) -> None:
        """Begin, and have the queue filled once: how old samples get does not depend on how fast this machine is."""
        self._thread.start()
        while self.rollout_buffer.qsize() < self._ahead and self._error is None:
            time.sleep(0.001)

    def stop(self) -> None:
        """End."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def update_model_version(self, model_version: int) -> None:
        """Remember which version the engine holds now."""
        self.version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raise what ended the thread."""
        if self._error is not None:
            raise self._error

    # Generation

    def _work(self) -> None:
        try:
            random = torch.Generator().manual_seed(3)
            group = 0
            while not self._over.is_set():
                if self.rollout_buffer.qsize() >= self._ahead:
                    time.sleep(0.001)
                    continue
                with self._engine.lock:
                    version = self.version
                    samples = self._group(self._rows[group % len(self._rows)], group, version, random)
                for sample in samples:
                    for changed in self._change(self, sample) if self._change else [sample]:
                        self.rollout_buffer.put(changed)
                        self.put += 1
                group += 1
        except BaseException as error:
            self._error = error
            raise

    def _group(self, prompt: str, group: int, version: int, random: Any) -> list[Any]:
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

        ids = self._tokenizer(prompt)["input_ids"]
        tokens, logps = self._sampled(torch.tensor([ids] * self._generations), 6, random)
        rewards = np.asarray(tiny_reward(completions=[str(row) for row in tokens.tolist()]))
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
        return [
            RolloutSample(
                prompt=prompt,
                completion=str(row),
                input_ids=np.asarray([*ids, *row], dtype=np.int64),
                completion_mask=np.asarray([0] * len(ids) + [1] * len(row), dtype=np.int64),
                old_log_probs=np.asarray([0.0] * len(ids) + of, dtype=np.float32),
                advantage=float(advantage),
                model_version=version,
                group_id=group,
                metrics={"reward": float(reward)},
            )
            for row, of, advantage, reward in zip(tokens.tolist(), logps.tolist(), advantages, rewards, strict=True)
        ]

    @torch.no_grad()
    def _sampled(self, ids: Any, length: int, random: Any) -> tuple[Any, Any]:
        tokens, logps = [], []
        for _ in range(length):
            every = self._engine.model(input_ids=ids).logits[:, -1].float().log_softmax(-1)
            chosen = torch.multinomial(every.exp(), 1, generator=random)
            tokens.append(chosen)
            logps.append(every.gather(1, chosen))
            ids = torch.cat([ids, chosen], 1)
        return torch.cat(tokens, 1), torch.cat(logps, 1)


def async_trainer(
    folder: Path,
    *,
    callbacks: Sequence[Any] = (),
    ahead: int = 16,
    change: Callable[[Worker, Any], list[Any]] | None = None,
    **settings: Any,
) -> Any:
    """A trainer whose worker generates for real; `settings` are those of AsyncGRPOConfig."""
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing

    packing._flash_attn = Attention
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: None
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    wanted = quiet_settings(folder / "out") | {
        "num_generations": 4,
        "max_completion_length": 6,
        "learning_rate": 1e-3,
        "max_steps": 4,
        "token_budget": 0,
        "weight_sync_steps": 1,
    }
    rows = tiny_rows(24)
    engine = Engine(model.eval())
    worker = Worker(engine, tokenizer, rows["prompt"], 4, ahead=ahead, change=change)
    return AsyncGRPOTrainer(
        model=str(folder / "model"),
        reward_funcs=tiny_reward,
        args=AsyncGRPOConfig(**(wanted | settings)),
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=list(callbacks),
        rollout_worker=worker,
        weight_transfer=engine,
    )
