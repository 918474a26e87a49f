"""Makes what the audit's hooks call raise in a real run. verl imports this module in every process."""

from __future__ import annotations

import os

from tests.systems.broken import VARIABLE, break_function

MODULE = __name__

FUNCTIONS = (
    ("rlstep_hooks.systems.verl.observe.trainer", "keys_of"),
    ("rlstep_hooks.systems.verl.observe.trainer", "rows_of"),
    ("rlstep_hooks.systems.verl.observe.trainer", "recognise"),
    ("rlstep_hooks.systems.verl.observe.trainer", "sampler_gap"),
    ("rlstep_hooks.systems.verl.observe.checkpoints", "state_of"),
    ("rlstep_hooks.observe.trainer_record", "TrainerRecord.begin"),
    ("rlstep_hooks.observe.trainer_record", "TrainerRecord.begin_window"),
    ("rlstep_hooks.observe.trainer_record", "TrainerRecord.end"),
    ("rlstep_hooks.observe.trainer_record", "TrainerRecord.measured"),
    ("rlstep_hooks.observe.trainer_record", "TrainerRecord.open_microbatch"),
    ("rlstep_hooks.observe.trainer_record", "TrainerRecord.see_log_probs"),
    ("rlstep_hooks.observe.trainer_record", "TrainerRecord.close_microbatch"),
    ("rlstep_hooks.observe.steps", "StepFollower.watch_weights"),
    ("rlstep_hooks.observe.trainer_record", "TrainerRecord.updated"),
    ("rlstep_hooks.observe.trainer_record", "TrainerRecord.synced"),
    ("rlstep_hooks.observe.trainer_record", "TrainerRecord.write_numbers"),
    ("rlstep_hooks.observe.weight_probe", "WeightProbe.before_step"),
    ("rlstep_hooks.observe.weight_probe", "WeightProbe.after_step"),
    ("rlstep_hooks.observe.weight_probe", "WeightProbe.work_up"),
    ("rlstep_hooks.observe.deferred", "DeferredValues.add"),
    ("rlstep_hooks.observe.deferred", "DeferredValues.send"),
    ("rlstep_hooks.observe.gathered_gradients", "GatheredGradientWatch.begin_window"),
    ("rlstep_hooks.systems.verl.observe.made_rows", "MadeRows.add"),
    ("rlstep_hooks.systems.verl.observe.scored_alone", "TrainedAlone.before"),
    ("rlstep_hooks.systems.verl.observe.carried", "Carried.keep"),
    ("rlstep_hooks.systems.verl.observe.trainer", "VerlTrainer._open_microbatch"),
    ("rlstep_hooks.systems.verl.observe.trainer", "VerlTrainer._compare_log_probs"),
    ("rlstep_hooks.systems.verl.observe.trainer", "VerlTrainer._follow_log_probs"),
    ("rlstep_hooks.systems.verl.observe.trainer", "VerlTrainer._send_record"),
    ("rlstep_hooks.systems.verl.observe.trainer", "VerlTrainer._emit_sync"),
    ("rlstep_hooks.systems.verl.observe.trainer", "VerlTrainer._policy_losses_arrived"),
    ("rlstep_hooks.systems.verl.observe.trainer", "VerlTrainer._value_losses_arrived"),
    ("rlstep_hooks.systems.verl.observe.loss_kinds", "PolicyLosses.begin"),
    ("rlstep_hooks.systems.verl.observe.loss_kinds", "PolicyLosses.follow_beside"),
    ("rlstep_hooks.systems.verl.observe.loss_kinds", "PolicyLosses.end"),
    ("rlstep_hooks.systems.verl.observe.loss_kinds", "PolicyLosses.send"),
    ("rlstep_hooks.systems.verl.observe.loss_kinds", "CriticLosses.begin"),
    ("rlstep_hooks.systems.verl.observe.loss_kinds", "CriticLosses.end"),
    ("rlstep_hooks.systems.verl.observe.loss_kinds", "CriticLosses.send"),
    ("rlstep_hooks.systems.verl.observe.loss_meter", "LossMeter.arrived"),
    ("rlstep_hooks.systems.verl.observe.sent_weights", "SentWeights._see"),
    ("rlstep_hooks.systems.verl.observe.sent_weights", "SentWeights.end"),
    ("rlstep_hooks.systems.verl.observe.engine_distance", "DistanceWatch.sees"),
    ("rlstep_hooks.systems.verl.observe.layer_slopes", "LayerSlopes.take"),
    ("rlstep_hooks.systems.verl.observe.rows_alone", "RowsAlone._begin"),
    ("rlstep_hooks.systems.verl.observe.rows_alone", "RowsAlone._end"),
    ("rlstep_hooks.systems.verl.observe.controller", "VerlController._all_returned"),
    ("rlstep_hooks.systems.verl.observe.rollout_hooks", "RolloutHooks._generated_v0"),
    ("rlstep_hooks.systems.verl.observe.rollout_hooks", "RolloutHooks._step_is_over"),
    ("rlstep_hooks.systems.verl.observe.rollout_hooks", "RolloutHooks._tell_of_requests"),
    ("rlstep_hooks.systems.verl.observe.controller", "scalars"),
    ("rlstep_hooks.systems.verl.observe.reward_hooks", "compare_groups"),
    ("rlstep_hooks.systems.verl.observe.reward_hooks", "RewardHooks._compare_advantages"),
    ("rlstep_hooks.observe.reward_records", "RewardRecords.collect"),
    ("rlstep_hooks.systems.verl.observe.rows", "Rows.submit"),
    ("rlstep_hooks.session.controller_record", "ControllerRecord.take_error"),
    ("rlstep_hooks.judge.controlled.run", "ControlledRun.observe"),
    ("rlstep_hooks.judge.controlled.run", "ControlledRun.summary"),
)
"""Modules and functions of theirs that hooks call: of trainers, then of the controller."""

if VARIABLE in os.environ:
    for module, name in FUNCTIONS:
        break_function(module, name)
