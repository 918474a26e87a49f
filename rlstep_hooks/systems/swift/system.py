"""ms-swift's GRPO: TRL's sampler with checks and old log-probs of its own; on Megatron, sizes over all processes.

Read in the wheels of 3.9.0 (swift/trainers/rlhf_arguments.py, swift/trainers/rlhf_trainer/grpo_trainer.py) and 4.6.0
(swift/rlhf_trainers/args_mixin.py `_init_generation_batch_params`, swift/rlhf_trainers/grpo_trainer.py `old_policy`,
swift/megatron/arguments/megatron_args.py, swift/megatron/trainers/grpo_trainer.py, swift/cli/main.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.record.cadence import WORDS
from rlstep_hooks.systems.engine.declaration import (
    Check,
    Depends,
    Entry,
    Formula,
    Note,
    System,
    count,
    flag,
    number,
    text,
)
from rlstep_hooks.systems.engine.links import no, yes
from rlstep_hooks.systems.swift.megatron import MEGATRON
from rlstep_hooks.systems.swift.releases import COMPUTED_SINCE, FIRST, FIRST_UNSUPPORTED, PACKAGE
from rlstep_hooks.systems.swift.shared import (
    BUILT,
    IS_READ,
    LEFT_FOR_VALIDATION,
    LIMITED,
    ROWS,
    SAMPLING_NOTES,
    SETTINGS,
    runs_on_megatron,
    sampled_rows,
    started_processes,
)
from rlstep_hooks.systems.trl import loader
from rlstep_hooks.systems.trl.launch import valid_groups
from rlstep_hooks.systems.trl.links import OF_UPDATES
from rlstep_hooks.systems.trl.links import RULES as TRL_RULES

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.links import Deployment
    from rlstep_hooks.systems.engine.request import Request

_ON_RANKS: tuple[Deployment, ...] = ("DDP", "ZeRO-2", "ZeRO-3")
"""Deployments in which tests train on two ranks (`tests/systems/swift_ranks`)."""

_ARGUMENTS = "ms-swift {version} swift/{'rlhf_trainers/args_mixin.py' if fourth else 'trainers/rlhf_arguments.py'}"
_TRAINER = "ms-swift {version} swift/{'rlhf_trainers' if fourth else 'trainers/rlhf_trainer'}/grpo_trainer.py"


def on_megatron(launch: Request) -> System | None:
    """The declaration of GRPO on Megatron, where the launch is one."""
    return MEGATRON if runs_on_megatron(launch.command, launch.settings.is_given) else None


def _has_teacher(launch: Request) -> bool:
    """Whether a teacher's log-probs join the advantages (arguments/rlhf_args.py, teacher_set)."""
    return launch.settings.is_given("teacher_model", "teacher_model_server")


_AS_TRL = (
    "RLS301",
    "RLS302",
    "RLS310",
    "RLS401",
    "RLS404",
    "RLS406",
    "RLS407",
    "RLS408",
    "RLS412",
    "RLS504",
    "RLS505",
    "RLS514",
    "RLS802",
    "RLS809",
    "RLS811",
    "RLS812",
)
"""Rules that look at ms-swift's GRPOTrainer as at TRL's, whose hooks it has."""

