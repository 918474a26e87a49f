"""Evaluations and checkpoints that are due, what an evaluation asks for, and what is shuffled; without a launch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlstep_hooks.observe.hooks import Hooks
from rlstep_hooks.record.events import DUE_CHECKPOINTS, DUE_EVALUATIONS, EVALUATED_ROWS, MINIBATCH_ORDER, ROW_ORDER
from rlstep_hooks.systems.openrlhf.observe.due_work import DueWork
from rlstep_hooks.systems.openrlhf.observe.shuffled import RowsAsTheyStand, SamplesAsTheyCame

ROWS = [f"prompt {number}" for number in range(40)]


class Recorder:
    """Keeps what is recorded; an observation that is given up fails the test."""

    def __init__(self) -> None:
        self.found: list[tuple[Any, ...]] = []

    def now(self) -> float:
        return 0.0

    def emit(self, event: Any) -> None:
        self.found.append((event.name, event.before, event.after))

    def cannot(self, what: str, why: str) -> None:
        raise AssertionError(f"{what}: {why}")


class Generator:
    """Draws prompts as OpenRLHF's does."""

    def __init__(self, rows: list[str]) -> None:
        self.prompts_dataloader = SimpleNamespace(dataset=SimpleNamespace(prompts=ROWS))
        self.rows = rows
        self._dataloader_iter: Any = None

    def generate_samples(self) -> None:
        self._dataloader_iter = self._dataloader_iter or iter(self.rows)
        drawn = [row for _, row in zip(range(8), self._dataloader_iter, strict=False)]
        self._dispatch_prompts_to_vllm(drawn, drawn)
        if drawn[-1] == self.rows[-1]:
            self._dataloader_iter = None

    def generate_eval_samples(self, **settings: Any) -> None:
        for first in (0, 4):
            self._dispatch_prompts_to_vllm(ROWS[first : first + 4], [], **settings)

    def _dispatch_prompts_to_vllm(self, prompts: list[str], labels: list[str], **settings: Any) -> None: ...


class Trainer:
    """Saves and evaluates behind each rollout as OpenRLHF's loop does."""

    def __init__(self, *, saves: int = 2, evaluates: int = 3, rows: int = 8, **asked: Any) -> None:
        self.actor_model_group = SimpleNamespace(async_run_method=lambda method_name, **given: None)
        self.samples_generator = Generator(ROWS)
        self.eval_dataloader = SimpleNamespace(dataset=range(rows))
        self.saves, self.evaluates = saves, evaluates
        self.asked = {"temperature": 0.6, "n_samples_per_prompt": 4} | asked

    def train_step(self) -> None: ...

    def save_logs_and_checkpoints(self, global_step: int, logs: Any) -> None:
        if global_step % self.saves == 0:
            self.actor_model_group.async_run_method(method_name="save_checkpoint", tag="t")

    def rollouts(self) -> None:
        for rollout in range(1, 8):
            self.train_step()
            self.save_logs_and_checkpoints(rollout, {})
            if rollout % self.evaluates == 0:
                self.samples_generator.generate_eval_samples(**self.asked)


def arguments() -> Any:
    return SimpleNamespace(
        eval=SimpleNamespace(dataset="set", steps=3, temperature=0.6, n_samples_per_prompt=4),
        ckpt=SimpleNamespace(save_steps=2),
        train=SimpleNamespace(async_enable=False),
    )


EACH_THREE = "one after every 3 rollouts (eval.steps)"


@pytest.mark.parametrize(
    ("trainer", "found"),
    [
        (Trainer(), []),
        (Trainer(saves=1, evaluates=1), []),
        (Trainer(evaluates=100), [(DUE_EVALUATIONS, EACH_THREE, "none after rollout 3")]),
        (Trainer(saves=4), [(DUE_CHECKPOINTS, "one after every 2 rollouts (ckpt.save_steps)", "none after rollout 2")]),
        (Trainer(temperature=1.0), [("eval.temperature", 0.6, 1.0)]),
        (Trainer(n_samples_per_prompt=1), [("eval.n_samples_per_prompt", 4, 1)]),
        (Trainer(rows=12), [(EVALUATED_ROWS, "all 12", "8 of them")]),
    ],
)
def test_due_work_and_what_an_evaluation_asks_for(trainer: Trainer, found: list[tuple[Any, ...]]) -> None:
    recorder: Any = Recorder()
    DueWork(trainer, arguments(), recorder).place(Hooks(recorder))
    trainer.rollouts()
    assert recorder.found == found


def test_nothing_is_due_where_nothing_is_configured() -> None:
    recorder: Any = Recorder()
    trainer, args = Trainer(saves=100, evaluates=100), arguments()
    args.eval.steps = args.ckpt.save_steps = float("inf")
    DueWork(trainer, args, recorder).place(Hooks(recorder))
    trainer.rollouts()
    assert recorder.found == []


def drawn(rows: list[str], rollouts: int, *, resumed: bool = False, later: list[str] | None = None) -> list[Any]:
    """What is recorded where rows are drawn in this order, and in another one in later passes."""
    recorder: Any = Recorder()
    generator = Generator(rows)
    RowsAsTheyStand(generator, recorder, resumed=resumed).place(Hooks(recorder))
    for number in range(rollouts):
        generator.generate_samples()
        generator.generate_eval_samples()
        if later is not None and number == 4:
            generator.rows = later
    return recorder.found


def test_rows_that_are_not_shuffled_are_told() -> None:
    told = [(ROW_ORDER, "a permutation", "that of the data set")]
    other = ROWS[20:] + ROWS[:20]
    assert drawn(ROWS, 1) == told
    assert drawn(ROWS[:8] + ROWS[:7:-1], 5) == told, "eight of forty rows come so once in a hundred million times"
    assert drawn(["prompt 1", *ROWS[1:]], 5) == []
    assert drawn(other, 10) == []
    assert drawn(other, 10, later=ROWS) == told
    assert drawn(ROWS, 5, resumed=True) == [], "where its pass began is not known"
    assert drawn(ROWS, 10, resumed=True) == told


def trained(order: list[int], samples: int = 16) -> list[Any]:
    recorder: Any = Recorder()
    seen, items = SamplesAsTheyCame(recorder), [object() for _ in range(samples)]
    for _ in range(2):
        seen.begin(items)
        for first in range(0, len(order), 4):
            seen.takes([items[place] for place in order[first : first + 4]])
        seen.end()
    return recorder.found


def test_samples_that_are_not_shuffled_are_told_once() -> None:
    came = [*range(16)]
    told = [(MINIBATCH_ORDER, "shuffled", "the samples as they came")]
    assert trained(came) == told
    assert trained(came[::-1] + came) == told, "one of two passes"
    assert trained(came[::-1]) == []
    assert trained(came[:12]) == [], "not all of them were taken"
    assert trained([*range(8)], samples=8) == told, (
        "of eight samples one order in 40 320 is this one, and twice so no chance"
    )
    assert trained([*range(4)], samples=4) == [], "twice one of 24 orders"
    assert trained([*range(4), 3, 2, 1, 0], samples=4) == []
