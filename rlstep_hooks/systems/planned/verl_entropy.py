"""verl's recipe of Clip-Cov and KL-Cov: as to the schedule DAPO's trainer.

Read at verl-project/verl-recipe 48ea0a7 (2026-08-05), entropy: entropy_ray_trainer.py `fit` (DAPO's, line by line, but for what it logs
and when it saves), config/entropy_trainer.yaml. It calls workers as verl 0.5 to 0.7 have them.
"""

from rlstep_hooks.systems.verl.copies import copy

SYSTEM = copy(
    "verl_entropy",
    "verl recipe/entropy",
    "0.7.1",
    ("0.5", "0.8"),
    "recipe.entropy.*",
    "*RayEntropyTrainer",
    let={"dapo": "True"},
    configs=("entropy_trainer",),
)
