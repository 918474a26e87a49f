"""What DeepSpeed's file of one process has of what it holds. The engine is a stand-in with the attributes that are read of a real one;
real engines are in tests/systems/trl_ranks and tests/systems/openrlhf."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from rlstep_hooks.observe.sharding.saved_zero import parts_restored, parts_saved  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

PADDING = 3


def engine_of(stage: int) -> Any:
    """An engine after one step. What stage 1 and 2 hold is padded at its end."""
    flat = [torch.randn(20_000).requires_grad_(), torch.randn(50).requires_grad_()]
    inner = torch.optim.AdamW([{"params": [of]} for of in flat])
    for of in flat:
        of.grad = torch.randn_like(of)
    inner.step()
    name = "fp32_partitioned_groups_flat" if stage == 3 else "single_partition_of_fp32_groups"
    outer = SimpleNamespace(optimizer=inner, dp_process_group=None, **{name: flat})
    return SimpleNamespace(optimizer=outer, zero_optimization_stage=lambda: stage)


def write(engine: Any, folder: Path, *, elastic: bool = False) -> None:
    """Write the file as DeepSpeed 0.19.8 does (runtime/zero/stage3.py `_rigid_state_dict`, stage_1_and_2.py `state_dict`)."""
    inner = engine.optimizer.optimizer
    if engine.zero_optimization_stage() == 3:
        found = {
            "optimizer_state_dict": inner.state_dict(),
            "fp32_flat_groups": engine.optimizer.fp32_partitioned_groups_flat,
        }
    else:
        lean = [of[:-PADDING] for of in engine.optimizer.single_partition_of_fp32_groups]
        states: Any = inner.state_dict()
        if elastic:
            states = [
                {name: of[:-PADDING] if of.dim() else of for name, of in state.items()}
                for state in states["state"].values()
            ]
        found = {"base_optimizer_state": states, "single_partition_of_fp32_groups": lean}
    torch.save({"optimizer_state_dict": found}, folder / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")


@pytest.fixture(autouse=True)
def rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group=None: 0)


CASES = [(1, False), (2, False), (2, True), (3, False)]


@pytest.mark.parametrize(("stage", "elastic"), CASES)
def test_what_was_saved_is_as_saved(stage: int, elastic: bool, tmp_path: Path) -> None:
    engine = engine_of(stage)
    write(engine, tmp_path, elastic=elastic)
    assert parts_saved(engine, tmp_path) == {"weights that are stepped": "as saved", "moments": "as saved"}
    restored = parts_restored(engine, tmp_path)
    assert restored is not None
    assert (restored["optimizer_step"], restored["saved_optimizer_step"]) == (1, 1)


@pytest.mark.parametrize(("stage", "elastic"), CASES)
@pytest.mark.parametrize("place", [0, 1])
def test_parts_of_another_update_are_others(stage: int, elastic: bool, place: int, tmp_path: Path) -> None:
    engine = engine_of(stage)
    write(engine, tmp_path, elastic=elastic)
    inner = engine.optimizer.optimizer
    with torch.no_grad():
        inner.param_groups[place]["params"][0].mul_(1.01)
    assert parts_saved(engine, tmp_path) == {"weights that are stepped": "others", "moments": "as saved"}
    write(engine, tmp_path, elastic=elastic)
    inner.state[inner.param_groups[place]["params"][0]]["exp_avg"].mul_(1.01)
    assert parts_saved(engine, tmp_path)["moments"] == "others"


def test_an_optimizer_that_forgot_its_moments_has_others(tmp_path: Path) -> None:
    engine = engine_of(2)
    write(engine, tmp_path)
    engine.optimizer.optimizer.state.clear()
    assert parts_saved(engine, tmp_path)["moments"] == "others"


def test_what_cannot_be_read_is_not_compared(tmp_path: Path) -> None:
    engine = engine_of(2)
    assert parts_saved(engine, tmp_path) == {}
    assert parts_restored(engine, tmp_path) is None
    write(engine, tmp_path)
    swapped = [torch.empty(0), torch.empty(0)]
    engine.optimizer.single_partition_of_fp32_groups = swapped
    assert parts_saved(engine, tmp_path)["weights that are stepped"] == "unknown", "they stand on a disk"
    without = SimpleNamespace(optimizer=engine.optimizer, zero_optimization_stage=lambda: 0)
    assert parts_saved(without, tmp_path) == {}
