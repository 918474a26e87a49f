"""open-instruct grpo_fast: mini-batches by number over packs of tokens, so the updates of a rollout depend on the data.

Read at commit e6c3044 (2026-08-20): open_instruct/grpo_fast.py (`step`, `setup_runtime_variables`, `validate_configs`, `main`),
open_instruct/grpo_utils.py (`GRPOExperimentConfig`, `resolve_old_logprob`), open_instruct/data_loader.py (`StreamingDataLoaderConfig`,
`prepare_collated_data_for_workers`, `result_is_stale`), open_instruct/olmo_core_utils.py (`TrainingConfig`).
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from rlstep_hooks.launch.text import SettingError
from rlstep_hooks.systems.engine.declaration import Check, Entry, Formula, Note, System, count, flag, number, text

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.request import Request

_COMMIT = "open-instruct e6c3044"
_FAST = f"{_COMMIT} open_instruct/grpo_fast.py"
_LOADER = f"{_COMMIT} open_instruct/data_loader.py"
_LOADER_CONFIG = f"{_LOADER} StreamingDataLoaderConfig.__post_init__"
_START_UP = "at start-up, when the arguments are checked"

PACKS = "data.packs_per_process"
"""Name for `--set`: packs of one process in a rollout (micro-batches, if one holds several packs). A log shows their number."""


def _learners(launch: Request) -> int:
    """Learners of all nodes: `num_learners_per_node` is a list with one number for each.

    Raises:
        SettingError: They are no whole numbers.
    """
    learners = launch.settings.files("num_learners_per_node")
    try:
        return sum(int(each) for each in learners)
    except ValueError:
        place = launch.settings.place("num_learners_per_node")
        raise SettingError(f"num_learners_per_node = {' '.join(learners)}: not whole numbers", place) from None


_GONE = (
    "local_rollout_batch_size",
    "number_samples_per_prompt",
    "local_mini_batch_size",
    "local_rollout_forward_batch_size",
)
"""Sizes of earlier versions of the trainer, which the scripts of that time have."""


def _gone(launch: Request) -> str:
    """The settings of earlier versions that a launch gives, as the parser names them."""
    return ", ".join(f"--{name}" for name in _GONE if launch.settings.is_given(name))


SYSTEM = System(
    name="open_instruct",
    title="open-instruct",
    version="e6c3044",
    recognised=(
        Entry(
            "open_instruct",
            programs=("script:open_instruct/grpo_fast.py", "script:grpo_fast.py", "module:open_instruct.grpo_fast"),
            keys=("num_unique_prompts_rollout", "num_samples_per_prompt_rollout"),
        ),
    ),
    checkout="rlstep_hooks.systems.planned.open_instruct_checkout:beside",
    settings={
        "num_unique_prompts_rollout": count(16),
        "num_samples_per_prompt_rollout": count(4),
        "num_mini_batches": count(1),
        "num_epochs": count(1),
        "total_episodes": count(100_000),
        "async_steps": count(8, least=0),
        "per_device_train_batch_size": count(1),
        "num_learners_per_node": text(),
        "sequence_parallel_size": count(1),
        "filter_zero_std_samples": flag(True, off="no_filter_zero_std_samples"),
        "active_sampling": flag(False),
        "load_ref_policy": flag(True),
        "beta": number(Fraction(1, 20)),
        "use_vllm_logprobs": flag(False),
        "use_rho_correction": flag(True),
        "rho_clamp_lower_bound": number(0),
        "rho_clamp_upper_bound": number(2),
        "rho_mask_lower_bound": number(0),
        "rho_mask_upper_bound": number(0),
        "vllm_top_p": number(1),
        "lr_scheduler_type": text("linear"),
        "warmup_ratio": number(0),
        "save_freq": count(200, least=-1),
        "local_eval_every": count(100, least=-1),
        PACKS: count(None),
    },
    functions={"learners": _learners, "gone": _gone},
    let={
        "prompts_per_rollout": "num_unique_prompts_rollout",
        "samples_per_prompt": "num_samples_per_prompt_rollout",
        "processes": "max((learners(launch) if given(num_learners_per_node) else 1) // sequence_parallel_size, 1)",
        "reuse_epochs": "num_epochs",
        "counted": f"{PACKS} is not None",
        "packs": f"ceil({PACKS} / per_device_train_batch_size)",
        "microbatches_per_update": "packs_per_update if counted and num_mini_batches > 1 else None",
        # With one update, it gets all samples. With more, the samples of each are not known.
        "minibatches": "() if num_mini_batches > 1 else None",
        "samples_per_update": "unknown('an update gets packs of tokens, and a pack any number of samples') "
        "if num_mini_batches > 1 else samples_per_rollout",
        "updates_bound": "'data_dependent' if num_mini_batches > 1 else 'exact'",
        "updates": "rollouts * updates_per_rollout if counted or num_mini_batches == 1 else "
        f"unknown('num_mini_batches splits packs, whose number depends on the data; --set {PACKS}=N counts for N')",
        "data_epochs": "unknown('results that are too old, or all alike with active_sampling, are replaced by those of later prompts') "
        "if known(rows) else None",
        "loader_epochs": "data_epochs",
        # With several updates old log-probs come from a forward before them, or from the first visit of a pack (`resolve_old_logprob`).
        "old_logprob_source": "'engine' if use_vllm_logprobs else 'detach' if updates_per_rollout == 1 else 'recompute'",
        "reference_source": "'at_rollout' if load_ref_policy else 'none'",
        # `compute_rho_correction`: a bound of 0 is none.
        "correction": "'' if use_vllm_logprobs else 'none' if not use_rho_correction else 'token importance weights'"
        " + (', at least ' + quoted(decimal(rho_clamp_lower_bound)) if rho_clamp_lower_bound > 0 else '')"
        " + (', at most ' + quoted(decimal(rho_clamp_upper_bound)) if rho_clamp_upper_bound > 0 else ', without a bound')"
        " + (', none above ' + quoted(decimal(rho_mask_upper_bound)) if rho_mask_upper_bound > 0 else '')"
        " + (', none below ' + quoted(decimal(rho_mask_lower_bound)) if rho_mask_lower_bound > 0 else '')",
        "correction_biased": "'vllm_top_p = ' + quoted(decimal(vllm_top_p)) "
        "if vllm_top_p < 1 and (use_rho_correction or use_vllm_logprobs) else ''",
    },
    always={
        "algorithm": "GRPO",
        "loader": "wraps",
        "remainder": "data_dependent",
        "rows_bound": "data_dependent",
        "syncs": "first_and_after_updates",
    },
    formulas=(
        Formula(
            "samples_per_rollout",
            "num_unique_prompts_rollout * num_samples_per_prompt_rollout",
            f"{_FAST} setup_runtime_variables",
        ),
        # Halves are rounded down; as many updates follow as these fill.
        Formula("packs_per_update", "max(ceil(packs / num_mini_batches - 1 / 2), 1)", f"{_FAST} step"),
        Formula(
            "updates_per_rollout", "num_epochs * floor(packs / packs_per_update)", f"{_FAST} step", where="counted"
        ),
        Formula(
            "updates_per_rollout", "num_epochs * num_mini_batches", f"{_FAST} step (exact for 1; else packs decide)"
        ),
        Formula("rollouts", "floor(total_episodes / samples_per_rollout)", f"{_FAST} setup_runtime_variables"),
        Formula("lr_ticks", "updates", f"{_FAST} step (model.step)"),
        Formula(
            "lr_horizon",
            "rollouts * num_epochs * num_mini_batches",
            f"{_FAST} PolicyTrainerRayProcess.from_pretrained",
        ),
        Formula(
            "max_age", "async_steps", f"{_LOADER}:994-1003 result_is_stale (older results are dropped and replaced)"
        ),
    ),
    checks=(
        Check(
            "gone(launch) == ''",
            "ValueError: Some specified arguments are not used by the HfArgumentParser: {gone(launch)}",
            fix="--num_unique_prompts_rollout and --num_samples_per_prompt_rollout, which count prompts and samples of all processes",
            when=_START_UP,
            source="open-instruct e6c3044 open_instruct/utils.py ArgumentParserPlus",
        ),
        Check(
            "not active_sampling or async_steps > 1",
            "With active_sampling, you should set async_steps > 1 to account for filtering of the first batch.",
            fix="--async_steps 2 or more",
            when=_START_UP,
            source=_LOADER_CONFIG,
        ),
        Check(
            "not active_sampling or filter_zero_std_samples",
            "filter_zero_std_samples must be True when active_sampling is True.",
            fix="--filter_zero_std_samples True",
            when=_START_UP,
            source=_LOADER_CONFIG,
        ),
        Check(
            "num_samples_per_prompt_rollout > 1 or not filter_zero_std_samples",
            "`filter_zero_std_samples` cannot be True when `num_samples_per_prompt_rollout` is 1, as the reward standard deviation "
            "will always be 0, causing all samples to be filtered.",
            fix="--filter_zero_std_samples False, or --num_samples_per_prompt_rollout 2",
            when=_START_UP,
            source=_LOADER_CONFIG,
        ),
        Check(
            "not (use_vllm_logprobs and use_rho_correction)",
            "Cannot use both `use_vllm_logprobs` and `use_rho_correction`. use_vllm_logprobs sets old_logprobs to vLLM logprobs, "
            "making the \N{GREEK SMALL LETTER RHO} correction pointless.",
            fix="--use_rho_correction False",
            when=_START_UP,
            source=f"{_COMMIT} open_instruct/grpo_utils.py GRPOExperimentConfig.__post_init__",
        ),
        Check(
            "async_steps >= 1",
            "`async_steps` must be greater than 0. Fully synchronous training is not supported.",
            fix="--async_steps 1",
            when=_START_UP,
            source=_LOADER_CONFIG,
        ),
        Check(
            "load_ref_policy or beta == 0",
            "When load_ref_policy=False, beta must be 0.0. Got beta={decimal(beta)}.",
            fix="--beta 0.0",
            when=_START_UP,
            source=f"{_COMMIT} open_instruct/grpo_utils.py GRPOExperimentConfig.__post_init__",
        ),
        Check(
            "samples_per_rollout >= world_size",
            "num_samples_per_prompt_rollout * num_unique_prompts_rollout must be greater than or equal to world_size // "
            "sequence_parallel_size ({samples_per_rollout} < {world_size})",
            fix="a rollout of {world_size} samples or more",
            when=_START_UP,
            source=f"{_FAST} validate_configs",
        ),
        Check(
            "total_episodes >= samples_per_rollout",
            "Training didn't run since resume_training_step=1 > args.num_training_steps=0 ({total_episodes} // "
            "{samples_per_rollout})",
            fix="--total_episodes {samples_per_rollout} or more",
            when="after start-up",
            source=f"{_FAST} setup_runtime_variables, run_training",
        ),
        Check(
            "rows >= async_steps * prompts_per_rollout",
            "Train dataset is too small! Is {rows} prompts, but {async_steps * prompts_per_rollout} are needed to have enough prompts "
            "for bsz and prefill.",
            fix="{'--async_steps ' + quoted(rows // prompts_per_rollout) if rows >= prompts_per_rollout "
            "else '--num_unique_prompts_rollout ' + quoted(rows // async_steps or 1) + ' or less'}",
            when="at start-up, when the data set is loaded",
            source=f"{_FAST} main",
        ),
    ),
    notes=(
        Note("unit", "num_mini_batches divides packs of tokens of one process, not samples"),
        Note(
            "drops",
            "samples of a prompt that all score the same are dropped and not replaced: rollouts are smaller",
            "filter_zero_std_samples and not active_sampling",
        ),
        Note(
            "assumes",
            "{num_mini_batches} updates a pass is what the setting says; packs may make fewer, or nearly twice as many",
            "num_mini_batches > 1 and not counted",
        ),
        Note(
            "drops",
            "{packs % packs_per_update} micro-batches of packs of each process do not fill an update of {packs_per_update}",
            "counted and packs % packs_per_update",
        ),
    ),
    facts={
        "more_updates": "'num_epochs or num_mini_batches above 1'",
        "lr_constant": "starts(lr_scheduler_type, 'constant')",
        "lr_warmup": "floor(warmup_ratio * lr_horizon)",
        "save_every": "save_freq",
        "eval_every": "local_eval_every",
        "nominal_updates_per_rollout": "num_epochs * num_mini_batches",
        "correct_by": "'--use_rho_correction True'",
    },
)
