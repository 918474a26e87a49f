"""The two loops of OpenRLHF's asynchronous trainer: one samples and hands rollouts over, the other trains each of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import Line
from rlstep_hooks.launch.loops import LoopReader, Shape
from rlstep_hooks.systems.openrlhf.checkout.loop import ENDS, EPISODES, ROLLOUTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.checkout import Checkout

_SAMPLES = Shape(
    epochs=EPISODES,
    rollouts=ROLLOUTS,
    trains=("put",),
    # Since 0.9.7 it waits there for an evaluation, which goes through the same queue.
    ends=(*ENDS, "_should_eval"),
    branches=True,
)
_TRAINS = Shape(epochs=None, rollouts=re.compile("True"), trains=("ppo_train", "train_step"), ends=("'done'", "'eval'"))
_LOOPS = {"GenerateSamplesActor": _SAMPLES, "TrainingActor": _TRAINS}


def read_async(checkout: Checkout, values: Mapping[str, object]) -> list[Line]:
    """The lines of both loops that are not known; empty where they are as in the releases 0.8.0 to 0.11.0.

    Args:
        checkout: The package.
        values: The settings of the launch, where they are known.
    """
    source = checkout.source("trainer/ppo_trainer_async.py")
    if source is None:
        return []
    unknown: list[Line] = []
    for name, shape in _LOOPS.items():
        fits = source.methods("fit", of=name)
        if not fits:
            unknown.append(Line(f"there is no {name}", source.shown))
            continue
        reader = LoopReader(source, values)
        reader.run(fits[-1], shape)
        unknown += reader.unknown
    return unknown
