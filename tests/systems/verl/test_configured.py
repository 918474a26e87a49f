"""What is compared with the configuration of a verl run besides its numbers, without a launch."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("verl")

import numpy as np
import torch
from datasets import Dataset
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.tensordict_utils import make_iterator

from rlstep_hooks.observe.hooks import Hooks
from rlstep_hooks.record.events import DUE_CHECKPOINTS, DUE_EVALUATIONS, EVALUATED_ROWS
from rlstep_hooks.systems.verl.observe import asked_sampling, left_out_rows
from rlstep_hooks.systems.verl.observe.due_work import DueWork
from rlstep_hooks.systems.verl.observe.minibatch_order import MiniBatchOrder
from rlstep_hooks.systems.verl.observe.validations import SAMPLES, Validations
from tests.systems.verl.kept import Kept

if TYPE_CHECKING:
    from pathlib import Path


def trained(
    configured: dict[str, Any], shuffle: bool, seed: int, *, epochs: int = 2, left_out: int | None = None
) -> Kept:
    """What is recorded where verl's own loader reads 16 samples in micro-batches of two."""
    kept, order = Kept(), MiniBatchOrder()
    keys = [(str(place // 2), str(place % 2), place) for place in range(16)]
    actor = {"ppo_mini_batch_size": 4, "ppo_epochs": 2, "shuffle": False, "data_loader_seed": 42} | configured
    config = SimpleNamespace(actor=SimpleNamespace(**actor), rollout=SimpleNamespace(n=2))
    data = TensorDict({"place": torch.arange(16)}, batch_size=16)
    order.begin(keys)
    for number, batch in enumerate(make_iterator(data, 4, epochs, seed, {"shuffle": shuffle})):
        for part in [] if number == left_out else batch["place"].split(2):
            order.sees([keys[place] for place in part.tolist()])
        order.update_ends()
    order.end(config, 2, 1, kept)
    return kept


@pytest.mark.parametrize("seed", [0, 42])
def test_mini_batches_of_verls_own_loader_are_right(seed: int) -> None:
    assert trained({"shuffle": True, "data_loader_seed": seed}, shuffle=True, seed=seed + 1).changed == []
    assert trained({"data_loader_seed": seed}, shuffle=False, seed=seed + 1).changed == []


def test_mini_batches_in_another_order_are_found() -> None:
    came = "the samples as they came"
    assert trained({"shuffle": True}, shuffle=False, seed=43).changed == [("shuffled by seed 42", came)]
    assert trained({"shuffle": True}, shuffle=True, seed=42).changed == [("shuffled by seed 42", "another one")]
    assert trained({}, shuffle=True, seed=43).changed == [(came, "another one")]


def test_passes_that_are_not_whole_are_the_business_of_other_rules() -> None:
    assert trained({}, shuffle=True, seed=43, left_out=3).changed == []
    assert trained({}, shuffle=True, seed=43, epochs=1).changed == []


class Trainer:
    """Validates and saves as verl's trainers do."""

    def __init__(self, validates_every: int, saves_every: int, **trainer: Any) -> None:
        self.config = SimpleNamespace(trainer={"test_freq": 3, "save_freq": 2} | trainer)
        self.global_steps = 0
        self._every = validates_every, saves_every

    def _validate(self) -> None: ...

    def _save_checkpoint(self) -> None: ...

    def step(self) -> None:
        self.global_steps += 1
        for every, work in zip(self._every, (self._validate, self._save_checkpoint), strict=True):
            if every and self.global_steps % every == 0:
                work()


@pytest.mark.parametrize(
    ("trainer", "found"),
    [
        (Trainer(3, 2), []),
        (Trainer(1, 1), []),
        (Trainer(0, 0, test_freq=-1, save_freq=-1), []),
        (Trainer(0, 2), [(DUE_EVALUATIONS, "none after rollout 3")]),
        (Trainer(3, 4), [(DUE_CHECKPOINTS, "none after rollout 2")]),
    ],
)
def test_due_work(trainer: Trainer, found: list[tuple[str, str]]) -> None:
    kept: Any = Kept()
    due = DueWork(trainer, kept)
    due.place(Hooks(kept))
    for _ in range(7):
        trainer.step()
        due.step_is_over(trainer.global_steps)
    assert [(event.name, event.after) for event in kept.events] == found


def asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, validates: bool, greedy_rows: bool = False, **sampling: float
) -> list[tuple[Any, ...]]:
    """What the controller records of one request."""
    monkeypatch.setattr(asked_sampling, "folder", lambda: folder)
    monkeypatch.setattr(asked_sampling, "run_of_ray", lambda: "r")
    monkeypatch.setattr(asked_sampling, "_told", set())
    evaluated = {"temperature": 0.5, "top_p": 0.9, "top_k": -1}

    class Section(dict[str, Any]):
        val_kwargs = evaluated

    rollout = Section(temperature=1.0, top_p=1.0, top_k=-1)
    worker = SimpleNamespace(config=SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout)))
    asked_sampling.session_begins(worker, "single_turn_agent", validates=validates)
    asked_sampling.asks(sampling)
    kept = Kept()
    asked_sampling.AskedSampling(folder, "r").tell(kept, greedy_rows=greedy_rows)
    return [(event.name.removeprefix("actor_rollout_ref.rollout."), event.before, event.after) for event in kept.events]


