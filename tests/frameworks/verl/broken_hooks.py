"""Makes the audit's own functions raise, each of them once, in a real run. verl imports this module in every process.

What broke is written to the file that `RLSTEP_TEST_BROKEN` names, one name a line.
"""

from __future__ import annotations

import os
from typing import Any

import wrapt

VARIABLE = "RLSTEP_TEST_BROKEN"
MODULE = __name__
MESSAGE = "broken on purpose"

AT_CALL = 2
"""Each raises at its second call, when the run is under way."""

FUNCTIONS = (
    ("rlstep_hooks.frameworks.verl.trainer", "keys_of"),
    ("rlstep_hooks.frameworks.verl.trainer", "rows_of"),
    ("rlstep_hooks.frameworks.verl.trainer", "recognise"),
    ("rlstep_hooks.frameworks.verl.trainer", "_sampler_gap"),
    ("rlstep_hooks.controlled.trainer_record", "TrainerRecord.updated"),
    ("rlstep_hooks.controlled.trainer_record", "TrainerRecord.write_numbers"),
    ("rlstep_hooks.frameworks.weight_probe", "WeightProbe.before_step"),
    ("rlstep_hooks.frameworks.weight_probe", "WeightProbe.after_step"),
    ("rlstep_hooks.frameworks.weight_probe", "WeightProbe.work_up"),
    ("rlstep_hooks.frameworks.deferred", "DeferredValues.add"),
    ("rlstep_hooks.frameworks.deferred", "DeferredValues.send"),
    ("rlstep_hooks.frameworks.verl.controller", "VerlController._all_returned"),
    ("rlstep_hooks.frameworks.verl.controller", "VerlController._generated_v0"),
    ("rlstep_hooks.controlled.run", "ControlledRun.observe"),
    ("rlstep_hooks.controlled.run", "ControlledRun.summary"),
)
"""Modules and functions of theirs that hooks call: of trainers, then of the controller."""


def break_once(module: str, name: str) -> None:
    """Make a function raise at one call, and work at all others."""
    calls = 0

    def broken(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == AT_CALL:
            with open(os.environ[VARIABLE], "a") as file:
                file.write(name + "\n")
            raise RuntimeError(MESSAGE)
        return wrapped(*args, **kwargs)

    wrapt.when_imported(module)(lambda found: wrapt.wrap_function_wrapper(found, name, broken))


if VARIABLE in os.environ:
    for module, name in FUNCTIONS:
        break_once(module, name)
