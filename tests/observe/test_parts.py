"""Weights of a large model that are read part by part, and the norm of its gradients where nobody passes over all of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from rlstep_hooks.observe.bits import SMALL, part_of  # noqa: E402 - torch may be missing
from rlstep_hooks.observe.compared import part_read  # noqa: E402
from rlstep_hooks.observe.guard import Guard  # noqa: E402
from rlstep_hooks.observe.reduction import ReductionWatch  # noqa: E402
from rlstep_hooks.observe.replicas import Replicated, ReplicaWatch  # noqa: E402
from rlstep_hooks.observe.sharding.replicated import WholeParameter  # noqa: E402
from rlstep_hooks.observe.steps import StepFollower  # noqa: E402
from rlstep_hooks.record import cadence  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

PER_CYCLE = 2
RECORDER: Any = SimpleNamespace(cannot=lambda what, why: pytest.fail(f"{what}: {why}"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("numel", [SMALL + 1, 10_007, 70_000])
def test_the_parts_of_a_tensor_are_all_of_it(numel: int, dtype: Any) -> None:
    tensor = torch.arange(numel).to(dtype)
    parts = [part_of(tensor, part) for part in range(cadence.PARTS)]
    assert torch.equal(torch.cat(parts), tensor)
    assert all(part.numel() for part in parts)


def test_parts_are_read_in_the_first_cycles_but_for_the_very_first() -> None:
    updates = range(cadence.ALL_OF_FIRST * PER_CYCLE + 2)
    read = [part_read(update, PER_CYCLE) for update in updates]
    assert read[:PER_CYCLE] == read[cadence.ALL_OF_FIRST * PER_CYCLE :] == [None] * PER_CYCLE
    assert {*read[PER_CYCLE : cadence.ALL_OF_FIRST * PER_CYCLE]} == {*range(cadence.PARTS)}


class Run:
    """A model whose updates are followed: each step adds 1 to all weights."""

    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(7 * SMALL))
        self.buffer = torch.zeros(7 * SMALL)
        named = [Replicated("weights", [("w", self.weight)]), Replicated("buffers", [("b", self.buffer)])]
        self.replicas = ReplicaWatch(named)
        self.steps = StepFollower(RECORDER)
        self.steps.part_of_update = lambda update: part_read(update, PER_CYCLE)
        self.steps.watch_replicas(self.replicas, 0)
        self.steps.watch_model([self.weight])

    def train(self, updates: int, before: Callable[[int], None] = lambda update: None) -> None:
        """Make updates, and call `before` with each."""
        for update in range(updates):
            before(update)
            self.steps.before_step(update, replayed=False)
            with torch.no_grad():
                self.weight += 1
            self.steps.after_step(update, 0.1, whole=True)

    def looks(self) -> dict[tuple[str, int, str], tuple[int, ...]]:
        """The sums of each look, by kind, update and moment."""
        self.steps.parts_sent()
        arrived = self.steps.parts_arrived(lambda: 0.0, wait=True)
        return {(look.kind, look.update, look.moment): look.sums for look in arrived}

    def moved(self) -> list[int]:
        """The updates before which weights had changed."""
        return [update for update, moved in self.steps._sums.work_up() if moved.item()]


@pytest.fixture
def large() -> Any:
    with mock.patch.object(cadence, "READ_WHOLE", SMALL):
        yield


@pytest.mark.parametrize("place", [0, 3 * SMALL, 7 * SMALL - 1])
def test_one_weight_that_changes_shows_at_once_where_all_are_read(place: int) -> None:
    run, other = Run(), Run()
    run.train(6)
    other.train(6, lambda update: change(other, place) if update == 4 else None)
    theirs = other.looks()
    differ = [at for at, sums in run.looks().items() if sums != theirs[at]]
    assert differ[:2] == [("weights", 4, "before"), ("weights", 4, "after")]
    assert other.moved() == [4]


def change(run: Run, place: int) -> None:
    """Something writes to one weight."""
    run.weight.data[place] += 0.5


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("place", [0, 3 * SMALL, 7 * SMALL - 1])
def test_one_weight_of_a_large_model_shows_once_its_part_is_read(place: int) -> None:
    run, other = Run(), Run()
    run.train(14)
    other.train(14, lambda update: change(other, place) if update == 4 else None)
    theirs = other.looks()
    differ = [at for at, sums in run.looks().items() if sums != theirs[at]]
    assert differ, "all parts come within as many updates"
    part = place // SMALL
    first = next(update for update in range(4, 14) if update % cadence.PARTS == part)
    read_before = part == (4 - 1) % cadence.PARTS
    assert differ[0] == (("weights", 4, "before") if read_before else ("weights", first, "after"))
    assert other.moved() == ([4] if read_before else [])


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("update", range(1, 14))
def test_a_tensor_of_a_large_model_that_is_written_to_shows_at_once(update: int) -> None:
    run, other = Run(), Run()
    run.train(14)
    other.train(14, lambda at: other.weight.data.mul_(1.5) if at == update else None)
    theirs = other.looks()
    assert next(at for at, sums in run.looks().items() if sums != theirs[at]) == ("weights", update, "before")
    assert other.moved() == [update]


@pytest.mark.usefixtures("large")
def test_buffers_are_read_whole() -> None:
    run = Run()
    run.train(6)
    assert len({sums for (kind, _, _), sums in run.looks().items() if kind == "buffers"}) == 1


def clipped(change: Callable[[Any], None], dtype: Any = torch.float32) -> Any:
    """What a clip by a half is seen to be, where something changes gradients too."""
    tensor = torch.nn.Parameter(torch.zeros(64, dtype=dtype))
    watch = ReductionWatch([WholeParameter("w", tensor)], Guard(RECORDER, ("reduction",)), passes=1)
    watch.begin_window()
    (tensor * torch.arange(1, 65)).sum().backward()
    watch.reduced()
    with torch.no_grad():
        tensor.grad.mul_(0.5)
        change(tensor)
    watch.before_step()
    return watch.clip_factor()


def test_what_gradients_are_multiplied_by_after_the_reduction_is_seen() -> None:
    assert clipped(lambda tensor: None).item() == 0.5
    assert clipped(lambda tensor: tensor.grad.mul_(2)).item() == 1.0


def test_a_factor_that_is_not_known_is_none() -> None:
    def drop(tensor: Any) -> None:
        tensor.grad = None

    assert clipped(drop) is None
    assert clipped(lambda tensor: None, torch.bfloat16) is None, "its rounding is no norm's"
