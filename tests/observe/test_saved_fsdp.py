"""What FSDP2's files of a checkpoint have of what a process holds, in both of accelerate's forms. The mesh has one process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from rlstep_hooks.observe.sharding.saved_fsdp import (  # noqa: E402
    is_cut_by_fsdp2,
    moments_written,
    steps_written,
    weights_written,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Written = Callable[[Path, dict[str, Any], dict[str, Any]], None]


@pytest.fixture(autouse=True)
def a_group_of_one(tmp_path: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as changed:
        changed.setitem(os.environ, "GLOO_SOCKET_IFNAME", "lo")
        store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        yield
        torch.distributed.destroy_process_group()


@pytest.fixture
def trained() -> tuple[Any, Any]:
    """A model that FSDP2 has cut, and its optimizer after one step."""
    fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
    model = torch.nn.Sequential(torch.nn.Linear(3, 40), torch.nn.Linear(40, 2))
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    model = fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def states_of(model: Any, optimizer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    return model.state_dict(), get_optimizer_state_dict(model, optimizer)


def written_in_parts(folder: Path, weights: dict[str, Any], optimizer: dict[str, Any]) -> None:
    """As accelerate writes `SHARDED_STATE_DICT`."""
    from torch.distributed.checkpoint import FileSystemWriter, save

    save({"model": weights}, storage_writer=FileSystemWriter(folder / "pytorch_model_fsdp_0"))
    save({"optimizer": optimizer}, storage_writer=FileSystemWriter(folder / "optimizer_0"))


def written_whole(folder: Path, weights: dict[str, Any], optimizer: dict[str, Any]) -> None:
    """As accelerate writes `FULL_STATE_DICT`."""
    torch.save({name: whole(of) for name, of in weights.items()}, folder / "pytorch_model_fsdp.bin")
    states = {name: {kept: whole(of) for kept, of in state.items()} for name, state in optimizer["state"].items()}
    torch.save({"state": states, "param_groups": optimizer["param_groups"]}, folder / "optimizer.bin")


def whole(of: Any) -> Any:
    return of.full_tensor() if hasattr(of, "full_tensor") else of


@pytest.fixture(params=[written_in_parts, written_whole])
def write(request: pytest.FixtureRequest) -> Written:
    found: Written = request.param
    return found


def test_what_was_saved_is_as_saved(write: Written, trained: tuple[Any, Any], tmp_path: Path) -> None:
    model, optimizer = trained
    assert is_cut_by_fsdp2(model)
    assert not is_cut_by_fsdp2(torch.nn.Linear(2, 2))
    write(tmp_path, *states_of(model, optimizer))
    assert weights_written(tmp_path, model, whole=True) == "as saved"
    assert moments_written(tmp_path, model, optimizer, whole=True) == "as saved"
    assert steps_written(tmp_path, model) == 1


def test_weights_and_moments_of_another_update_are_others(
    write: Written, trained: tuple[Any, Any], tmp_path: Path
) -> None:
    model, optimizer = trained
    write(tmp_path, *states_of(model, optimizer))
    with torch.no_grad():
        model[1].bias[1] += 0.5
    assert weights_written(tmp_path, model, whole=True) == "others"
    assert moments_written(tmp_path, model, optimizer, whole=True) == "as saved"
    optimizer.state[model[0].weight]["exp_avg_sq"].mul_(2)
    assert moments_written(tmp_path, model, optimizer, whole=True) == "others"


def test_a_tensor_that_is_left_out_is_another(write: Written, trained: tuple[Any, Any], tmp_path: Path) -> None:
    model, optimizer = trained
    weights, states = states_of(model, optimizer)
    del weights["0.bias"]
    write(tmp_path, weights, states)
    assert weights_written(tmp_path, model, whole=True) == "others"


def test_files_that_are_not_there_say_nothing(trained: tuple[Any, Any], tmp_path: Path) -> None:
    model, optimizer = trained
    assert weights_written(tmp_path, model, whole=True) == "unknown"
    assert moments_written(tmp_path, model, optimizer, whole=True) == "unknown"
    assert steps_written(tmp_path, model) is None


def test_whole_tensors_are_read_by_their_writer_alone(trained: tuple[Any, Any], tmp_path: Path) -> None:
    model, optimizer = trained
    written_whole(tmp_path, *states_of(model, optimizer))
    assert weights_written(tmp_path, model, whole=False) == "unknown"
    assert moments_written(tmp_path, model, optimizer, whole=False) == "unknown"
