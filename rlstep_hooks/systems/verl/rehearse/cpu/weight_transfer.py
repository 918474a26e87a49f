"""A checkpoint engine "cpu": trainers send their weights to engines in other processes over a local socket.

What verl has for engines in other processes needs an accelerator (nccl, hccl, nixl, kimi, mooncake, delta_sharded), and its trainers
refuse "naive", which stays within a process (checkpoint_engine/base.py, trainer_separate_async.py:74, 0.9.1). The first trainer sends
each tensor, once it is gathered, to every engine that has said that it is there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
import zmq
import zmq.asyncio
from verl.checkpoint_engine.base import CheckpointEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class CpuCheckpointEngine(CheckpointEngine):  # type: ignore[misc]  # verl is not typed
    """One side of the transfer: in a trainer, or beside an engine.

    Args:
        bucket_size: Bytes of a bucket. Unused: tensors go one by one.
        is_master: Whether this is the first trainer, which sends.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._sends = is_master
        self._receivers = 0
        self._socket: Any = None

    def prepare(self) -> str:
        """Open the socket of a sync; its address, empty where nothing is sent from here."""
        self._socket = None
        if not self._sends:
            return ""
        self._socket = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
        return f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[str]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Arguments of `init_process_group` for trainers and for engines; `metadata` is what `prepare` gave, trainers first."""

        def same(processes: int) -> dict[str, list[Any]]:
            return {"address": [metadata[0]] * processes, "receivers": [rollout_world_size] * processes}

        trainers, engines = same(actor_wg_world_size), same(rollout_world_size)
        return trainers | {"receives": [False] * actor_wg_world_size}, engines | {
            "receives": [True] * rollout_world_size
        }

    def init_process_group(self, address: str, receivers: int, receives: bool) -> None:
        """Connect to the sender."""
        self._receivers = receivers
        if receives:
            self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
            self._socket.connect(address)

    def finalize(self) -> None:
        """Close the socket of a sync."""
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None

    async def send_weights(
        self, weights: Iterator[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, Any]:
        """Send all tensors, each to every engine. Gathering a tensor is a collective, so every trainer goes through them."""
        engines = [(await self._socket.recv_multipart())[0] for _ in range(self._receivers)] if self._sends else []
        for name, tensor in weights:
            plain = tensor.detach().to("cpu").contiguous()
            head = json.dumps([name, str(plain.dtype).removeprefix("torch."), list(plain.shape)]).encode()
            values = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if engines else b""
            for engine in engines:
                await self._socket.send_multipart([engine, head, values])
        for engine in engines:
            await self._socket.send_multipart([engine, b"", b""])
            await self._socket.recv_multipart()  # it has them all: now the socket may be closed
        return {}

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Give the tensors as they come."""
        await self._socket.send_multipart([b"here"])
        while True:
            head, values = await self._socket.recv_multipart()
            if not head:
                break
            name, dtype, shape = json.loads(head)
            yield name, torch.frombuffer(bytearray(values), dtype=getattr(torch, dtype)).reshape(shape)
        await self._socket.send_multipart([b"done"])
