"""The loop of a trainer: what ends it, leaves a rollout out or trains it again is named, and nothing else."""

from __future__ import annotations

import re
import textwrap

import pytest

from rlstep_hooks.launch.checkout import Source
from rlstep_hooks.launch.loops import LoopReader, Shape

SHAPE = Shape(
    epochs=re.compile(r"range\(self\.cfg\.epochs\)"),
    rollouts=re.compile(r"self\.loader"),
    trains=("update",),
    ends=("keep_sampling",),
)
LOOP = """
class Trainer:
    async def train(self):
        prepare()
        for epoch in range({epochs}):
            for batch in {loader}:
                with Timer("step"):
                    for part in batch:
                        if part is None:
                            continue
{before}
                    async with lock:
                        {train}
            if done:
                log()
"""
ONCE = "self.policy.update(batch)"


def unknown(
    *,
    epochs: str = "self.cfg.epochs",
    loader: str = "self.loader",
    before: str = "",
    train: str = ONCE,
    **values: object,
) -> list[str]:
    """What is not known of a loop; `before` stands in a rollout, before it is trained."""
    inner = textwrap.indent(before or "pass", " " * 20)
    source = Source(LOOP.format(epochs=epochs, loader=loader, before=inner, train=train), "trainer.py")
    reader = LoopReader(source, values)
    reader.run(source.methods("train", of="Trainer")[0], SHAPE)
    return [line.says for line in reader.unknown]


def test_the_loop_of_the_framework_is_known() -> None:
    assert unknown() == []


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"epochs": "3"}, ["the run goes over range(3)"]),
        ({"loader": "self.filtered(self.loader)"}, ["the loop over rollouts is another one"]),
        ({"before": "if bad:\n    continue"}, ["continue within a rollout, if bad"]),
        ({"before": "if a:\n    if b:\n        break"}, ["break within a rollout, if a and b"]),
        ({"before": "if a:\n    pass\nelse:\n    return"}, ["return within a rollout, if not (a)"]),
        ({"before": "continue"}, ["continue within a rollout"]),
        ({"before": "try:\n    x()\nexcept E:\n    pass\nelse:\n    break"}, ["break within a rollout"]),
        ({"before": ONCE}, ["a rollout is not trained once, in each case"]),
        ({"train": f"if good: {ONCE}"}, ["a rollout is not trained once, in each case"]),
        ({"train": f"for part in parts: {ONCE}"}, ["a rollout is not trained once, in each case"]),
        ({"train": "pass"}, ["the loop over rollouts is another one"]),
    ],
)
def test_what_changes_the_length_is_named(changed: dict[str, str], says: list[str]) -> None:
    assert unknown(**changed) == says


def test_an_end_that_the_plan_counts_is_known() -> None:
    assert unknown(before="if keep_sampling:\n    continue") == []
    assert unknown(before="if self.cfg.on:\n    if keep_sampling:\n        continue") == []


def test_branches_that_the_launch_does_not_take_are_not_looked_at() -> None:
    before = "if self.cfg.filter:\n    continue"
    assert unknown(before=before, filter=False) == []
    assert unknown(before=before, filter=True) == ["continue within a rollout"]
    assert unknown(before=before) == ["continue within a rollout, if self.cfg.filter"]


def test_the_place_of_a_line_is_that_in_the_file() -> None:
    source = Source(LOOP.format(epochs="2", loader="self.loader", before="", train=ONCE), "trainer.py")
    reader = LoopReader(source, {})
    reader.run(source.methods("train")[0], SHAPE)
    assert [line.where for line in reader.unknown] == ["trainer.py:5"]
