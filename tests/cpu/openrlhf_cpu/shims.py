"""Patches on modules that assume CUDA, each placed right after its module is imported. One reason each."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from types import ModuleType

EXTRA_MODULE = "RLSTEP_TEST_MODULE"
"""Names a module that each process of the launch imports after the shims (faults)."""


def install() -> None:
    """Register all patches of this process; nothing heavy is imported here."""
    wrapt.when_imported("torch")(cuda_calls)
    wrapt.when_imported("torch.distributed.device_mesh")(cpu_mesh)
    wrapt.when_imported("openrlhf.utils.distributed_util")(sync_without_nccl)
    wrapt.when_imported("openrlhf.trainer.ray.vllm_worker_wrap")(receive_without_cuda)
    wrapt.when_imported("vllm.model_executor.layers.utils")(keep_weights)
    wrapt.when_imported("transformers.modeling_utils")(attention_without_flash)
    wrapt.when_imported("deepspeed.runtime.zero.partition_parameters")(gather_one_after_another)
    module = os.environ.get(EXTRA_MODULE)
    if module:
        __import__(module)


class _Device(str):
    """What `torch.cuda.current_device()` gives: the CPU where torch wants a device, 0 in a name such as `cuda:0`."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return "0"


def cuda_calls(torch: ModuleType) -> None:
    """OpenRLHF calls these without asking for a GPU (utils/deepspeed/deepspeed.py:97, trainer/ray/ppo_actor.py:171, 600)."""
    if torch.cuda.is_available():
        return
    device = _Device("cpu")
    torch.cuda.current_device = lambda: device
    for name in ("set_device", "synchronize", "empty_cache", "current_stream"):
        setattr(torch.cuda, name, lambda *arguments, **keywords: None)


def cpu_mesh(module: ModuleType) -> None:
    """OpenRLHF asks for a mesh of "cuda" devices (utils/deepspeed/deepspeed.py:105)."""
    original = module.init_device_mesh

    def init_device_mesh(device_type: str, *arguments: Any, **keywords: Any) -> Any:
        return original("cpu" if device_type == "cuda" else device_type, *arguments, **keywords)

    module.init_device_mesh = init_device_mesh  # type: ignore[attr-defined]


class _Group:
    """Broadcasts over TCP with the call that OpenRLHF makes of NCCL's communicator."""

    def __init__(self, group: Any, rank: int) -> None:
        self._group = group
        self._rank = rank

    def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:
        """Send from one rank to all, in place."""
        received = self._group.broadcast(tensor, src)
        if self._rank != src:
            tensor.copy_(received)


def sync_without_nccl(module: ModuleType) -> None:
    """The group between trainer and engines is NCCL whatever `--vllm.sync_backend` says (utils/distributed_util.py:21)."""

    def stateless_init_process_group(address: str, port: int, rank: int, world_size: int, device: Any) -> _Group:
        from vllm.distributed.utils import StatelessProcessGroup

        return _Group(StatelessProcessGroup.create(host=address, port=port, rank=rank, world_size=world_size), rank)

    module.stateless_init_process_group = stateless_init_process_group  # type: ignore[attr-defined]


def receive_without_cuda(module: ModuleType) -> None:
    """The engine's side allocates each weight with `device="cuda"` (trainer/ray/vllm_worker_wrap.py:40)."""
    import torch
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            keywords = dict(kwargs or {})
            if str(keywords.get("device", "")).startswith("cuda"):
                keywords["device"] = torch.device("cpu")
            return function(*args, **keywords)

    original = module.WorkerWrap.update_weight

    def update_weight(self: Any, *arguments: Any, **keywords: Any) -> Any:
        with OnCpu():
            return original(self, *arguments, **keywords)

    module.WorkerWrap.update_weight = update_weight


def keep_weights(module: ModuleType) -> None:
    """vLLM's CPU engine repacks each weight and drops the original, so that no sync could load into it."""
    import torch

    original = module.dispatch_cpu_unquantized_gemm

    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
        if not layer.weight.is_meta and layer.weight.ndim == 2:
            layer.cpu_linear = torch.nn.functional.linear
        else:
            original(layer, remove_weight)

    module.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm  # type: ignore[attr-defined]


def attention_without_flash(module: ModuleType) -> None:
    """Packed samples force flash attention (cli/train_ppo_ray.py); sdpa reads packed position ids as well."""
    original = module.PreTrainedModel._check_and_adjust_attn_implementation

    def check(self: Any, attention: Any, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(attention, str) and attention.startswith("flash_attention"):
            attention = "sdpa"
        return original(self, attention, *arguments, **keywords)

    module.PreTrainedModel._check_and_adjust_attn_implementation = check


def gather_one_after_another(module: ModuleType) -> None:
    """ZeRO-3 gathers a module's parameters at once and waits for the last gather only (0.19.6, partition_parameters.py:2082).

    NCCL ends them in order. Gloo has two threads: an earlier gather may end after a weight was loaded into its buffer, and the
    model then trains on memory that was never written. DeepSpeed's own other way gathers and waits parameter by parameter.
    """

    def one_after_another(self: Any, parameters: Any, hierarchy: int = 0, quantize: bool = False) -> None:
        self._allgather_params_sequential(parameters, hierarchy=hierarchy)

    module.Init._allgather_params_coalesced = one_after_another
