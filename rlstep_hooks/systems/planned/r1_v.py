"""R1-V and Video-R1: copies of TRL 0.14's GRPOTrainer, whose batch counts prompts for each device.

Read at Deep-Agent/R1-V (src/r1-v/src/open_r1/trainer/grpo_trainer.py) and tulerfeng/Video-R1 (src/r1-v/src/open_r1/trainer): every row
of a batch is repeated `num_generations` times in `compute_loss`, and no sampler repeats rows. The formulas are TRL's.
What has R1-V's names and another trainer is told apart by `r1_v_checkout`.
"""

import msgspec

from rlstep_hooks.systems.engine.declaration import Entry
from rlstep_hooks.systems.trl.copies import copy

_COPY = copy(
    "r1_v",
    "R1-V (TRL 0.14)",
    "0.14.0",
    "0.15",
    Entry(
        "r1_v",
        programs=(
            "script:r1-v/src/open_r1/*.py",
            "script:open_r1/grpo_custom_video*.py",
            "script:open_r1/grpo_video*.py",
        ),
        before="trl",
    ),
    # The scripts of both start `open_r1/grpo.py`, as Open-R1's do, which has none of these settings.
    *(
        Entry("r1_v", programs=("script:open_r1/grpo.py",), with_key=key, before="trl")
        for key in ("max_pixels", "temporal", "len_control")
    ),
)
SYSTEM = msgspec.structs.replace(_COPY, checkout="rlstep_hooks.systems.planned.r1_v_checkout:beside")
