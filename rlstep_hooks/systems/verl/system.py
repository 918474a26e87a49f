"""verl: `verl.trainer.main_ppo` (0.2 to 0.9), 0.8's `main_ppo_sync`, and DAPO's recipe (recipe/dapo/dapo_ray_trainer.py).

Its quantities have a file for each question: which trainer runs (`trainers`), how a rollout is cut (`sizes`), how long it goes on
(`length`), which versions of the policy meet (`staleness`), what differs between releases (`releases`), what is refused (`refusals`).
"""

from __future__ import annotations

from rlstep_hooks.systems.engine.declaration import Depends, Entry, Note, System, program_assumed
from rlstep_hooks.systems.verl import remarks
from rlstep_hooks.systems.verl.formulas import FORMULAS, OF_CRITIC, PLACES
from rlstep_hooks.systems.verl.launch import algorithm_named, another_trainer, asked_processes, shipped_loop
from rlstep_hooks.systems.verl.length import LENGTH, ratio
from rlstep_hooks.systems.verl.links import LINKS, RULES
from rlstep_hooks.systems.verl.minibatches import microbatches, near_divisors
from rlstep_hooks.systems.verl.names import KEYS
from rlstep_hooks.systems.verl.refusals import CHECKS
from rlstep_hooks.systems.verl.releases import DIFFERENCES, FIRST, FIRST_UNSUPPORTED
from rlstep_hooks.systems.verl.settings import ACTOR, SETTINGS, SHOWN
from rlstep_hooks.systems.verl.sizes import MINIBATCH, SIZES
from rlstep_hooks.systems.verl.staleness import STALENESS
from rlstep_hooks.systems.verl.trainers import TRAINERS
from rlstep_hooks.systems.verl.unread import unread_in

_OPTIM = f"{ACTOR}.optim"

_STEP = (
    "1 step = 1 rollout = {updates_per_rollout} update{'' if updates_per_rollout == 1 else 's'}"
    "{' of the policy and ' + quoted(critic.updates_per_rollout) + ' of the critic' if critic else ''}"
)

