"""verl's recipe of PRIME: more prompts are generated than trained, those within the bounds of accuracy first.

Read at verl-project/verl-recipe 48ea0a7 (2026-08-05), prime: prime_ray_trainer.py (`_create_dataloader`, `fit`,
`filter_and_downsample`), main_prime.py (roles), config/prime_trainer.yaml (defaults); the policy's workers are verl's.
PRIME's own repository is `rlstep_hooks.systems.planned.prime`.
"""

from __future__ import annotations

import msgspec

from rlstep_hooks.systems.engine.declaration import Entry, Formula, Note, count, flag, number, text
from rlstep_hooks.systems.verl.family import MULTIPLIED_FIRST, PER_GPU, early_fork

_SOURCE = "verl-recipe 48ea0a7 prime"
_ACTOR = "actor_rollout_ref.actor"

_DECLARED = early_fork(
    name="verl_prime",
    title="verl recipe/prime",
    version="48ea0a7",
    source="verl",
    recognised=(Entry("verl_prime", programs=("module:recipe.prime.*", "script:prime/main_prime.py"), before="verl"),),
    sizes=MULTIPLIED_FIRST,
    has_critic=False,
    settings={
        **PER_GPU,
        f"{_ACTOR}.ppo_epochs": count(1),
        f"{_ACTOR}.use_kl_loss": flag(False),
        "actor_rollout_ref.rollout.n": count(4),
        "algorithm.adv_estimator": text("rloo"),
        "algorithm.use_kl_in_reward": flag(False),
        "data.oversample_factor": number(4),
        "data.filter_accuracy": flag(True),
        "data.shuffle": flag(True),
    },
    let={
        "prompts": "floor(data.train_batch_size * data.oversample_factor)",
        "passes": f"{_ACTOR}.ppo_epochs",
        "kept": "floor(samples / data.oversample_factor)",
        "minibatches": "slices(kept, samples_per_update)",
        "samples_dropped_per_rollout": "samples - kept",
        "rows_reshuffled": "data.shuffle",
        "reference_source": f"'at_rollout' if {_ACTOR}.use_kl_loss or algorithm.use_kl_in_reward else 'none'",
    },
    checkout="rlstep_hooks.systems.verl.checkout.oversampling:beside",
    formulas=(
        Formula(
            "updates_per_rollout",
            "passes * ceil(kept / samples_per_update)",
            f"{_SOURCE}/prime_ray_trainer.py filter_and_downsample",
        ),
        Formula("frozen_rollouts", "0", f"{_SOURCE}/prime_ray_trainer.py fit (critic_warmup is not read)"),
    ),
    notes=(
        Note(
            "drops",
            "{prompts} prompts are generated and {kept} of {samples} samples trained"
            "{': those within the bounds of accuracy first' if data.filter_accuracy else ''}",
            "data.oversample_factor != 1",
        ),
        Note("assumes", "the process reward model makes updates of its own, which are not in this plan"),
    ),
)

SYSTEM = msgspec.structs.replace(
    _DECLARED,
    settings={name: typed for name, typed in _DECLARED.settings.items() if name != "trainer.critic_warmup"},
    facts=_DECLARED.facts
    | {
        "samples_selected": "data.oversample_factor != 1",
        "nominal_updates_per_rollout": f"passes * kept / ({_ACTOR}.ppo_mini_batch_size * actor_rollout_ref.rollout.n)",
    },
)
