"""SimpleRL-Zoo: an early verl, launched by `train_grpo_math_tune_ray.sh` with flags of its own, or by the command that it runs.

The formulas are those of `rlstep_hooks.systems.simplerl.plan`, read at hkust-nlp/simpleRL-reason cf1c785.
"""

from __future__ import annotations

from rlstep_hooks.systems.declaration import Entry
from rlstep_hooks.systems.simplerl.script import SETTINGS
from rlstep_hooks.systems.verl.forks import fork

SYSTEM = fork(
    "simplerl",
    "SimpleRL",
    "cf1c785",
    Entry(
        "simplerl",
        programs=("executable:*train_grpo_math_tune_ray.sh", "script:train_grpo_math_tune_ray.sh"),
        before="verl",
    ),
    Entry("simplerl", programs=("module:verl.trainer.main_ppo",), with_key="trainer.remove_clip"),
    settings=SETTINGS,
)
