"""VLM-R1: a copy of TRL 0.16's GRPOTrainer, with a generation for each micro-batch, and samples counted for each device.

Read at om-ai-lab/VLM-R1 90052f4 (2026-07-07), src/open-r1-multimodal/src/open_r1/trainer/grpo_trainer.py: `_prepare_inputs` (a rollout
where `global_step % num_iterations == 0`), `_get_train_sampler` (RepeatRandomSampler over chunks of an update). The formulas are TRL's.
"""

from rlstep_hooks.systems.engine.declaration import Entry
from rlstep_hooks.systems.trl.copies import copy

SYSTEM = copy(
    "vlm_r1",
    "VLM-R1 (TRL 0.16)",
    "0.16.1",
    "0.17",
    Entry(
        "vlm_r1",
        programs=(
            "script:open_r1/grpo_jsonl.py",
            "script:open_r1/grpo_rec*.py",
            "script:open_r1/grpo_gui*.py",
            "script:open_r1/grpo_text.py",
        ),
        before="trl",
    ),
)
