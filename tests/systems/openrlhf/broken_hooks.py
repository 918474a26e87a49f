"""Makes what the audit's hooks call raise in a real run. Every process of the launch imports this module (`RLSTEP_TEST_MODULE`)."""

from __future__ import annotations

import os

from tests.systems.broken import VARIABLE, break_function

MODULE = __name__

RECORD = "rlstep_hooks.observe.trainer_record"
OBSERVE = "rlstep_hooks.systems.openrlhf.observe."
TRAINER = OBSERVE + "trainer"
STEPS = OBSERVE + "steps"
FOLLOWER = "rlstep_hooks.systems.deepspeed_engine.follower"
CONTROLLER = OBSERVE + "controller"
CONTROLLER_RECORD = "rlstep_hooks.session.controller_record"
GENERATOR = OBSERVE + "generator"

FIRST = (
    ("rlstep_hooks.judge.controlled.run", "ControlledRun.summary"),
    (GENERATOR, "SamplingWeights.rollout"),
    (FOLLOWER, "EngineFollower.begin"),
    (RECORD, "TrainerRecord.updated"),
    (RECORD, "TrainerRecord.end"),
    (RECORD, "TrainerRecord.see_log_probs"),
    (RECORD, "TrainerRecord.close_microbatch"),
    (RECORD, "TrainerRecord.send_numbers"),
    (TRAINER, "OpenRlhfTrainer._facts"),
    (TRAINER, "OpenRlhfTrainer._see_call"),
    (TRAINER, "OpenRlhfTrainer.appended"),
    (STEPS, "EngineSteps.elsewhere"),
    (TRAINER, "checksum_of"),
    (OBSERVE + "buffered", "BufferedNumbers.add"),
    (OBSERVE + "buffered", "BufferedNumbers.take"),
    (OBSERVE + "fingerprint", "WeightSums.add"),
    (OBSERVE + "fingerprint", "WeightSums.take"),
    (OBSERVE + "engine", "EngineRecord._see_loaded"),
    (OBSERVE + "engine", "sampling_asked"),
    (OBSERVE + "models_beside", "ModelRecord.begins"),
    (OBSERVE + "carried", "CarriedSamples.asked"),
    (OBSERVE + "carried", "CarriedSamples.called"),
    (OBSERVE + "carried", "CarriedSamples.made"),
    (OBSERVE + "carried", "CarriedSamples.computed"),
    (OBSERVE + "carried", "CarriedSamples.handed"),
    (OBSERVE + "buffered", "BufferedSamples.collated"),
    (OBSERVE + "model_weights", "ModelWeights.look"),
    ("rlstep_hooks.observe.settings", "SettingsWatch.changes"),
    (RECORD, "TrainerRecord.begin_window"),
    (OBSERVE + "samples", "SampleWatch.before_advantages"),
    (OBSERVE + "samples", "SampleWatch.inspected"),
    (RECORD, "TrainerRecord.see_constants"),
    (CONTROLLER_RECORD, "ControllerRecord.all_returned"),
    (CONTROLLER_RECORD, "ControllerRecord.take_error"),
    (CONTROLLER_RECORD, "ControllerRecord.end"),
    (CONTROLLER, "OpenRlhfController._generated"),
    (CONTROLLER, "OpenRlhfController._follow_due_work"),
    (CONTROLLER, "OpenRlhfController._see_deliveries"),
    (CONTROLLER, "OpenRlhfController._see_untrained"),
    (GENERATOR, "SamplingWeights.before"),
    ("rlstep_hooks.judge.controlled.run", "ControlledRun.observe"),
)
"""The first that each part of a hook calls: all of them raise at every call of a run."""

FURTHER = (
    ("rlstep_hooks.show.scalars", "scalars"),
    (OBSERVE + "models_beside", "ModelRecords.intact"),
    (RECORD, "TrainerRecord.see_loss_scale"),
    (OBSERVE + "buffered", "BufferedSamples.appended"),
    (OBSERVE + "model_weights", "ModelWeights.left"),
    (OBSERVE + "model_weights", "ModelWeights.take"),
    (OBSERVE + "prompts", "ServedPrompts.begin"),
    (OBSERVE + "loss_meter", "LossMeter.computed"),
    ("rlstep_hooks.observe.steps", "StepFollower.watch_weights"),
    (RECORD, "TrainerRecord.begin"),
    (RECORD, "TrainerRecord.refreshed"),
    (RECORD, "TrainerRecord.open_microbatch"),
    (FOLLOWER, "EngineFollower.made"),
    (FOLLOWER, "EngineFollower._see_norm"),
    (FOLLOWER, "EngineFollower._see_stepped"),
    (FOLLOWER, "EngineFollower._see_left"),
    (RECORD, "TrainerRecord.synced"),
    (RECORD, "TrainerRecord.measured"),
    (RECORD, "TrainerRecord.write_numbers"),
    (TRAINER, "recognise"),
    (TRAINER, "OpenRlhfTrainer._seed_arrives"),
    (CONTROLLER, "OpenRlhfController._emit_rollout"),
    (GENERATOR, "SamplingWeights.held"),
    (GENERATOR, "GeneratorTail.next_rollout"),
)
"""What is called after one of those, in a run that comes so far."""


if VARIABLE in os.environ:
    for module, name in FIRST + FURTHER:
        break_function(module, name)
