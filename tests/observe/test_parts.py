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


class Stepped:
    """A model of two tensors, of which the second may get a gradient later; its updates are followed as a run of one process follows
    them."""

    def __init__(self) -> None:
        self.weights = [torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(4))]
        self.optimizer = torch.optim.SGD(self.weights, lr=0.5)
        self.steps = StepFollower(RECORDER)
        self.steps.watch_weights(self.weights)
        self.steps.watch_graded((f"layers.{place}.proj", of) for place, of in enumerate(self.weights))
        self.steps.watch_model(self.weights)

    def train(self, update: int, *, looks: bool, reaches: int = 2) -> None:
        """Make an update, whose gradients reach so many tensors."""
        self.steps.begin_window(probed=looks)
        for of in self.weights[:reaches]:
            of.grad = torch.ones(4)
        self.steps.before_step(update, replayed=looks, probed=looks, whole=looks)
        self.optimizer.step()
        self.steps.after_step(update, 0.5, whole=looks)
        self.optimizer.zero_grad()

    def told(self) -> dict[int, dict[str, Any]]:
        """What is known of each probed update."""
        found: dict[int, dict[str, Any]] = {}
        for meaning, vector in self.steps._worked_up():
            for update, fields in meaning.values(vector.tolist()).items():
                found.setdefault(update, {}).update(fields)
        return found


def test_updates_that_are_passed_over_leave_nothing_behind_for_the_next_one_that_is_looked_at() -> None:
    run = Stepped()
    run.train(0, looks=True)
    for update in range(1, 5):
        run.train(update, looks=False)
    run.train(5, looks=True)
    told = run.told()
    assert {*told} == {0, 1, 5}, "the update after one that was looked at begins with what that left"
    assert (told[5]["changed"], told[5]["moved_before"], told[5]["max_change"]) == (8, 0, 0.5)
    assert told[1] == {"tensors_moved": 0}


def test_a_write_before_the_update_after_one_that_was_looked_at_is_found() -> None:
    run = Stepped()
    run.train(0, looks=True)
    with torch.no_grad():
        run.weights[1][3] = 7.0
    run.train(1, looks=False)
    run.train(2, looks=False)
    assert run.told()[1] == {"tensors_moved": 1}


def test_a_tensor_without_a_gradient_is_looked_at_in_each_update_until_it_has_one() -> None:
    run = Stepped()
    run.train(0, looks=True, reaches=1)
    run.train(1, looks=False, reaches=1)
    run.train(2, looks=False, reaches=1)
    run.train(3, looks=False, reaches=2)
    run.train(4, looks=True)
    assert run.told()[4]["ungraded"] == 0
    assert run.told() == {}