def test_prompts_that_should_have_been_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(tokens: int, **data: Any) -> list[Any]:
        monkeypatch.setattr(asked_sampling, "folder", lambda: tmp_path)
        monkeypatch.setattr(asked_sampling, "run_of_ray", lambda: "r")
        monkeypatch.setattr(asked_sampling, "_told", set())
        configured = OmegaConf.create({"max_prompt_length": 8, "filter_overlong_prompts": True} | data)
        asked_sampling.prompts_with(configured, tokens)
        kept = Kept()
        asked_sampling.AskedSampling(tmp_path, "r").tell(kept, greedy_rows=False)
        return kept.changed

    assert told(8) == []
    assert told(9, filter_overlong_prompts=False) == []
    assert told(9, custom_cls={"path": "mine.py"}) == []
    assert told(9) == [("True, with at most 8 tokens", "a prompt of 9 tokens was generated for")]


class Words:
    """A tokenizer of one token a letter, behind whose prompts two more stand."""

    def apply_chat_template(self, messages: Any, **given: Any) -> list[int]:
        assert given.pop("return_dict", False) is False, "which verl leaves out"
        assert given == {"add_generation_prompt": True, "tokenize": True}
        return [ord(one) for one in messages[0]["content"]] + [0, 0]


def filtered(folder: Path, keeps: Any = None, **data: Any) -> list[Any]:
    """What is recorded of verl's own data set of prompts with one to thirty letters, and of one that keeps others."""
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "x" * (1 + place)}]} for place in range(30)])
    rows.to_parquet(folder / "rows.parquet")
    config = OmegaConf.create({"max_prompt_length": 12, "filter_overlong_prompts_workers": None} | data)
    dataset = RLHFDataset(str(folder / "rows.parquet"), Words(), config, max_samples=data.get("max_samples", -1))
    if keeps is not None:
        dataset.dataframe = dataset.dataframe.filter(keeps)
    kept: Any = Kept()
    left_out_rows.look(SimpleNamespace(train_dataset=dataset), kept)
    return kept.changed


def test_rows_that_should_not_have_been_left_out(tmp_path: Path) -> None:
    def even(row: Any) -> bool:
        return len(row["prompt"][0]["content"]) % 2 == 0

    assert filtered(tmp_path) == [], "ten have at most twelve tokens"
    assert filtered(tmp_path, filter_overlong_prompts=False) == []
    assert filtered(tmp_path, even, max_samples=20) == [], "which rows these are is not looked at"
    right = "True, which leaves prompts of more than 12 tokens out"
    told = "25 rows are left out, and 5 of 16 that were looked at have no more"
    assert filtered(tmp_path, even) == [(right, told)]
    assert filtered(tmp_path, even, filter_overlong_prompts=False) == [("False", "15 rows are left out")]


def test_sampling_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(tmp_path, monkeypatch, validates=False, temperature=1.0, top_p=1.0, top_k=-1) == []
    assert asked(tmp_path, monkeypatch, validates=True, temperature=0.5, top_p=0.9, top_k=-1) == []
    assert asked(tmp_path, monkeypatch, validates=False, temperature=1.0, top_p=0.9, top_k=-1) == [("top_p", 1.0, 0.9)]
    assert asked(tmp_path, monkeypatch, validates=True, temperature=1.0, top_p=0.9, top_k=-1)[-1] == (
        "val_kwargs.temperature, in evaluations",
        0.5,
        1.0,
    )


