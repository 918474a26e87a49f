"""verl: `verl.trainer.main_ppo` (0.2 to 0.9), 0.8's `main_ppo_sync`, and DAPO's recipe.

The formulas are those of `rlstep_hooks.systems.verl.plan`, which also reads live configurations.
"""

from __future__ import annotations

from rlstep_hooks.systems.declaration import Entry, System
from rlstep_hooks.systems.links import yes
from rlstep_hooks.systems.verl.names import KEYS
from rlstep_hooks.systems.verl.releases import FIRST, FIRST_UNSUPPORTED
from rlstep_hooks.systems.verl.settings import SETTINGS

SYSTEM = System(
    name="verl",
    title="verl",
    version="0.9.1",
    releases=(str(FIRST), str(FIRST_UNSUPPORTED)),
    package="verl",
    keys=KEYS,
    trains=(
        "verl.trainer.ppo.ray_trainer.RayPPOTrainer",
        "verl.trainer.main_ppo.run_ppo",
        "verl.trainer.main_ppo.main",
    ),
    recognised=(
        Entry(
            "verl",
            programs=(
                "module:verl.trainer.main_ppo",
                "module:verl.trainer.main_ppo_sync",
                "module:recipe.*.main_*",
                "module:verl.experimental.*",
                "script:verl/trainer/main_ppo.py",
            ),
            keys=("actor_rollout_ref.actor.ppo_mini_batch_size", "data.gen_batch_size"),
        ),
    ),
    overrides=True,
    config_settings=(),
    own_configs={"ppo_trainer": {}, "ppo_megatron_trainer": {}, "ppo_veomni_trainer": {}, "ppo_torchtitan_trainer": {}},
    rows_from=("data.train_files",),
    settings=SETTINGS,
    plan="rlstep_hooks.systems.verl.launch:read",
    live="rlstep_hooks.systems.verl.plan:plan_live",
    writes="rlstep_hooks.systems.verl.launch:write",
    deviations="rlstep_hooks.systems.verl.deviations:DEVIATIONS",
    attaches_by="`RLSTEP_DIR=<folder>` in front of the launch command, or `rlstep run -- <command>`.",
    # 0.6 and later; from 0.9 on the entry point does the same, and the second call does nothing.
    on_import={
        "verl": "rlstep_hooks.systems.verl.observe.plugin:imported",
    },
    observed_releases=("0.9", str(FIRST_UNSUPPORTED)),
    trained_releases=("0.9.1",),
    observes=(
        "rollouts with the policy version behind each sample",
        "rows of the data set",
        "rewards beside advantages",
        "refreshes of old log-probs",
        "micro-batches",
        "the policy's loss and what goes into its backward, against the documented formula",
        "masks of the loss",
        "updates of policy and critic",
        "learning rate",
        "the weights of the reference",
        "syncs",
        "evaluation",
        "checkpoints on resume",
    ),
    links={
        "advantages": yes(
            "from the rewards, in float64: grpo with and without deviation, rloo, reinforce_plus_plus, its baseline, remax, opo, gpg, "
            "grpo_passk, gae with values and targets; the KL penalty in the rewards (a coefficient that adapts is taken as it came)",
            "not gdpo, optimal token baselines, use_pf_ppo or estimators of somebody's own",
        ),
        "advantages on the way": yes(
            "in the controller from the estimator to the end of the rollout, in the trainer from its data to each micro-batch"
        ),
        "mask": yes(
            "through the first end, in the V1 trainer",
            "not with several turns, filters of tokens, ignore_eos, or in the V0 trainer",
        ),
        "mask on the way": yes("from old log-probs to the loss", "not where old log-probs are not computed again"),
        "loss": yes(
            "vanilla, gspo, sapo, gpg, cispo, dro, with clip, aggregation, KL, entropy and importance weights, in float64",
            "not clip_cov, kl_cov, dppo_tv, dppo_kl, geo_mean or losses of somebody's own; not the critic's",
        ),
        "backward": yes("the factor that arrives at the loss", "not with a gradient scaler"),
        "gradients cleared": yes("a probe before the first backward of an update"),
        "gradient norm": yes("of all gradients at the step, against clip_grad", "the part of one process"),
        "optimizer step": yes(
            "SGD, Adam and AdamW of torch, on the part of the weights that a process holds", "not other optimizers"
        ),
        "optimizer moments": yes("between a replayed step and the next"),
        "learning rate": yes("constant and cosine with warm-up, of the policy", "not other numbers of cycles"),
        "reference": yes("a probe of its weights"),
        "sampler": yes(
            "the version behind each sample; the engine's log-probs where it gives them",
            "not the settings of its calls",
        ),
        "weights between updates": yes("a probe between updates"),
    },
    does_not_observe=(
        "trainer.v1.trainer_mode=separate_async",
        "the trainers of verl.experimental",
        "Megatron and engines other than FSDP",
    ),
)
