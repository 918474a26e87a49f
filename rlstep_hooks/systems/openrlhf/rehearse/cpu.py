"""What lets OpenRLHF 0.11 train without a GPU: patches on modules that assume CUDA, each placed after its import. One reason each.

No file of an installed package is changed. Real are Ray, DeepSpeed (ZeRO, its schedulers), vLLM's CPU engine, its sampling and the
loading of every weight that is synced to it. Replaced is what needs CUDA or a compiler: device names, NCCL, flash-attn.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

STUBS = Path(__file__).parent / "stubs"
"""Stands for flash-attn, which `openrlhf.models.ring_attn_utils` imports at its top."""

_HERE = __name__

PATCHES: Mapping[str, str] = {
    "openrlhf": f"{_HERE}:find_stubs",
    "ray": "rlstep_hooks.rehearse.local_ray:no_dashboard",
    "torch": f"{_HERE}:cuda_calls",
    "torch.distributed.device_mesh": f"{_HERE}:cpu_mesh",
    "openrlhf.utils.distributed_util": f"{_HERE}:sync_without_nccl",
    "openrlhf.trainer.ray.vllm_worker_wrap": f"{_HERE}:receive_without_cuda",
    "openrlhf.utils.deepspeed.deepspeed": f"{_HERE}:average_without_cuda",
    "vllm.model_executor.layers.utils": f"{_HERE}:keep_weights",
    "transformers.modeling_utils": f"{_HERE}:attention_without_flash",
    "deepspeed.runtime.zero.partition_parameters": f"{_HERE}:gather_one_after_another",
}
"""Module -> the function that is called with it once it is imported."""

VARIABLES: Mapping[str, str] = {
    "DS_ACCELERATOR": "cpu",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Workers get no less of a busy machine than what starts them (15 by default).
    "RAY_worker_niceness": "0",
    # OpenRLHF asks Ray for GPUs whatever trains on them. Ray wants to see as many, so they have numbers that no machine has.
    "RAY_OVERRIDE_RESOURCES": '{"GPU":8,"CPU":16}',
    "CUDA_VISIBLE_DEVICES": ",".join(str(1000 + index) for index in range(8)),
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""Environment variables of all processes."""


def install() -> None:
    """Register all patches of this process; nothing heavy is imported here."""
    for module, place in PATCHES.items():
        wrapt.register_post_import_hook(place, module)


def find_stubs(openrlhf: ModuleType) -> None:
    """Let the stand-in for flash-attn be found, after any real one."""
    if str(STUBS) not in sys.path:
        sys.path.append(str(STUBS))


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

    module.init_device_mesh = init_device_mesh  # type: ignore[attr-defined]  # of a module that is known by its name only


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

    module.stateless_init_process_group = stateless_init_process_group  # type: ignore[attr-defined]  # of a module that is known by its name only


def receive_without_cuda(module: ModuleType) -> None:
    """The engine's side allocates each weight with `device="cuda"` (trainer/ray/vllm_worker_wrap.py:40)."""
    import torch
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed
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

    module.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm  # type: ignore[attr-defined]  # of a module that is known by its name only


def attention_without_flash(module: ModuleType) -> None:
    """Packed samples force flash attention (cli/train_ppo_ray.py); sdpa reads packed position ids as well."""
    original = module.PreTrainedModel._check_and_adjust_attn_implementation

    def check(self: Any, attention: Any, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(attention, str) and attention.startswith("flash_attention"):
            attention = "sdpa"
        return original(self, attention, *arguments, **keywords)

    module.PreTrainedModel._check_and_adjust_attn_implementation = check


def average_without_cuda(module: ModuleType) -> None:
    """The policy's weights go to "cuda" before they are averaged (trainer/ray/ppo_actor.py:365)."""
    original = module.DeepspeedStrategy.moving_average

    def moving_average(self: Any, model: Any, averaged: Any, beta: float = 0.992, device: str = "cpu") -> None:
        original(self, model, averaged, beta, "cpu")

    module.DeepspeedStrategy.moving_average = moving_average


def gather_one_after_another(module: ModuleType) -> None:
    """ZeRO-3 gathers a module's parameters at once and waits for the last gather only (0.19.6, partition_parameters.py:2082).

    NCCL ends them in order. Gloo has two threads: an earlier gather may end after a weight was loaded into its buffer, and the
    model then trains on memory that was never written. DeepSpeed's own other way gathers and waits parameter by parameter.
    """

    def one_after_another(self: Any, parameters: Any, hierarchy: int = 0, quantize: bool = False) -> None:
        self._allgather_params_sequential(parameters, hierarchy=hierarchy)

    module.Init._allgather_params_coalesced = one_after_another


def no_compiler(module: ModuleType) -> None:
    """DeepSpeed compiles its Adam and its shared memory for the CPU at the first start: a minute, and a compiler that may not be here.

    Placed on `openrlhf.utils.deepspeed.deepspeed`: torch's Adam, by DeepSpeed's own setting, and gloo.
    """
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    original = module.get_train_ds_config

    def get_train_ds_config(*arguments: Any, **keywords: Any) -> Any:
        config = original(*arguments, **keywords)
        parameters = (config.get("optimizer") or {}).get("params")
        if parameters is not None:
            parameters["torch_adam"] = True
        return config

    module.get_train_ds_config = get_train_ds_config  # type: ignore[attr-defined]  # of a module that is known by its name only
