"""Asynchronous training: how old samples may get, in rollouts and in updates, and what corrects for it.

Each age is worked out by hand from the framework's source, which the declaration names.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.golden.reading import planned

SLIME = (
    "python3 train_async.py --num-rollout 30 --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 64 "
    "--actor-num-nodes 1 --actor-num-gpus-per-node 8 "
)
FULLY = "--rollout-function-path miles.rollout.fully_async_rollout.generate_rollout "
OPEN_INSTRUCT = "python open_instruct/grpo_fast.py --num_unique_prompts_rollout 8 --num_samples_per_prompt_rollout 4 "
SIZES = (
    "trainer.train_batch_size=64 generator.n_samples_per_prompt=4 trainer.epochs=2 trainer.placement.colocate_all=false "
    "trainer.placement.policy_num_gpus_per_node=2 "
)
ONE_AHEAD = "python -m examples.train.async.main_async trainer.policy_mini_batch_size=16 " + SIZES
SKYRL = (
    "python -m examples.train.fully_async.main_fully_async trainer.policy_mini_batch_size=64 trainer.fully_async.enabled=true "
    "trainer.fully_async.num_parallel_generation_workers=128 " + SIZES
)
OPENRLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --rollout.batch_size 64 --rollout.n_samples_per_prompt 4 --train.batch_size 64 "
    "--algo.advantage.estimator group_norm --vllm.num_engines 1 --train.async_enable "
)
AREAL = (
    "python3 -m areal.launcher.local gsm8k_grpo.py actor.backend=fsdp:d4 train_dataset.batch_size=64 gconfig.n_samples=4 "
    "rollout.consumer_batch_size=64 rollout.max_head_offpolicyness=2 "
)
TRL = (
    "accelerate launch --num_processes 2 examples/scripts/async_grpo.py --max_steps 50 --gradient_accumulation_steps 2 "
)
NEMO = (
    "uv run examples/run_grpo_math.py grpo.num_prompts_per_step=32 grpo.num_generations_per_prompt=16 "
    "policy.train_global_batch_size=128 cluster.gpus_per_node=2 grpo.max_num_steps=50 policy.generation.colocated.enabled=false "
    "policy.generation.colocated.resources.gpus_per_node=1 grpo.async_grpo.enabled=true "
    "loss_fn.use_importance_sampling_correction=true "
)
NEMO_PPO = NEMO.replace("run_grpo_math", "run_ppo_math").replace("grpo.", "ppo.").replace("async_grpo", "async_ppo")
VERL_SIZES = (
    "algorithm.adv_estimator=grpo data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=16 "
    "actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 trainer.n_gpus_per_node=4 trainer.total_epochs=1 "
)
VERL = "python3 -m verl.trainer.main_ppo " + VERL_SIZES
SEPARATE = VERL + (
    "trainer.v1.trainer_mode=separate_async actor_rollout_ref.rollout.nnodes=1 actor_rollout_ref.rollout.n_gpus_per_node=4 "
    "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl trainer.v1.separate_async.parameter_sync_step=4 "
)
COLOCATED = VERL + "trainer.v1.trainer_mode=colocate_async "
ONE_STEP_OFF = "python3 -m verl.experimental.one_step_off_policy.main_ppo " + VERL_SIZES
FULLY_ASYNC = (
    "python3 -m verl.experimental.fully_async_policy.fully_async_main "
    + VERL_SIZES.replace("train_batch_size=64", "train_batch_size=0")
    + "rollout.total_rollout_steps=6400 "
)
WEIGHTS = "algorithm.rollout_correction.rollout_is=token "
PRIME = "rl --orchestrator.batch-size 64 --orchestrator.group-size 8 --max-steps 10 "

AGES = [
    # train_async.py: the next rollout is generated while this one is trained; a sync after every interval.
    ("slime", SLIME, 1, 4, "none"),
    ("slime", SLIME + "--update-weights-interval 3", 3, 12, "none"),
    ("slime", SLIME + "--use-tis", 1, 4, r"token importance weights, 0\.0 to 2\.0"),
    ("slime", SLIME + "--use-tis --tis-clip 3 --tis-clip-low 0.5", 1, 4, r"0\.5 to 3\.0"),
    ("slime", SLIME + "--use-tis --custom-tis-function-path mis.weights", 1, 4, r"mis\.weights"),
    ("slime", SLIME + "--use-rollout-logprobs", 1, 4, "the engine's log-probs"),
    ("slime", SLIME + "--keep-old-actor", 1, 4, "--keep-old-actor"),
    ("slime", SLIME + FULLY, None, None, "none"),
    # miles drops what is older when it is taken, one interval before it is trained.
    ("slime", SLIME + FULLY + "--max-weight-staleness 2", 3, 12, "none"),
    ("open_instruct", OPEN_INSTRUCT, 8, 8, r"token importance weights, at most 2\.0"),
    ("open_instruct", OPEN_INSTRUCT + "--async_steps 2 --use_rho_correction False", 2, 2, "none"),
    ("open_instruct", OPEN_INSTRUCT + "--rho_clamp_upper_bound 0", 8, 8, "without a bound"),
    ("open_instruct", OPEN_INSTRUCT + "--rho_mask_upper_bound 5", 8, 8, r"none above 5\.0"),
    ("open_instruct", OPEN_INSTRUCT + "--use_vllm_logprobs True --use_rho_correction False", 8, 8, "the engine's"),
    ("skyrl", ONE_AHEAD, 1, 4, "none"),
    (
        "skyrl",
        ONE_AHEAD + "trainer.algorithm.off_policy_correction.tis_ratio_type=token",
        1,
        4,
        r"token .*at most 2\.0",
    ),
    ("skyrl", ONE_AHEAD + "trainer.algorithm.off_policy_correction.tis_ratio_type=sequence", 1, 4, r"at most 5\.0"),
    (
        "skyrl",
        ONE_AHEAD + "trainer.algorithm.use_tis=true trainer.algorithm.tis_imp_ratio_cap=3",
        1,
        4,
        r"at most 3\.0",
    ),
    (
        "skyrl",
        ONE_AHEAD + "trainer.algorithm.off_policy_correction.sequence_mask_metric=product",
        1,
        4,
        "masked by the product",
    ),
    ("skyrl", SKYRL + "trainer.algorithm.policy_loss_type=rollout_is", 4, 4, "the engine's log-probs"),
    (
        "skyrl",
        SKYRL + "trainer.algorithm.policy_loss_type=dppo trainer.fully_async.max_staleness_steps=1",
        1,
        1,
        "the engine's log-probs",
    ),
    ("openrlhf", OPENRLHF, 1, 4, "none"),
    ("openrlhf", OPENRLHF + "--train.async_queue_size 2", 2, 8, "none"),
    (
        "openrlhf",
        OPENRLHF + "--algo.advantage.is_correction_level token",
        1,
        4,
        r"mask by token ratio from 0\.5 to 5\.0",
    ),
    (
        "openrlhf",
        OPENRLHF
        + "--algo.advantage.is_correction_level token --algo.advantage.is_correction_mode clip "
        + "--algo.advantage.is_correction_threshold 0.5 3.0",
        1,
        4,
        r"clip by token ratio from 0\.5 to 3\.0",
    ),
    (
        "openrlhf",
        OPENRLHF + "--algo.advantage.is_correction_level token --actor.policy_loss_type gspo",
        1,
        4,
        "the ratio of a sequence, taken to the log-probs of the engine",
    ),
    ("areal", AREAL, 2, 8, "the engine's log-probs"),
    ("areal", AREAL + "actor.recompute_logprob=true", 2, 8, "none"),
    # Without rejection sampling the decoupled loss has no weight between the sampler and the recomputed log-probs.
    ("areal", AREAL + "actor.use_decoupled_loss=true", 2, 8, "none"),
    (
        "areal",
        AREAL + "actor.use_decoupled_loss=true actor.rejection_sampling.upper=5",
        2,
        8,
        r"decoupled loss, mask by token ratio at most 5\.0",
    ),
    # A version is `weight_sync_steps` updates; samples are looked at when they are fetched, one update before they are trained.
    ("trl_async", TRL, 5, 5, "the engine's log-probs"),
    ("trl_async", TRL + "--max_staleness 0 --token_budget 0", 1, 1, "the engine's log-probs"),
    ("trl_async", TRL + "--max_staleness 2 --weight_sync_steps 3", 9, 9, "the engine's log-probs"),
    # With a budget of tokens the sample that did not fit waits for one more micro-batch, which is an update.
    ("trl_async", TRL.replace("steps 2", "steps 1") + "--max_staleness 2", 4, 4, "the engine's log-probs"),
    (
        "trl_async",
        TRL.replace("steps 2", "steps 1") + "--max_staleness 2 --token_budget 0",
        3,
        3,
        "the engine's log-probs",
    ),
    ("nemo_rl", NEMO, 1, 4, "token importance weights, without a bound"),
    (
        "nemo_rl",
        NEMO
        + "grpo.async_grpo.max_trajectory_age_steps=3 loss_fn.truncated_importance_sampling_type=tis "
        + "loss_fn.truncated_importance_sampling_ratio=2",
        3,
        12,
        r"tis from 0\.0 to 2\.0",
    ),
    ("nemo_rl", NEMO_PPO.replace("correction=true", "correction=false"), 1, 16, "none"),
    # A sample may span `max_off_policy_threshold` steps, the one that trains it included.
    ("verl", SEPARATE, 7, 28, "none"),
    ("verl", SEPARATE + "trainer.v1.sampler.max_off_policy_threshold=3", 2, 8, "none"),
    (
        "verl",
        SEPARATE + "trainer.v1.sampler.max_off_policy_threshold=3 trainer.v1.sampler.max_off_policy_strategy=wait",
        3,
        12,
        "none",
    ),
    ("verl", SEPARATE + "algorithm.rollout_correction.bypass_mode=True", 7, 28, "the engine's log-probs"),
    ("verl", COLOCATED + WEIGHTS, 7, 28, r"token importance weights, at most 2\.0"),
    ("verl", COLOCATED + WEIGHTS + "algorithm.rollout_correction.rollout_is_threshold=5.0", 7, 28, r"at most 5\.0"),
    ("verl", COLOCATED + "algorithm.rollout_correction.rollout_rs=seq_mean_k1", 7, 28, "rejection by seq_mean_k1"),
    # The next batch is generated while this one is trained; its own configuration takes the engine's log-probs.
    ("verl", ONE_STEP_OFF, 1, 4, "the engine's log-probs"),
    ("verl", ONE_STEP_OFF + "algorithm.rollout_correction.bypass_mode=False", 1, 4, "none"),
    # (1 + threshold) times what is trained between two syncs may wait.
    ("verl_fully_async", FULLY_ASYNC, 1, 4, "the engine's log-probs"),
    ("verl_fully_async", FULLY_ASYNC + "async_training.staleness_threshold=1.5", 2, 8, "the engine's log-probs"),
    ("verl_fully_async", FULLY_ASYNC + "async_training.staleness_threshold=0", 0, 0, ""),
    # One prompt may have been taken to be generated, and wait for an engine, when the count begins anew.
    ("verl_fully_async", FULLY_ASYNC + "async_training.staleness_threshold=1", 2, 8, "the engine's log-probs"),
    (
        "verl_fully_async",
        FULLY_ASYNC + "async_training.require_batches=2 algorithm.rollout_correction.bypass_mode=False",
        1,
        8,
        "none",
    ),
    ("prime_rl", PRIME, 8, 8, "the engine's log-probs"),
    ("prime_rl", PRIME + "--orchestrator.max-off-policy-steps 2", 2, 2, "the engine's log-probs"),
]


@pytest.mark.parametrize(
    ("system", "launch", "rollouts", "updates", "correction"), AGES, ids=[f"{a[0]}-{i}" for i, a in enumerate(AGES)]
)
def test_the_age_and_what_corrects_for_it(
    system: str, launch: str, rollouts: int | None, updates: int | None, correction: str
) -> None:
    plan = planned(launch, rows=6400)
    assert plan.framework == system
    schedule = plan.schedule
    assert schedule is not None
    assert (schedule.max_age, schedule.max_age_updates) == (rollouts, updates)
    assert re.search(correction, schedule.correction)
    findings = {finding.code for finding in plan.findings}
    assert ("RLS117" in findings) is (correction == "none")
    assert "RLS102" not in findings


INERT = [
    (AREAL + "actor.recompute_logprob=true actor.rejection_sampling.upper=5", "without actor.use_decoupled_loss"),
    (COLOCATED + WEIGHTS + "actor_rollout_ref.rollout.calculate_log_probs=False", "verl leaves it out"),
    (ONE_AHEAD + "trainer.algorithm.use_tis=true", "makes every weight that number"),
]


@pytest.mark.parametrize(("launch", "why"), INERT)
def test_a_correction_that_cannot_act_is_none(launch: str, why: str) -> None:
    plan = planned(launch, rows=6400)
    assert plan.schedule is not None
    assert why in plan.schedule.correction_inert
    [finding] = [finding for finding in plan.findings if finding.code == "RLS117"]
    assert "cannot act" in finding.observed


BIASED = [
    SLIME + "--use-tis --rollout-top-p 0.9",
    SLIME + "--use-rollout-logprobs --rollout-top-p 0.9",
    OPEN_INSTRUCT + "--vllm_top_p 0.9",
    ONE_AHEAD + "trainer.algorithm.off_policy_correction.tis_ratio_type=token generator.sampling_params.top_p=0.9",
    OPENRLHF + "--algo.advantage.is_correction_level token --rollout.top_p 0.9",
    AREAL + "gconfig.top_p=0.9",
    TRL + "--top_p 0.9",
    COLOCATED + WEIGHTS + "actor_rollout_ref.rollout.top_p=0.9",
    FULLY_ASYNC + "actor_rollout_ref.rollout.top_p=0.9",
]


@pytest.mark.parametrize("launch", BIASED)
def test_a_truncated_distribution_biases_the_correction(launch: str) -> None:
    plan = planned(launch, rows=6400)
    assert plan.schedule is not None
    assert "top_p = 0.9" in plan.schedule.correction_biased
    assert plan.schedule.correction_inert == ""


REFUSED: list[tuple[str, str]] = [
    (FULLY_ASYNC.replace("train_batch_size=0", "train_batch_size=64"), "train_batch_size must be zero"),
    (SLIME + "--use-tis --use-rollout-logprobs", "cannot be set at the same time"),
    (OPEN_INSTRUCT + "--use_vllm_logprobs True", "making the"),
    (SKYRL, "should use rollout logprobs"),
    (SKYRL.replace("enabled=true", "enabled=false"), "enabled must be True"),
    (SKYRL.replace("train_batch_size=64", "train_batch_size=128"), "train_batch_size must equal"),
    (SKYRL.replace("workers=128", "workers=768"), "Invalid num_parallel_generation_workers"),
    (SKYRL.replace("colocate_all=false", "colocate_all=true"), "colocate_all is not supported"),
    (ONE_AHEAD.replace("colocate_all=false", "colocate_all=true"), "colocate_all is not supported"),
]


@pytest.mark.parametrize(("launch", "says"), REFUSED)
def test_what_the_framework_refuses(launch: str, says: str) -> None:
    findings: list[Any] = [finding for finding in planned(launch, rows=6400).findings if finding.code == "RLS110"]
    assert says in findings[0].observed


def test_a_bound_that_drops_nothing_is_said() -> None:
    plan = planned(SKYRL + "trainer.algorithm.policy_loss_type=rollout_is", rows=6400)
    assert any("drops none" in note.text for note in plan.notes)


def test_a_synchronous_run_of_verl_is_not_asked_for_a_correction() -> None:
    plan = planned(VERL, rows=6400)
    assert plan.schedule is not None
    assert (plan.schedule.max_age, plan.schedule.max_age_updates, plan.schedule.correction) == (0, 0, "")
    assert "RLS117" not in {finding.code for finding in plan.findings}


def test_dropping_and_waiting_are_told_apart() -> None:
    drops = planned(SEPARATE, rows=6400)
    waits = planned(SEPARATE + "trainer.v1.sampler.max_off_policy_strategy=wait", rows=6400)
    assert any("are dropped and replaced" in note.text for note in drops.notes)
    assert any("none is dropped for its age" in note.text for note in waits.notes)


def test_what_is_trained_between_two_syncs_is_a_rollout() -> None:
    schedule = planned(FULLY_ASYNC, rows=6400).schedule
    assert schedule is not None
    assert (schedule.prompts_per_rollout, schedule.updates_per_rollout, schedule.rollouts) == (64, 4, 100)
    assert (schedule.samples_per_update, schedule.lr_ticks) == (64, 400)