SYSTEM = System(
    name="verl",
    title="verl",
    version="0.9.1",
    releases=(FIRST, FIRST_UNSUPPORTED),
    package="verl",
    commits="verl/commits.json",
    keys=KEYS,
    trains=(
        "verl.trainer.ppo.ray_trainer.RayPPOTrainer",
        "verl.trainer.main_ppo.run_ppo",
        "verl.trainer.main_ppo.main",
        "*RayDAPOTrainer",
        "SkyAgentPPOTrainer",
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
        Entry("verl", programs=("module:verl.trainer.main_*",), with_key="actor_rollout_ref.model.path"),
    ),
    overrides=True,
    config_settings=(),
    own_configs={"ppo_trainer": {}, "ppo_megatron_trainer": {}, "ppo_veomni_trainer": {}, "ppo_torchtitan_trainer": {}},
    rows_from=("data.train_files",),
    settings=SETTINGS,
    shown=SHOWN,
    # What the program, the engine's name and `--world-size` set instead.
    resolved={
        "data.gen_batch_size": "None if filtered else data.gen_batch_size",
        f"{ACTOR}.strategy": f"{ACTOR}.strategy if given({ACTOR}.strategy) or engine == 'dp' else engine",
        "trainer.use_v1": "False if sets_v0 else trainer.use_v1",
        "trainer.nnodes": "trainer.nnodes if asked is None else 1",
        "trainer.n_gpus_per_node": "trainer.n_gpus_per_node if asked is None else gpus",
    },
    instead=another_trainer,
    functions={
        "algorithm_named": algorithm_named,
        "asked_processes": asked_processes,
        "microbatches": microbatches,
        "near_divisors": near_divisors,
        "ratio": ratio,
        "shipped_loop": shipped_loop,
        "unread_in": unread_in,
        **remarks.FUNCTIONS,
    },
    let={**DIFFERENCES, **TRAINERS, **LENGTH, **SIZES, **OF_CRITIC, **STALENESS, **PLACES},
    always={
        "loader": "drops",
        "step_unit": "rollout",
        "step_means": _STEP,
        "critic.step_means": _STEP,
    },
    formulas=FORMULAS,
    depends=(
        Depends(
            on="filtered",
            says="algorithm.filter_groups of DAPO's recipe: batches are generated until enough prompts are left",
            counts=("rollouts_per_epoch", "rollouts"),
            source="verl {version} recipe/dapo/dapo_ray_trainer.py fit",
        ),
        Depends(
            on="single",
            says="the V1 trainers replace prompts without signal, or whose generation failed, one by one",
            counts=("rollouts_per_epoch",),
            source="verl {version} trainer/ppo/v1/trainer_base.py:727-739",
        ),
    ),
    checks=CHECKS,
    notes=(
        program_assumed("verl.trainer.main_ppo"),
        *remarks.REMARKS,
        Note(
            "unit",
            "train_batch_size and ppo_mini_batch_size count prompts, ppo_micro_batch_size_per_gpu samples of one process",
        ),
        Note("pads", "each rollout is filled up with {samples_added_per_rollout} samples that train nothing", "filled"),
        Note(
            "grows",
            "the last mini-batch of a pass is smaller: {min(minibatches)} instead of {max(minibatches)} samples",
            "min(minibatches) < max(minibatches)",
        ),
        Note(
            "grows",
            "a mini-batch of {wanted} samples on {world_size} processes is rounded down to {samples_per_update}: "
            "{updates_per_rollout} updates",
            "samples_per_update < wanted and samples_per_update < samples_per_rollout",
        ),
        Note(
            "shrinks",
            "a mini-batch of {wanted} samples is more than a rollout has: each update takes all its {samples_per_rollout}",
            "samples_per_update < wanted and samples_per_update == samples_per_rollout",
        ),
        Note("assumes", "the rows are those left after data.filter_overlong_prompts", "known(rows)"),
        Note("ignores", "trainer.val_only=True: verl validates once and ends, nothing is trained", "evaluates_only"),
        Note(
            "ignores",
            "trainer.val_only has no effect where trainer.val_before_train=False: verl trains",
            "trainer.val_only and not evaluates_only",
        ),
        Note(
            "assumes",
            "each session of the agent loop gives one sample; with several or none, updates of a rollout follow the samples",
            "updates_bound == 'data_dependent' and not evaluates_only",
        ),
        Note(
            "drops",
            "prompts whose samples span more than {threshold} steps are dropped and replaced",
            "(colocated or separate) and not waits and threshold is not None",
        ),
        Note(
            "carries",
            "training waits for prompts that are under way for {threshold} steps; none is dropped for its age",
            "(colocated or separate) and waits and threshold is not None",
        ),
        Note(
            "ignores",
            "training ends after total_epochs, with {rollouts} of total_training_steps = {trainer.total_training_steps} rollouts",
            "not evaluates_only and trainer.total_training_steps is not None and rollouts < trainer.total_training_steps",
        ),
    ),
    facts={
        "lr_constant": f"({_OPTIM}.lr_scheduler_type or 'constant') == 'constant'",
        "minibatch_unit": "'prompts'",
        "unread": "unread_in(launch) if has_v1 else None",
        "correct_by": "'algorithm.rollout_correction.rollout_is=token, or algorithm.rollout_correction.bypass_mode=True'",
        "more_updates": f"'{ACTOR}.ppo_epochs above 1, or {ACTOR}.ppo_mini_batch_size below data.train_batch_size,'",
        "nominal_updates_per_rollout": f"reuse_epochs * prompts_per_rollout / {MINIBATCH}",
        "lr_warmup": f"{_OPTIM}.lr_warmup_steps if {_OPTIM}.lr_warmup_steps is not None and {_OPTIM}.lr_warmup_steps >= 0 "
        f"else floor({_OPTIM}.lr_warmup_steps_ratio * lr_horizon)",
        "save_every": "trainer.save_freq if trainer.save_freq > 0 else None",
        "eval_every": "trainer.test_freq if trainer.test_freq > 0 else None",
    },
    live="rlstep_hooks.systems.verl.plan:plan_live",
    checkout="rlstep_hooks.systems.verl.checkout.beside:beside",
    reads_program="rlstep_hooks.systems.verl.checkout.reading:reads_trainer",
    writes="rlstep_hooks.systems.verl.launch:write",
    deviations="rlstep_hooks.systems.verl.deviations:DEVIATIONS",
    knobs={
        "learning_rate": "actor_rollout_ref.actor.optim.lr",
        "rate_schedule": "actor_rollout_ref.actor.optim.lr_scheduler_type",
        "warmup": "actor_rollout_ref.actor.optim.lr_warmup_steps",
        "gradient_limit": "actor_rollout_ref.actor.grad_clip",
        "kl_coefficient": "actor_rollout_ref.actor.kl_loss_coef",
        "clip": "actor_rollout_ref.actor.clip_ratio_high",
        "passes": "actor_rollout_ref.actor.ppo_epochs",
        "updates": "actor_rollout_ref.actor.ppo_mini_batch_size",
        "group": "actor_rollout_ref.rollout.n",
        "temperature": "actor_rollout_ref.rollout.temperature",
        "entropy_bonus": "actor_rollout_ref.actor.entropy_coeff",
        "length": "trainer.total_epochs",
        "age": "trainer.v1.sampler.max_off_policy_threshold",
        "correction": "algorithm.rollout_correction.rollout_is",
    },
    attaches_by="`RLSTEP_DIR=<folder>` in front of the launch command, or `rlstep run -- <command>`.",
    rehearsed_by="rlstep_hooks.systems.verl.rehearse:FRAMEWORK",
    # 0.6 and later; from 0.9 on the entry point does the same, and the second call does nothing.
    ray_job={},  # verl 0.9 loads the package by itself
    on_import={
        "verl": "rlstep_hooks.systems.verl.observe.plugin:imported",
    },
    observed_releases=("0.9", FIRST_UNSUPPORTED),
    trained_releases=("0.9.1",),
    observes=(
        "rollouts with the policy version behind each sample",
        "prompts between submission and training, by name (V1 and fully_async_policy)",
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
    proved_in="one process of each role (FSDP)",
    links=LINKS,
    rules=RULES,
    does_not_observe=(
        "the trainers of verl.experimental, but one_step_off_policy and fully_async_policy without a critic",
        "fully_async_policy with engines within the trainers (use_trainer_do_validate, use_dynamic_resource_scheduling), its rows",
        "Megatron and engines other than FSDP",
    ),
)
