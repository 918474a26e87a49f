"""The order of the rows, in each pass of the loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("trl")

import trl.trainer.grpo_trainer
from packaging.version import Version
from transformers import TrainerCallback

from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import problems
from tests.systems.trl.test_foreign_runs import audited

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    Version("0.18") > RELEASE, reason="before 0.18 a rollout is no whole chunk of the loader"
)

SEVERAL_PASSES: dict[str, Any] = {"rows": 12, "gradient_accumulation_steps": 2, "num_train_epochs": 3}
Sampled: Any = getattr(trl.trainer.grpo_trainer, "RepeatSampler", object)


class SameOrder(Sampled):  # type: ignore[misc]
    """Draws the order of the first pass again in each pass."""

    def __iter__(self) -> Iterator[int]:
        self.generator.manual_seed(self.seed)
        yield from super().__iter__()


class HalfTheRows(Sampled):  # type: ignore[misc]
    """Gives half of the rows twice from the second pass on."""

    passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        for index in super().__iter__():
            yield index if self.passes == 1 else index // 2


class AsTheyStand(Sampled):  # type: ignore[misc]
    """Gives the rows as they stand from the third pass on."""

    passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        self.shuffle = self.passes < 3
        yield from super().__iter__()


@pytest.mark.parametrize(
    ("sampler", "epoch", "after"),
    [
        (SameOrder, 1, "that of the pass before"),
        (HalfTheRows, 1, "another one"),
        (AsTheyStand, 2, "that of the data set"),
    ],
)
def test_another_order_in_a_later_pass_is_found(
    sampler: type, epoch: int, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trl.trainer.grpo_trainer, "RepeatSampler", sampler)
    report = audited(tmp_path, **SEVERAL_PASSES)
    [found] = [finding for finding in report.findings if finding.code == "RLS101"]
    assert (found.severity, found.observed) == ("error", f"order of the training rows = {after}")
    assert found.where.epoch == epoch


class LooksAtTheLoader(TrainerCallback):  # type: ignore[misc]
    """Takes the first batch of the loader when a pass begins."""

    def on_epoch_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
        next(iter(train_dataloader))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_iterations": 2},
        {"shuffle_dataset": False},
        {"evaluation_rows": 4, "eval_strategy": "epoch"},
        {"rows": 13},
        {"rows": 3},
        {"steps_per_generation": 4},
        {"seed": 7, "num_train_epochs": 6},
    ],
    ids=str,
)
@pytest.mark.parametrize("callbacks", [(), (LooksAtTheLoader,)])
def test_healthy_passes(settings: dict[str, Any], callbacks: tuple[Callable[[], Any], ...], tmp_path: Path) -> None:
    report = audited(tmp_path, *(make() for make in callbacks), **SEVERAL_PASSES | settings)
    assert not [finding for finding in report.findings if finding.code == "RLS101"], problems(report)
    [rule] = [rule for rule in report.rules if rule.code == "RLS101"]
    assert not rule.note


def test_a_sampler_of_ones_own_is_said_not_to_be_compared(tmp_path: Path) -> None:
    def own(trainer: Any) -> None:
        trainer._get_train_sampler = type(trainer)._get_train_sampler.__get__(trainer)

    report = audited(tmp_path, fault=own, **SEVERAL_PASSES)
    assert not problems(report)
    [rule] = [rule for rule in report.rules if rule.code == "RLS101"]
    assert "a sampler of somebody's own" in rule.note
