"""Sends verl's controller a signal at a fixed place of a run. verl imports this module in every process.

The controller sends it to itself: Ctrl-C at the driver is no way to ask for it. With the driver, the owner of the controller is gone,
and Ray 2.60.0 then sends SIGTERM and at the same time has a thread of the controller exit at once (node_manager.cc:1050,
core_worker.cc:4630), which no setting delays. In a run that was looked at, there were 58 ms from one to the other.
"""

from __future__ import annotations

import itertools
import os
import signal
from typing import Any

from tests.systems.verl.faults import CONTROLLER, wrap_in_controller

MODULE = __name__
SIGNAL = "RLSTEP_TEST_SIGNAL"
"""A variable: the name of the signal."""
ROLLOUTS = 2
"""Rollouts that are trained before; the next one is generated and scored."""

_calls = itertools.count()


def _before_training(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    if next(_calls) == ROLLOUTS:
        signal.raise_signal(signal.Signals[os.environ[SIGNAL]])
    return wrapped(*args, **kwargs)


if SIGNAL in os.environ:
    wrap_in_controller(CONTROLLER, "PPOTrainer", "_update_actor", _before_training)
