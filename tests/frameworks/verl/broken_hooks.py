"""Makes what the audit's hooks call raise in a real run. verl imports this module in every process."""

from __future__ import annotations

import os

from tests.frameworks.broken import VARIABLE, break_function

MODULE = __name__

FUNCTIONS = (
    ("rlstep_hooks.frameworks.verl.trainer", "keys_of"),
    ("rlstep_hooks.frameworks.verl.trainer", "rows_of"),
    ("rlstep_hooks.frameworks.verl.trainer", "recognise"),
    ("rlstep_hooks.frameworks.verl.trainer", "_sampler_gap"),
    ("rlstep_hooks.controlled.trainer_record", "TrainerRecord.begin"),
    ("rlstep_hooks.controlled.trainer_record", "TrainerRecord.end"),
    ("rlstep_hooks.controlled.trainer_record", "TrainerRecord.measured"),
    ("rlstep_hooks.controlled.trainer_record", "TrainerRecord.open_microbatch"),
    ("rlstep_hooks.controlled.trainer_record", "TrainerRecord.see_log_probs"),
    ("rlstep_hooks.controlled.trainer_record", "TrainerRecord.close_microbatch"),
    ("rlstep_hooks.controlled.trainer_record", "TrainerRecord.probe"),
    ("rlstep_hooks.controlled.trainer_record", "TrainerRecord.updated"),
    ("rlstep_hooks.controlled.trainer_record", "TrainerRecord.pushed"),
    ("rlstep_hooks.controlled.trainer_record", "TrainerRecord.write_numbers"),
    ("rlstep_hooks.frameworks.weight_probe", "WeightProbe.before_step"),
    ("rlstep_hooks.frameworks.weight_probe", "WeightProbe.after_step"),
    ("rlstep_hooks.frameworks.weight_probe", "WeightProbe.work_up"),
    ("rlstep_hooks.frameworks.deferred", "DeferredValues.add"),
    ("rlstep_hooks.frameworks.deferred", "DeferredValues.send"),
    ("rlstep_hooks.frameworks.verl.controller", "VerlController._all_returned"),
    ("rlstep_hooks.frameworks.verl.controller", "VerlController._generated_v0"),
    ("rlstep_hooks.frameworks.verl.controller", "scalars"),
    ("rlstep_hooks.controlled.controller_record", "ControllerRecord.take_error"),
    ("rlstep_hooks.controlled.run", "ControlledRun.observe"),
    ("rlstep_hooks.controlled.run", "ControlledRun.summary"),
)
"""Modules and functions of theirs that hooks call: of trainers, then of the controller."""

if VARIABLE in os.environ:
    for module, name in FUNCTIONS:
        break_function(module, name)