SYSTEM = System(
    name="swift",
    title="ms-swift",
    version="4.6.0",
    releases=("3.0", "5.0"),
    recognised=(
        Entry(
            "swift",
            programs=(
                "executable:swift rlhf",
                "executable:megatron rlhf",
                "module:swift.cli.rlhf",
                "script:swift/cli/rlhf.py",
            ),
            keys=("rlhf_type",),
            before="trl",
        ),
        # A configuration for `swift rlhf` whose command says the rest.
        Entry("swift", keys=("external_plugins",), with_key="num_generations", before="trl"),
        Entry("swift", calls=("RLHFArguments",), packages=("swift",), before="trl"),
    ),
    instead=on_megatron,
    limited=LIMITED,
    settings={
        **SETTINGS,
        "per_device_train_batch_size": count(1),
        "gradient_accumulation_steps": count(1),
        "max_steps": count(-1, least=-1),
        "dataset_shuffle": flag(True),
        "early_stop_interval": count(None, least=0, where="given(early_stop_interval)"),
        "num_train_epochs": number(None),
        "lr_scheduler_type": text("cosine"),
        "warmup_ratio": number(0.0),
        "warmup_steps": number(0),
        "save_strategy": text("steps"),
        "save_steps": number(500),
    },
    shown=(
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "num_generations",
        "num_iterations",
        "steps_per_generation",
        "generation_batch_size",
    ),
    resolved={"steps_per_generation": "steps", "generation_batch_size": "generated"},
    functions={
        **loader.FUNCTIONS,
        "has_teacher": _has_teacher,
        "sampled_rows": sampled_rows,
        "started_processes": started_processes,
        "valid_groups": valid_groups,
    },
    let={
        **loader.LET,
        "fourth": "release >= (4, 0)",
        "left_for_validation": LEFT_FOR_VALIDATION,
        "rows": ROWS,
        # What ms-swift 4 and 3 recommend; the sampler is TRL's.
        "trl": "'0.29.1' if fourth else '0.20.0'",
        "transformers": "'4.57.6' if fourth else '4.53.3'",
        "world_size": "started_processes(launch)",
        "num_train_epochs": "3 if num_train_epochs is None else num_train_epochs",
        "steps": "generation_batch_size // microbatch if generation_batch_size is not None "
        "else steps_per_generation or gradient_accumulation_steps",
        "generated": "microbatch * steps",
        "reference_source": "'none' if beta == 0 else 'at_rollout'",
        # 4.6.0 swift/rlhf_trainers/grpo_trainer.py:182, 2112: the sampler shuffles where the set is shuffled.
        "rows_reshuffled": "dataset_shuffle if fourth or dataset_shuffle else unknown('how ms-swift 3 orders rows that "
        "dataset_shuffle leaves in their order was not read')",
    },
    always={"algorithm": "GRPO", "loop": "loader", "step_means": "1 step = 1 update"},
    formulas=(
        Formula("samples_per_rollout", "per_device_train_batch_size * world_size * steps", _ARGUMENTS),
        Formula("prompts_per_rollout", "samples_per_rollout / num_generations", f"{_TRAINER} _get_train_sampler"),
        Formula(
            "samples_per_update",
            "per_device_train_batch_size * world_size * gradient_accumulation_steps",
            "transformers Trainer",
        ),
        Formula(
            "updates_per_rollout", "steps * num_iterations / gradient_accumulation_steps", f"{_TRAINER} _prepare_inputs"
        ),
        Formula("rows_dropped_per_epoch", "rows % prompts_per_rollout", "trl {trl} RepeatSampler"),
        *loader.formulas(sampler="trl {trl} RepeatSampler", generation=f"{_TRAINER} _prepare_inputs"),
        Formula(
            "old_logprob_source",
            f"'at_rollout' if release >= {COMPUTED_SINCE} or num_iterations > 1 or gradient_accumulation_steps % steps != 0 "
            "else 'detach'",
            f"{_TRAINER} {{'_prepare_batch_inputs' if release >= {COMPUTED_SINCE} else 'old_policy'}}",
        ),
    ),
    depends=(
        Depends(
            on="(early_stop_interval or 0) > 0",
            says="early_stop_interval ends the run after so many checkpoints without a better metric",
            counts=("updates",),
            source="ms-swift {version} swift/callbacks/early_stop.py on_save",
        ),
    ),
    checks=(
        *IS_READ,
        Check(
            "steps_per_generation is None or generation_batch_size == microbatch * steps_per_generation",
            "generation_batch_size ({generation_batch_size}) must equal per_device_train_batch_size * world_size * "
            "steps_per_generation = {microbatch * steps_per_generation}.",
            fix="generation_batch_size = {microbatch * steps_per_generation}, or leave one of them out",
            when=BUILT,
            source=_ARGUMENTS,
            where="fourth and generation_batch_size is not None",
        ),
        Check(
            "generation_batch_size % microbatch == 0",
            "generation_batch_size ({generation_batch_size}) must be divisible by the global batch size ({microbatch}).",
            fix="generation_batch_size = {multiples(generation_batch_size, microbatch)}",
            when=BUILT,
            source=_ARGUMENTS,
            where="generation_batch_size is not None",
        ),
        Check(
            "num_generations > 1",
            "{'num_generations must be greater than 1 for GRPO' if fourth else 'GRPO requires at least 2 generations per prompt to "
            "calculate the advantages. You provided ' + quoted(num_generations) + ', which is less than the minimum required.'}",
            fix="num_generations = 2 or more",
            when=BUILT,
            source=_ARGUMENTS,
            where="not (fourth and has_teacher(launch))",  # on-policy distillation needs no group
        ),
        *(
            Check(
                "generated % num_generations == 0",
                says,
                fix="num_generations = one of the valid values, or generation_batch_size = "
                "{multiples(generated, lcm(num_generations, microbatch))}",
                when=BUILT,
                source=_ARGUMENTS,
                where=where,
            )
            for where, says in (
                (
                    "fourth",
                    "generation_batch_size ({generated}) must be evenly divisible by num_generations ({num_generations}). "
                    "Valid values: {valid_groups(generated)}.",
                ),
                (
                    "not fourth",
                    "The effective train batch size ({world_size} x {per_device_train_batch_size} x {steps}) must be evenly divisible "
                    "by the number of generations per prompt ({num_generations}). Given the current effective train batch size, the "
                    "valid values for the number of generations are: {valid_groups(generated)}.",
                ),
            )
        ),
    ),
    notes=(
        Note(
            "ignores",
            "steps_per_generation = {steps_per_generation}: generation_batch_size makes it {steps}",
            "generation_batch_size is not None and steps_per_generation is not None and steps_per_generation != steps",
        ),
        Note("unit", "per_device_train_batch_size and generation_batch_size count samples (completions), not prompts"),
        *SAMPLING_NOTES,
    ),
    facts=loader.FACTS,
    live="rlstep_hooks.systems.swift.plan:plan_live",
    package=PACKAGE,
    commits="swift/commits.json",
    checkout="rlstep_hooks.systems.swift.checkout.beside:beside",
    deviations="rlstep_hooks.systems.swift.deviations:DEVIATIONS",
    trained_releases=("4.6.0",),
    observed_releases=(".".join(map(str, FIRST)), ".".join(map(str, FIRST_UNSUPPORTED))),
    knobs={
        "learning_rate": "learning_rate",
        "rate_schedule": "lr_scheduler_type",
        "warmup": "warmup_ratio",
        "gradient_limit": "max_grad_norm",
        "kl_coefficient": "beta",
        "clip": "epsilon_high",
        "passes": "num_iterations",
        "updates": "gradient_accumulation_steps",
        "group": "num_generations",
        "temperature": "temperature",
        "length": "num_train_epochs",
    },
    attaches_by="`rlstep run -- swift rlhf ...`, or `callbacks_map['rlstep'] = lambda args, trainer: StepAuditCallback()` in a file of "
    "--external_plugins, and --callbacks rlstep.",
    # ms-swift 4.4 to 4.6: the module that defines the trainer.
    on_import={"swift.rlhf_trainers.grpo_trainer": "rlstep_hooks.systems.swift.observe.injection:audit_grpo"},
    observes=(
        "rollouts",
        "old log-probs",
        "micro-batches",
        "updates",
        "advantages, mask and the loss of the types grpo, bnpo, dr_grpo and dapo",
        "learning rate",
        "weights",
        "evaluation",
        "syncs to vLLM, as far as the trainer hands the weights over",
    ),
    links={
        **OF_UPDATES,
        **{
            name: msgspec.structs.replace(OF_UPDATES[name], proved=_ON_RANKS)
            for name in (
                "backward",
                "reduction",
                "gradient norm",
                "optimizer step",
                "optimizer moments",
                "learning rate",
            )
        },
        "settings in force": no("ms-swift builds its trainers in ways of its own; sizes alone are compared"),
        "completions": yes(
            "against the policy's own distributions, and each other",
            "not truncated sampling, several turns, or dropout",
            often="compared",
            proved=_ON_RANKS,
        ),
        "completions on the way": yes(
            "bit for bit, from the rollout to the loss", "not prompts", often="carried", proved=_ON_RANKS
        ),
        "rewards on the way": yes(
            "what each function gave; the text of each completion against the engine's tokens, prompt and columns against the row",
            "not reward models, nor with dynamic_sample; with a multi-turn scheduler that gives tokens of its own not the texts",
            often="compared",
            proved=_ON_RANKS,
        ),
        "advantages": yes(
            "from the rewards, in float64: grpo, rloo and reinforce_plus_plus, each scale_rewards, the KL term too",
            "not with dynamic_sample or a teacher, nor where turns make more or fewer samples; on several processes not with a KL term "
            "where they share a group, or divide by the deviation of all samples",
            often="compared",
            proved=_ON_RANKS,
        ),
        "advantages on the way": yes("bit for bit, from the rollout to the loss", often="carried"),
        "mask": yes(
            "the trained tokens are those that the engine gave",
            "not with padding_free, dynamic_sample or a multi-turn scheduler in the server",
            often="compared",
        ),
        "mask on the way": yes("bit for bit, from the rollout to the loss", often="carried"),
        "loss": yes(
            "grpo, bnpo, dr_grpo, dapo, cispo and sapo, on the same log-probs, with masks of entropy and "
            "with the weights between engine and trainer",
            "not other types, overlong_filter or an off-policy mask, nor inside a liger loss",
            often="compared",
            proved=_ON_RANKS,
        ),
        "gradients cleared": no("the trainer clears them after its step, where nothing of this package stands"),
        "reference": yes("a probe of its weights", often="compared"),
        "reference on the way": yes("bit for bit, from the rollout to the loss", often="compared"),
        "sampler": yes(
            "settings at the call of generate; with vLLM its log-probs",
            "not what vLLM's engine does with the weights",
        ),
        "weights between updates": yes(
            "a probe, between updates and while samples are generated", often="probed", proved=_ON_RANKS
        ),
        "replicas": yes(
            "the bits of all weights and buffers that each rank holds whole",
            "not shards",
            often="whole",
            proved=_ON_RANKS,
        ),
    },
    rules={
        **{code: TRL_RULES[code] for code in _AS_TRL},
        "RLS305": yes(
            f"from the rollout to the loss; those of the engine from its answer to the loss: {WORDS['compared']}",
            often="carried",
        ),
        "RLS306": yes(
            f"the tokens of each sample, bit for bit; those that the engine was asked for and gave: {WORDS['compared']}",
            "the engine's not with padding_free, dynamic_sample or a multi-turn scheduler in the server",
            "carried",
        ),
        "RLS312": yes(
            "the four modes of rollout_importance_sampling_mode, in each loss; and that there are weights where they are configured",
            "not inside a liger loss, nor in releases that compute them in another method than 4.6",
            "compared",
        ),
        "RLS501": yes("whether the rows of each group have one prompt", "not in an evaluation"),
        "RLS515": yes(
            "what each function gave and what the advantages are computed from; the texts, prompts and columns that it was asked about",
            "not reward models, nor with dynamic_sample; with a multi-turn scheduler that gives tokens of its own not the texts",
            "compared",
        ),
        "RLS518": yes(
            "the trained tokens against those that the engine gave, turn by turn with a multi-turn scheduler",
            "not with padding_free, dynamic_sample or a multi-turn scheduler in the server, nor what one with tokens or a mask of its "
            "own leaves untrained",
            "compared",
        ),
        "RLS403": yes("vLLM's log-probs where the trainer corrects for them"),
        "RLS410": yes("the settings of transformers' generate", "not the settings of vLLM's requests"),
        "RLS411": yes("a probe of its weights", "not shards", "compared"),
        "RLS413": yes("by the entropies that the loss computes", often="compared"),
        "RLS519": yes(
            "completions, at the first update on a rollout, also those of several processes",
            "of several processes in the first 64 compared rollouts",
            often="compared",
        ),
        "RLS801": yes(
            "grpo, bnpo, dr_grpo, dapo, cispo and sapo, on the same log-probs, with masks of entropy and "
            "with the weights between engine and trainer",
            "not other types, overlong_filter or an off-policy mask, nor inside a liger loss",
            "compared",
        ),
    },
    does_not_observe=(
        "GRPO on Megatron and on Ray",
        "GKD, and trainers without rollouts",
        "runs with sequence_parallel_size above 1 or async_generate",
        "what the vLLM engine does with the weights",
        "the experts that vLLM chose and that training is to choose again (routed_experts)",
        "log-probs inside a liger loss",
    ),
)
"""`swift rlhf --rlhf_type grpo` on transformers' Trainer."""