def test_greedy_requests_are_right_where_rows_of_the_training_want_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = {"temperature": 0, "top_p": 1.0, "top_k": -1}
    assert asked(tmp_path, monkeypatch, validates=False, greedy_rows=True, **greedy) == []
    assert asked(tmp_path, monkeypatch, validates=False, **greedy)[-1] == ("temperature", 1.0, 0.0)
    half = greedy | {"temperature": 0.5}
    assert asked(tmp_path, monkeypatch, validates=False, greedy_rows=True, **half)[-1] == ("temperature", 1.0, 0.5)
    found = asked(tmp_path, monkeypatch, validates=True, greedy_rows=True, **greedy)
    assert ("val_kwargs.temperature, in evaluations", 0.5, 0.0) in found, "no row of a validation wants anything"


def test_a_request_that_differs_is_told_behind_greedy_ones_that_rows_want(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = {"top_p": 1.0, "top_k": -1}
    assert asked(tmp_path, monkeypatch, validates=False, greedy_rows=True, temperature=0, **right) == []
    asked_sampling.asks(right | {"temperature": 0.7})
    kept = Kept()
    asked_sampling.AskedSampling(tmp_path, "r").tell(kept, greedy_rows=True)
    assert [(event.before, event.after) for event in kept.events] == [(1.0, 0.7)]


def test_a_penalty_that_no_setting_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "repetition_penalty of requests to the engines"
    right = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}
    assert asked(tmp_path, monkeypatch, validates=False, **right) == []
    assert asked(tmp_path, monkeypatch, validates=False, **right | {"repetition_penalty": 1.3}) == [(name, 1.0, 1.3)]


class Validates(RayPPOTrainer):  # type: ignore[misc]  # verl's is not typed
    """Validates eight rows in two batches, as verl's trainers do."""

    def __init__(self, **val_kwargs: Any) -> None:
        rollout = {"val_kwargs": {"n": 3} | val_kwargs}
        self.config = OmegaConf.create({"data": {}, "actor_rollout_ref": {"rollout": rollout}})
        self.val_dataset = [*range(8)]
        self.replay_buffer = SimpleNamespace(sample=self.sample)
        self.sessions = 3
        self.batches = 2

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        """What V1's queue gives: a session of the first prompt failed."""
        prompts = [f"{uuid.uuid4()}" for _ in range(batch_size)]
        keys = [f"{of}_{session}_0" for of in prompts for session in range(self.sessions)]
        return SimpleNamespace(keys=keys[1:]), {}

    def _get_gen_batch(self, batch: Any) -> Any:
        return batch

    def validate(self, *, v1: bool) -> None:
        for _ in range(self.batches):
            if v1:
                self.replay_buffer.sample(global_steps=0, partition_id="val", batch_size=4)
            else:
                uids = np.repeat([str(uuid.uuid4()) for _ in range(4)], self.sessions)
                self._get_gen_batch(SimpleNamespace(non_tensor_batch={"uid": uids}))


def validated(trainer: Validates, *, v1: bool) -> list[tuple[Any, ...]]:
    """What is recorded of two validations with a rollout between them."""
    kept: Any = Kept()
    followed = Validations(trainer, kept)
    followed.place(Hooks(kept), v1=v1)
    for _ in range(2):
        followed.begin()
        trainer.validate(v1=v1)
        followed.ends(v1=v1)
        trainer.replay_buffer.sample(global_steps=0, partition_id="train", batch_size=2)
        trainer._get_gen_batch(SimpleNamespace(non_tensor_batch={"uid": np.array(["x"])}))
    return [(event.name, event.before, event.after) for event in kept.events]


@pytest.mark.parametrize("v1", [True, False])
def test_samples_and_rows_of_a_validation(*, v1: bool) -> None:
    assert validated(Validates(), v1=v1) == []
    more, fewer, half = Validates(), Validates(), Validates()
    more.sessions, fewer.sessions, half.batches = 4, 2, 1
    assert validated(more, v1=v1) == [(SAMPLES, 3, 4)]
    assert validated(fewer, v1=v1) == [(SAMPLES, 3, 2)]
    assert validated(half, v1=v1) == [(EVALUATED_ROWS, "all 8", "4 of them")]


def test_rows_that_say_themselves_how_many_samples_they_want() -> None:
    trainer = Validates()
    trainer.val_dataset = [*range(8)]
    trainer.config.data.custom_cls = {"path": "mine.py"}
    trainer.sessions = 2
    assert validated(trainer, v1=True) == []


def test_a_validation_of_somebodys_own_is_not_compared() -> None:
    class Own(Validates):
        def _validate(self) -> None: ...

    trainer = Own()
    trainer.sessions = 1
    assert validated(trainer, v1=True) == []
