"""Lets FSDP1 train verl's engines on a CPU. verl's processes load this module, which places the two shims where it is imported."""

from __future__ import annotations

from torch.distributed.fsdp import _init_utils
from verl.utils import fsdp_utils


class Cpu(str):
    """The name of the device where verl writes its number behind its kind, which are one here (utils/fsdp_utils.py 0.9.1:229)."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        """The number."""
        return "0"


def place() -> None:
    """Let FSDP1 send the weights of rank 0 on a CPU: torch asks for a GPU there, which gloo needs not (_init_utils.py 2.13.0:1165). And
    let verl bring its shards back from an offload."""
    _init_utils._check_module_states_for_sync_module_states = lambda module_states: None
    fsdp_utils.get_device_id = lambda: Cpu("cpu")


place()
