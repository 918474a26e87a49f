"""verl's recipe of FlowRL: verl's own loop with another loss; DAPO's filter_groups is in its configuration, and nothing reads it.

Read at verl-project/verl-recipe 48ea0a7 (2026-08-05), flowrl: main_flowrl.py, flowrl_ray_trainer.py (nothing but a name),
flowrl_actor.py:33-47 (mini-batches as verl's), config/flowrl_trainer.yaml, REQUIRED_VERL.txt (0.4.0, or main).
"""

from rlstep_hooks.systems.engine.declaration import Note
from rlstep_hooks.systems.verl.copies import copy

SYSTEM = copy(
    "verl_flowrl",
    "verl recipe/flowrl",
    "0.7.1",
    ("0.4", "0.8"),
    "recipe.flowrl.*",
    "*RayFlowRLTrainer",
    notes=(
        Note(
            "ignores",
            "algorithm.filter_groups: FlowRL's trainer is verl's own loop, which filters nothing",
            "algorithm.filter_groups.enable",
        ),
    ),
    configs=("flowrl_trainer",),
)
