"""All hooks of an OpenRLHF process come off: the classes have the identical functions that they had, and get none later."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.openrlhf.observe import attach
from rlstep_hooks.systems.openrlhf.rehearse.cpu import STUBS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

MODULES = (
    "openrlhf.trainer.ppo_trainer",
    "openrlhf.trainer.ppo_utils.samples_generator",
    "openrlhf.trainer.ray.launcher",
    "openrlhf.trainer.ray.ppo_actor",
    "openrlhf.trainer.ray.ppo_critic",
    "openrlhf.trainer.ray.vllm_worker_wrap",
)


def functions() -> dict[str, Any]:
    """Every function of the classes of these modules."""
    return {
        f"{module}.{name}.{attribute}": value
        for module in MODULES
        for name, kind in vars(importlib.import_module(module)).items()
        if inspect.isclass(kind) and kind.__module__ == module
        for attribute, value in vars(kind).items()
        if callable(value)
    }


def test_every_class_has_its_own_functions_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(STUBS)  # a stand-in for flash_attn, which OpenRLHF imports
    monkeypatch.setenv("RLSTEP_DIR", str(tmp_path))
    monkeypatch.setenv("RLSTEP_RUN", "run")
    monkeypatch.setattr(attach, "run_of_ray", lambda: "run")
    before = functions()
    attach.attach()
    attach.attach_engine()
    changed = {name for name, value in functions().items() if value is not before[name]}
    assert {name.rpartition(".")[2] for name in changed} >= {"init_checkpoint_states", "execute_batch", "update_weight"}
    assert all(inspect.isfunction(functions()[name]) for name in changed), "what Ray sends by reference"
    assert attach.detach() == []
    assert all(value is before[name] for name, value in functions().items())
    again = importlib.reload(sys.modules["openrlhf.trainer.ray.vllm_worker_wrap"])
    assert not hasattr(again.WorkerWrap.update_weight, "__wrapped__"), "nothing is placed any more"
