"""verl's recipe of SPPO: verl's loop without a critic; its loss has no ratio, so old log-probs are computed and not used.

Read at verl-project/verl-recipe 48ea0a7 (2026-08-05), sppo: sppo_ray_trainer.py `fit`, dp_actor.py `update_policy`,
config/sppo_trainer.yaml (defaults). It calls workers as verl 0.5 to 0.7 have them.
"""

from rlstep_hooks.systems.engine.declaration import Note, count, text
from rlstep_hooks.systems.verl.copies import copy
from rlstep_hooks.systems.verl.settings import ACTOR

SYSTEM = copy(
    "verl_sppo",
    "verl recipe/sppo",
    "0.7.1",
    ("0.5", "0.8"),
    "recipe.sppo.*",
    "*RaySPPOTrainer",
    let={"critic": "False", "algorithm": "'SPPO'"},
    settings={"algorithm.adv_estimator": text("sppo"), f"{ACTOR}.optim.lr_warmup_steps": count(15, least=-1)},
    notes=(Note("ignores", "old log-probs: they are computed, and the loss of SPPO has no ratio"),),
    configs=("sppo_trainer",),
)
