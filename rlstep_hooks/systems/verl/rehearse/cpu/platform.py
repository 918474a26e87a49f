"""A platform "cpu" for verl, through its own PlatformRegistry (plugin/platform/platform_manager.py, 0.9)."""

from __future__ import annotations

import contextlib
import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from verl.plugin.platform.platform_base import PlatformBase

if TYPE_CHECKING:
    from collections.abc import Iterator


def _nothing(*_arguments: object, **_keywords: object) -> None:
    """Stands for a call that has no meaning on a CPU."""


def _zero(*_arguments: object, **_keywords: object) -> int:
    """Stands for a memory counter of a device."""
    return 0


def _memory_in_bytes(_device: object = None) -> tuple[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")


def _device_module() -> ModuleType:
    """`torch.cpu` with those functions of `torch.cuda` that verl calls."""
    module = ModuleType("verl_cpu_device")
    vars(module).update({name: getattr(torch.cpu, name) for name in torch.cpu.__all__})
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, _zero)
    for name in ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "set_device"):
        setattr(module, name, _nothing)
    vars(module).update(
        mem_get_info=_memory_in_bytes,
        get_device_name=lambda *_: "CPU",
        get_rng_state=torch.get_rng_state,
        set_rng_state=torch.set_rng_state,
    )
    return module


class CpuPlatform(PlatformBase):  # type: ignore[misc]  # verl is not typed
    """The processor, described in the terms in which verl describes accelerators."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        # Not an index: verl hands this to tensor.to(), where an index means an accelerator.
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        # Resource pools only count GPUs and NPUs; the launch gives Ray logical GPUs.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def install(module: ModuleType) -> None:
    """Make `VERL_PLATFORM=cpu` known."""
    module.PlatformRegistry.register(platform="cpu")(CpuPlatform)
