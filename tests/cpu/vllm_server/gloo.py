"""Weights sent through gloo where vLLM and TRL use NCCL, which there is on GPUs alone.

This is the stand-in: a process group and its broadcast. All else is as on a GPU: TRL's client and its messages, vLLM's server, its
`nccl` weight transfer engine with packed tensors, and its loading layer by layer.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from types import ModuleType


class Communicator:
    """What is used of vLLM's `PyNcclCommunicator` (device_communicators/pynccl.py 0.32)."""

    def __init__(self, master_address: str, master_port: int, rank: int, world_size: int, device: Any) -> None:
        from vllm.distributed.utils import stateless_init_torch_distributed_process_group

        # Under torchrun torch would take torchrun's own store for this group's (distributed/rendezvous.py 2.13.0:190); NCCL does not.
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
        self._processes = stateless_init_torch_distributed_process_group(
            master_address, master_port, rank, world_size, backend="gloo"
        )
        self.group = SimpleNamespace(store=None, socket=None)
        """TRL's client takes these away when it ends."""

    def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:
        """Send a tensor from one process to all others."""
        from torch._C._distributed_c10d import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        self._processes.broadcast([tensor], options).wait()

    def destroy(self) -> None:
        """Nothing to do: the group ends with its process."""


def install() -> None:
    """Replace NCCL, and what is asked of CUDA beside it, as their modules are imported."""
    wrapt.when_imported("torch")(_without_device)
    wrapt.when_imported("vllm.distributed.weight_transfer.nccl_common")(_with_gloo)
    wrapt.when_imported("vllm.distributed.weight_transfer.packed_tensor")(_without_streams)
    wrapt.when_imported("trl.generation.vllm_client")(_from_the_cpu)


def _without_device(torch: ModuleType) -> None:
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.synchronize = lambda *device: None


def _with_gloo(module: ModuleType) -> None:
    module.stateless_init_process_group = Communicator  # type: ignore[attr-defined]


def _without_streams(module: ModuleType) -> None:
    stream = SimpleNamespace(synchronize=lambda: None)
    module._get_streams = lambda device, buffers: (stream,) * buffers  # type: ignore[attr-defined]


def _from_the_cpu(module: ModuleType) -> None:
    client = module.VLLMClient
    connect = client.init_communicator
    # It refuses any device but CUDA's (vllm_client.py 1.16.0:757); without a number it sets none.
    client.init_communicator = lambda self, device: connect(self, device="cuda")
