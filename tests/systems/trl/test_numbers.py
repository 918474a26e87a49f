"""Numbers of micro-batches, worked up together: the same as one by one, also where somebody writes to what a loss had used."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest
import torch

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.observe.bits import SumsOfMoment, sum_of_bits
from rlstep_hooks.observe.deferred import DeferredValues
from rlstep_hooks.observe.graded import GradedByHooks
from rlstep_hooks.observe.gradient_watch import GradientWatch
from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.kept_tensors import KeptTensors
from rlstep_hooks.observe.numbers import Columns, Numbers
from rlstep_hooks.observe.optimizer_replay import OptimizerReplay
from rlstep_hooks.observe.replicas import Replicated, ReplicaWatch
from rlstep_hooks.observe.weight_probe import WeightProbe
from rlstep_hooks.observe.weight_sums import TensorSums, weights_of
from rlstep_hooks.record.events import Measured, MicroBatchValues, UpdateValues
from rlstep_hooks.record.ledger import MemoryLedger
from rlstep_hooks.session.recorder import Recorder
from rlstep_hooks.systems.trl.observe.backward import Backward
from rlstep_hooks.systems.trl.observe.checksums import SMALL, small_of_bits
from rlstep_hooks.systems.trl.observe.loss_inputs import LossSettings, LossTerms
from rlstep_hooks.systems.trl.observe.measure import CHECKS, ROWS, MicroBatchMeter, entropy_split
from rlstep_hooks.systems.trl.observe.numbers import NumberCollector
from rlstep_hooks.systems.trl.observe.sampled_log_probs import SampledLogProbs
from rlstep_hooks.systems.trl.observe.updates import UpdateObserver

SETTINGS = LossSettings(
    loss_type="bnpo",
    epsilon_low=0.2,
    epsilon_high=0.2,
    max_completion_length=3,
    processes=1,
    steps_per_generation=1,
    includes_accumulation=False,
)


def slice_of_a_rollout(meter: MicroBatchMeter, old: torch.Tensor | None = None) -> dict[str, Any]:
    """Two samples of three tokens, the last one padding."""
    inputs: dict[str, Any] = {
        "completion_ids": torch.tensor([[5, 6, 7], [8, 9, 0]]),
        "completion_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
        "advantages": torch.tensor([1.0, -0.5]),
    }
    meter.mark(inputs, torch.arange(2), old)
    return inputs


def values(meter: MicroBatchMeter) -> list[MicroBatchValues]:
    numbers = Numbers()
    for source, vector in meter.work_up():
        numbers.add(source, vector)
    numbers.send()
    measured = numbers.measured(lambda: 0.0)
    return [] if measured is None else list(measured.microbatches)


def terms(value: float) -> LossTerms:
    return LossTerms(settings=SETTINGS, value=torch.tensor(value))


def test_numbers_of_a_micro_batch() -> None:
    meter = MicroBatchMeter(SETTINGS)
    old = torch.tensor([[-1.0, -1.0, -1.0], [-2.0, -2.0, -2.0]])
    inputs = slice_of_a_rollout(meter, old)
    # Ratios e**0.5 (clipped: positive advantage), 1, 1, then e**-0.5 (clipped: negative advantage), 1, and padding.
    new = old + torch.tensor([[0.5, 0.0, 0.0], [-0.5, 0.0, 9.0]])
    documented = -(1.2 + 1 + 1 - 0.5 * (0.8 + 1)) / 5
    meter.hold(3, inputs, new, old, terms(documented / 2), Backward())
    meter.hold(4, inputs, old.clone(), old + 1, None, Backward())
    meter.hold(5, inputs, new, None, None, Backward())
    first, second, third = sorted(values(meter), key=lambda one: one.index)
    assert (first.index, first.tokens, first.clipped) == (3, 5, pytest.approx(2 / 5))
    assert (first.max_abs_log_ratio, first.mean_abs_log_ratio) == (0.5, pytest.approx(0.2))
    assert (first.old_intact, first.tokens_intact) == (True, True)
    assert first.loss_ratio == pytest.approx(0.5, rel=1e-5)
    assert (second.old_intact, second.tokens_intact, second.max_abs_log_ratio) == (False, True, 1.0)
    assert second.loss_ratio is None
    assert (third.max_abs_log_ratio, third.clipped, third.old_intact) == (0.0, 0.0, None)


def test_completions_of_several_processes_have_checksums_that_padding_does_not_change() -> None:
    """A completion of four tokens and one of two, in rows of other lengths."""
    wide, narrow = MicroBatchMeter(SETTINGS, joined=True), MicroBatchMeter(SETTINGS, joined=True)
    alone = MicroBatchMeter(SETTINGS)
    found = {}
    for name, meter, padding in (("wide", wide, 3), ("narrow", narrow, 1), ("alone", alone, 1)):
        inputs: dict[str, Any] = {
            "completion_ids": torch.tensor([[5, 6, 7, 8] + [99] * padding, [9, 9] + [99] * (2 + padding)]),
            "completion_mask": torch.tensor([[1] * 4 + [0] * padding, [1] * 2 + [0] * (2 + padding)]),
            "advantages": torch.tensor([1.0, -0.5]),
        }
        meter.mark(inputs, torch.arange(2), None)
        new = torch.full((2, 4 + padding), -20.25)
        meter.hold(7, inputs, new, None, None, Backward(), drawn_in=3)
        [found[name]] = values(meter)
    assert (found["wide"].improbable, found["wide"].improbable_in) == (found["narrow"].improbable, 3)
    assert sorted(of.partition(":")[2] for of in found["wide"].improbable.split()) == ["40", "81"]
    assert (found["alone"].improbable, found["alone"].improbable_in) == ("", None)


def test_old_log_probs_of_sequences_are_compared_sample_by_sample() -> None:
    meter = MicroBatchMeter(None)
    old = torch.tensor([-3.0, -4.0])
    inputs = slice_of_a_rollout(meter, old)
    new = torch.tensor([[-1.0, -1.0, -1.0], [-2.0, -2.0, -9.0]])
    meter.hold(0, inputs, new, old, None, Backward())
    meter.hold(1, inputs, new, old.flip(0), None, Backward())
    intact, swapped = values(meter)
    assert (intact.scope, intact.max_abs_log_ratio, intact.old_intact) == ("sequence", 0.0, True)
    assert (swapped.max_abs_log_ratio, swapped.old_intact) == (1.0, False)


def test_a_rollout_that_is_not_followed_comes_without_checksums() -> None:
    meter = MicroBatchMeter(SETTINGS)
    old = torch.tensor([[-1.0, -1.0, -1.0], [-2.0, -2.0, -2.0]])
    inputs = {name: tensor for name, tensor in slice_of_a_rollout(meter, old).items() if name != CHECKS}
    meter.mark(inputs, torch.arange(2), old, carried=False, whole=False, alike=False)
    assert CHECKS not in inputs
    meter.hold(0, inputs, old.clone(), old, None, Backward())
    [value] = values(meter)
    assert value.left_out
    assert value.old_intact is value.tokens_intact is value.advantages_intact is None
    lost = MicroBatchMeter(SETTINGS)  # the trainer did not hand on what it does not know
    lost.hold(0, {name: tensor for name, tensor in inputs.items() if name != ROWS}, old.clone(), old, None, Backward())
    [value] = values(lost)
    assert not value.left_out


def test_writes_to_old_log_probs_after_a_loss_do_not_change_its_numbers() -> None:
    meter = MicroBatchMeter(SETTINGS)
    old = torch.full((2, 3), -1.0)
    inputs = slice_of_a_rollout(meter, old)
    meter.hold(0, inputs, torch.full((2, 3), -1.0), old, None, Backward())
    old.add_(1)
    meter.hold(1, inputs, torch.full((2, 3), -1.0), old, None, Backward())
    before, after = values(meter)
    assert (before.old_intact, before.max_abs_log_ratio) == (True, 0.0)
    assert (after.old_intact, after.max_abs_log_ratio) == (False, 1.0)


def test_nothing_waits_once_somebody_writes_to_what_a_loss_had_used() -> None:
    meter = MicroBatchMeter(SETTINGS)
    inputs = slice_of_a_rollout(meter)
    new = torch.full((2, 3), -1.0)
    meter.hold(0, inputs, new, None, None, Backward())
    inputs["completion_ids"][0, 0] = 1
    meter.hold(1, inputs, new, None, None, Backward())
    inputs["completion_ids"][0, 0] = 5
    meter.hold(2, inputs, new, None, None, Backward())
    assert [(one.index, one.tokens_intact) for one in values(meter)] == [(1, False), (2, True)]


def test_numbers_wait_for_the_interval_and_for_the_end_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(ledger := MemoryLedger(), Judge())
    now = iter([0.0, 0.4, 0.6])
    monkeypatch.setattr(recorder, "now", lambda: next(now, 1.0))
    meter = MicroBatchMeter(None)
    collector = NumberCollector(recorder, meter, updates_of_nothing(recorder), interval=0.5)
    inputs, new = slice_of_a_rollout(meter), torch.zeros((2, 3))
    for index in range(3):
        collector.collect()  # at 0.0, 0.4 and 0.6 seconds
        meter.hold(index, inputs, new, None, None, Backward())
    assert not [event for event in ledger.events if isinstance(event, Measured) and len(event.microbatches) != 2]
    collector.finish()
    measured = [event for event in ledger.events if isinstance(event, Measured)]
    assert [[one.index for one in event.microbatches] for event in measured] == [[0, 1], [2]]


def updates_of_nothing(recorder: Recorder) -> UpdateObserver:
    """An observer of a trainer whose optimizer is never stepped."""

    class Part:
        def __getattr__(self, name: str) -> Any:
            return 0 if name == "global_step" else None

    class Trainer:
        state = Part()
        accelerator = Part()

    return UpdateObserver(Trainer(), recorder)


def test_a_probe_compares_many_updates_at_once() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    probe = WeightProbe([weight])
    for update, rate in enumerate((0.5, 0.0, 0.5)):
        weight.grad = torch.tensor([1.0, 0.0, 1.0])
        probe.before_step()
        with torch.no_grad():
            weight.sub_(rate * weight.grad)
        probe.after_step(update, rate)
        if update == 1:
            with torch.no_grad():
                weight[1] = 7.0
    worked_up = probe.work_up()
    assert worked_up is not None
    updates, numbers = worked_up
    assert updates == (0, 1, 2)
    changed, with_gradient, visible, moved, largest, left_over = numbers.reshape(6, 3).tolist()
    assert changed == [2, 0, 2]
    assert with_gradient == [2, 2, 2]
    assert visible == [2, 0, 2]
    assert moved == [0, 0, 1]
    assert largest == [0.5, 0.0, 0.5]
    assert left_over == [-1, -1, -1]  # no window was begun, so nobody looked
    assert probe.work_up() is None


def test_weights_that_are_no_numbers_were_moved_by_nobody() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, float("nan")]))
    probe = WeightProbe([weight])
    for update in range(2):
        weight.grad = torch.ones(2)
        probe.before_step()
        probe.after_step(update, 0.0)
    worked_up = probe.work_up()
    assert worked_up is not None
    assert worked_up[1].reshape(6, 2)[3].tolist() == [0, 0]


def test_nothing_is_read_from_the_device_before_numbers_are_fetched() -> None:
    """Tensors without data (torch's meta device) refuse to be read: what would wait for a GPU raises here."""
    meter = MicroBatchMeter(SETTINGS)
    old, new = torch.empty((2, 3), device="meta"), torch.empty((2, 3), device="meta")
    inputs = {
        "completion_ids": torch.empty((2, 3), dtype=torch.int64, device="meta"),
        "completion_mask": torch.empty((2, 3), dtype=torch.int64, device="meta"),
        "advantages": torch.empty(2, device="meta"),
    }
    meter.mark(inputs, torch.arange(2), old)
    loss = LossTerms(
        settings=msgspec.structs.replace(SETTINGS, beta=0.1, weighs_kl=True),
        value=torch.empty((), device="meta"),
        reference=torch.empty((2, 3), device="meta"),
    )
    arrived = torch.empty((), device="meta"), torch.empty((2, 3), device="meta")
    for index in range(2):
        meter.hold(
            index,
            inputs,
            new,
            old,
            loss,
            Backward(followed=True, divisor=1, at_loss=arrived[0], at_log_probs=arrived[1]),
        )
    ((source, vector),) = meter.work_up()
    assert (vector.device.type, vector.numel()) == ("meta", 2 * len(source.names))
    assert {"loss", "backward_ratio", "gradient_gap"} <= set(source.names)

    weight = torch.nn.Parameter(torch.empty(5, device="meta"))
    weight.grad = torch.empty(5, device="meta")
    probe = WeightProbe([weight])
    for update in range(2):
        probe.before_step()
        probe.after_step(update, 0.1)
    worked_up = probe.work_up()
    assert worked_up is not None
    assert (worked_up[1].device.type, worked_up[1].numel()) == ("meta", 12)

    replay = OptimizerReplay(probe.probed, torch.optim.AdamW([weight]))
    for update in range(2):
        replay.before_step(compared=True)
        replay.after_step(update)
    replayed = replay.work_up()
    assert replayed is not None
    assert (replayed[1].device.type, replayed[1].numel()) == ("meta", 8)


def test_numbers_of_what_is_offloaded_come_from_another_device() -> None:
    deferred: DeferredValues[str] = DeferredValues()
    for name, device in (("one", "cpu"), ("two", "meta"), ("three", "cpu")):
        deferred.add(name, torch.zeros(2, device=device))
    deferred.send()
    found = [(key, vector.device.type) for key, vector in deferred.tensors()]
    assert found == [("one", "cpu"), ("three", "cpu"), ("two", "meta")]


def test_a_column_becomes_the_field_of_its_name_as_the_type_of_the_field_says() -> None:
    names = ("tokens", "max_abs_log_ratio", "sum_abs_log_ratio", "old_intact", "loss_gap", "learning", "undecided")
    asked: list[int] = []

    def named() -> str:
        asked.append(1)
        return "half of it"

    columns = Columns(MicroBatchValues, (4, 7), names, ({"loss_like": named}, {"loss_like": named}))
    found = columns.values([8, 0, 0.25, 0, 2, float("nan"), 3, 0, 40, 31.5, 0, 0, 0, 0])
    assert found[4] == {
        "tokens": 8,
        "max_abs_log_ratio": 0.25,
        "mean_abs_log_ratio": 0.25,
        "old_intact": False,
        "loss_gap": 40.0,
        "learns": "no",
        "loss_like": "half of it",
    }
    # Without a token there is no ratio.
    assert found[7] == {"tokens": 0, "old_intact": True, "loss_gap": 31.5, "learns": "no", "loss_like": ""}
    assert asked == [1], "a function that may wait for the device is called for a wrong number only"
    assert Columns(UpdateValues, (0,), ("left_over", "max_change")).values([-1.0, float("inf")]) == {
        0: {"left_over": None, "max_change": None}
    }


class Gaps:
    """Takes down what cannot be observed."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def cannot(self, what: str, why: str) -> None:
        self.said.append((what, why))


def test_a_generation_that_lays_sequences_end_to_end_gives_no_log_probs() -> None:
    """As transformers' continuous batching does: its processors get all ids in one row, and the error of the hook hid the topic."""
    gaps = Gaps()
    trainer = SimpleNamespace(temperature=1.0, model=torch.nn.Linear(1, 1), args=SimpleNamespace())
    watch = SampledLogProbs(trainer, gaps)
    processors: list[Any] = []
    watch.begin(looks=True)
    watch.see(processors)
    for _ in range(2):
        processors[0](torch.tensor([3, 4, 5]), torch.zeros(1, 3, 8))
    assert watch.take(torch.zeros(1, 2, dtype=torch.int64)) is None
    assert gaps.said == []


def test_watches_of_one_moment_read_a_tensor_once_and_the_next_moment_reads_it_again() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    groups = [Replicated("weights", [("weight", weight)])]
    replicas, sums, moment = ReplicaWatch(groups), TensorSums(weights_of([weight])), SumsOfMoment()
    summed = mock.Mock(side_effect=sum_of_bits)
    with mock.patch("rlstep_hooks.observe.bits.sum_of_bits", summed):
        sums.after_step(moment)
        replicas.look(0, "after", moment)
        assert summed.call_count == 1
        moment.begin()
        with torch.no_grad():
            weight[0] = 3.0
        replicas.look(1, "before", moment)
        sums.before_step(1, moment)
        assert summed.call_count == 2
    assert [(update, moved.item()) for update, moved in sums.work_up()] == [(1, 1.0)]
    replicas.send()
    before, after = (event.sums for event in replicas.arrived(lambda: 0.0, wait=True))
    assert before != after


def test_tensors_come_by_turns_though_other_watches_of_this_package_have_hooks_on_all_of_them() -> None:
    """Only hooks of somebody else make a tensor come first: with GradedByHooks on all of them the same eight were followed for ever."""
    named = [(f"model.layers.{place}.weight", torch.nn.Parameter(torch.ones(2, 2))) for place in range(20)]
    GradedByHooks((name, tensor, 2) for name, tensor in named).begin()
    watch = GradientWatch(named, Guard(Recorder(MemoryLedger(), Judge()), ("gradient",)))
    followed = set()
    for update in range(3):
        watch.begin_window()
        sum(tensor.sum() for _, tensor in named).backward()  # type: ignore[attr-defined]
        watch.before_step(update)
        for source, _ in watch.work_up():
            followed |= set(source.names)
    assert followed == {name for name, _ in named}

    named[17][1].register_hook(lambda gradient: gradient * 0)
    watch.begin_window()
    sum(tensor.sum() for _, tensor in named).backward()  # type: ignore[attr-defined]
    watch.before_step(3)
    [(source, _)] = watch.work_up()
    assert source.names[0] == named[17][0]


def test_a_small_checksum_tells_rewards_and_their_order() -> None:
    rewards = torch.tensor([[[1.0], [0.0], [2.0], [torch.nan]]] * 3)
    rewards[1] = rewards[1].roll(1, 0)
    rewards[2, 0] = 1.0 + 2.0**-23
    first, moved, other = small_of_bits(rewards).float().tolist()  # float32 holds them exactly
    assert len({first, moved, other}) == 3
    assert max(first, moved, other) <= SMALL
    assert small_of_bits(rewards[:1]).float().tolist() == [first]


def test_the_matrices_that_a_backward_pass_does_not_reach_are_told_though_they_have_a_gradient() -> None:
    """As in DDP, where the reducer gives a rank what others computed."""
    named = [(f"model.layers.{place}.weight", torch.nn.Parameter(torch.ones(2, 2))) for place in range(3)]
    watch = GradedByHooks((name, tensor, 2) for name, tensor in named)
    for reached in (3, 2):
        watch.begin()
        sum(tensor.sum() for _, tensor in named[:reached]).backward()  # type: ignore[attr-defined]
        found = watch.look()
    assert found == {"gradient_lost": 1}
    assert named[2][1].grad is not None


def test_the_edges_of_what_is_trained_for_its_entropy() -> None:
    entropies = torch.tensor([[1.0, 2.0, 3.0], [4.0, 9.0, 2.5]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 1]])
    kept = entropy_split(entropies, mask, (entropies > 2.25) & mask.bool())
    assert {name: float(of) for name, of in kept.items()} == {
        "least_kept_entropy": 2.5,
        "most_left_entropy": 2.0,
        "entropies": 5.0,
        "entropies_kept": 3.0,
        "entropies_at_least": 1.0,
    }
    assert [float(of) for of in entropy_split(entropies, mask, mask.bool()).values()] == [1.0, -math.inf, 5.0, 5.0, 1.0]


def test_of_a_frozen_weight_that_zero_has_cut_the_part_is_compared_while_it_is_in_memory() -> None:
    model = torch.nn.Linear(2, 2, bias=False)
    model.requires_grad_(False)
    status = SimpleNamespace(name="AVAILABLE")
    model.weight.ds_tensor = part = torch.ones(2)
    part.status = status  # type: ignore[attr-defined]
    model.weight.data = torch.empty(0)
    kept = KeptTensors(model)
    kept.look(0, 0)
    part[0] = 2.0
    kept.look(1, 1)
    status.name = "NOT_AVAILABLE"
    kept.look(2, 2)
    assert [(source.update, moved.tolist()) for source, moved in kept.work_up()] == [(0, [0.0]), (1, [1.0])]
