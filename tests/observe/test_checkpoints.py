"""What a trainer noted of a checkpoint, and what is said of a run that resumes from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.observe.checkpoints import State, note_saved, restored, saved

if TYPE_CHECKING:
    from pathlib import Path

ALL = dict.fromkeys(("model", "optimizer", "extra"), True)


@dataclass(frozen=True)
class Resumed:
    """A resumed run: what it holds, what it held before it loaded anything, and what was noted."""

    now: State
    noted: State | None
    model: bool = True
    exact: bool = True


@pytest.mark.parametrize("state", [State(7), State(7, optimizer_step=3, lr_tick=2)])
def test_a_note_is_found_again_by_the_checkpoint_and_the_process(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    note_saved(tmp_path, "rank0", "checkpoints/step1", state)
    assert saved(tmp_path, "rank0", "checkpoints/step1") == state
    assert saved(tmp_path, "rank0", str(tmp_path / "checkpoints/step1")) == state, "the same folder"
    assert saved(tmp_path, "rank1", "checkpoints/step1") is None
    assert saved(tmp_path, "rank0", "checkpoints/step2") is None
    assert saved(tmp_path, "rank0", "") is None, "none was loaded"


@pytest.mark.parametrize(
    ("run", "weights"),
    [
        (Resumed(State(7), State(7)), "as saved"),
        (Resumed(State(8), State(7)), "others"),
        (Resumed(State(1), None), "those before the checkpoint"),
        (Resumed(State(1), None, exact=False), "unknown"),
        (Resumed(State(7), None), "unknown"),
        (Resumed(State(8), State(7), model=False), "not loaded by the configuration"),
    ],
)
def test_what_became_of_the_weights(run: Resumed, weights: str) -> None:
    loads = ALL | {"model": run.model}
    assert restored(run.now, State(1), run.noted, loads=loads, exact=run.exact)["weights"] == weights


def test_steps_and_ticks_are_said_where_they_are_loaded() -> None:
    now, noted = State(7, optimizer_step=4, lr_tick=5), State(7, optimizer_step=3, lr_tick=2)
    assert restored(now, now, noted, loads=ALL, exact=True) == {
        "weights": "as saved",
        "optimizer_step": 4,
        "saved_optimizer_step": 3,
        "lr_tick": 5,
        "saved_lr_tick": 2,
        "optimizer_left_out": None,
    }
    without = restored(now, now, noted, loads=ALL | {"optimizer": False, "extra": False}, exact=True)
    assert (without["optimizer_step"], without["lr_tick"], without["optimizer_left_out"]) == (None, None, 4)
    neither = restored(now, now, noted, loads=dict.fromkeys(ALL, False), exact=True)
    assert neither["optimizer_left_out"] is None, "a run that keeps nothing of the checkpoint"
