"""The order of the rows in each pass of verl's own loader, without training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("verl")

from omegaconf import OmegaConf
from torch.utils.data import SequentialSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import AutoTokenizer
from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler
from verl.utils.dataset.rl_dataset import collate_fn

from rlstep_hooks.systems.verl.observe.order_of_rows import RowOrder
from rlstep_hooks.systems.verl.observe.rows import FIELDS, text
from tests.systems.verl.kept import Kept
from tests.systems.verl.launch import Assets

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Assets:
    return Assets.write(tmp_path_factory.mktemp("rows"), train_rows=37)


def trainer_of(assets: Assets, *, workers: int = 0, batch: int = 8, global_steps: int = 0, **settings: Any) -> Any:
    """A trainer before its first rollout, with verl's own data set and loader."""
    data = OmegaConf.create(
        {"shuffle": True, "seed": None, "train_batch_size": batch, "prompt_key": "prompt"} | settings
    )
    dataset = create_rl_dataset(str(assets.train), data, AutoTokenizer.from_pretrained(assets.model), None)
    sampler = create_rl_sampler(data, dataset)
    loader = StatefulDataLoader(
        dataset, batch_size=batch, num_workers=workers, drop_last=True, collate_fn=collate_fn, sampler=sampler
    )
    return SimpleNamespace(
        config=OmegaConf.create({"data": data}),
        train_dataset=dataset,
        train_dataloader=loader,
        global_steps=global_steps,
    )


def batches(loader: Any, passes: int) -> Iterator[tuple[bool, list[tuple[str, ...]]]]:
    """Whether a batch is the first of a later pass, and its rows."""
    for number in range(passes):
        for place, batch in enumerate(loader):
            yield (
                number > 0 and place == 0,
                [tuple(text(batch[name][row]) for name in FIELDS) for row in range(len(batch["data_source"]))],
            )


def told(trainer: Any, loader: Any = None, passes: int = 3, *, own_fit: bool = False) -> Kept:
    """What is recorded of some passes."""
    kept = Kept()
    order = RowOrder(trainer, kept, known=True, own_fit=own_fit)
    for later_pass, rows in batches(loader or trainer.train_dataloader, passes):
        order.fetched(later_pass=later_pass)
        order.look(rows)
    return kept


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch", [1, 8, 37])
def test_the_seeds_order_and_that_of_the_set_are_right(assets: Assets, workers: int, batch: int) -> None:
    for settings in ({"seed": 7}, {"seed": 0}, {"shuffle": False}):
        assert told(trainer_of(assets, workers=workers, batch=batch, **settings)).events == []


def test_a_rollout_of_several_batches_that_ends_in_another_pass_is_right(assets: Assets) -> None:
    trainer, kept = trainer_of(assets, batch=2, seed=7), Kept()
    order = RowOrder(trainer, kept, known=True, own_fit=False)
    waiting: list[tuple[str, ...]] = []
    for later_pass, rows in batches(trainer.train_dataloader, 3):
        order.fetched(later_pass=later_pass)
        waiting += rows
        if len(waiting) == 8:
            order.look(waiting)
            waiting = []
    assert kept.events == []


@pytest.mark.parametrize("workers", [0, 2])
def test_other_orders_are_found(assets: Assets, workers: int) -> None:
    other = trainer_of(assets, workers=workers, seed=8).train_dataloader
    assert told(trainer_of(assets, seed=7), other).changed == [("a permutation by seed 7", "another one")]
    still = trainer_of(assets, shuffle=False).train_dataloader
    assert told(trainer_of(assets, seed=7), still).changed == [("a permutation by seed 7", "that of the data set")]
    assert told(trainer_of(assets, shuffle=False), other).changed == [("that of the data set", "another one")]


def test_without_a_seed_and_after_a_resume_only_rows_as_they_stand_are_found(assets: Assets) -> None:
    for settings, why in (({}, "data.seed is null"), ({"seed": 7, "global_steps": 2}, "the run goes on")):
        other = told(trainer_of(assets, **settings), trainer_of(assets, seed=8).train_dataloader)
        assert other.changed == []
        assert why in other.unknown[0]
        trainer = trainer_of(assets, **settings)
        still = StatefulDataLoader(
            trainer.train_dataset,
            batch_size=8,
            drop_last=True,
            collate_fn=collate_fn,
            sampler=SequentialSampler(trainer.train_dataset),
        )
        [(before, after)] = told(trainer, still).changed
        assert before.startswith("a permutation")
        assert after == "that of the data set"


def test_what_is_somebodys_own_is_not_compared(assets: Assets) -> None:
    assert "code that is not verl's" in told(trainer_of(assets, seed=7), own_fit=True).unknown[0]
    own = trainer_of(assets, seed=7, sampler={"class_path": "mine.py"})
    assert "a sampler of somebody's own" in told(own).unknown[0]
    own = trainer_of(assets, seed=7)
    mine = type("Mine", (type(own.train_dataset),), {"__getitem__": lambda self, item: {}})
    own.train_dataset = mine.__new__(mine)
    kept = Kept()
    RowOrder(own, kept, known=True, own_fit=False)
    assert "the data set is of somebody's own" in kept.unknown[0]
