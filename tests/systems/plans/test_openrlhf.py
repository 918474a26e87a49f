"""OpenRLHF's launches: both spellings of its flags, golden cases, what it refuses and what it does silently."""

from __future__ import annotations

import pytest

from rlstep_hooks.launch.text import LaunchError, SettingError
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.engine.index import system_of
from tests.golden.openrlhf_runs import RUNS, Run
from tests.golden.reading import planned, read

EXAMPLE = (
    "ray job submit --address=http://127.0.0.1:8265 -- python3 -m openrlhf.cli.train_ppo_ray --vllm.num_engines 8 "
    "--rollout.batch_size 256 --rollout.n_samples_per_prompt 16 --train.max_epochs 1 --train.batch_size 128 "
    "--algo.advantage.estimator group_norm "
)
OLD = (
    "python -m openrlhf.cli.train_ppo_ray --vllm_num_engines 8 --rollout_batch_size 256 --n_samples_per_prompt 16 --max_epochs 1 "
    "--train_batch_size 128 --advantage_estimator group_norm "
)


@pytest.mark.parametrize("command", [EXAMPLE, OLD])
def test_the_maintainers_example(command: str) -> None:
    schedule = read(command, rows=2560).schedule
    assert schedule.updates_per_rollout == 32
    assert schedule.samples_per_rollout == 4096
    assert schedule.samples_per_update == 128
    assert schedule.minibatches == (128,) * 32
    assert (schedule.rollouts, schedule.updates, schedule.lr_horizon) == (10, 320, 320)
    assert schedule.lags == tuple(range(32))
    assert schedule.ratio_one_updates == (1,)
    assert schedule.world_size == 8
    assert schedule.algorithm == "GRPO"


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_measured_runs(run: Run) -> None:
    schedule = read(run.command, rows=32).schedule
    assert schedule.updates == sum(run.updates)
    assert schedule.rollouts == len(run.updates)
    assert schedule.lr_horizon == run.horizon


def test_old_flags_are_read_as_the_last_release_that_had_them() -> None:
    reading = read(OLD, rows=1000)
    assert reading.schedule.version == "0.10.1.post2"
    assert reading.schedule.rollouts == 3
    assert read(EXAMPLE, rows=1000).schedule.rollouts == 4
    old = read(OLD, rows=1000, version="0.9.0")
    assert old.schedule.version == "0.9.0"
    assert old.schedule.microbatches_per_update == 4


def test_old_and_new_flags_do_not_mix() -> None:
    with pytest.raises(SettingError, match="no release knows both"):
        read(EXAMPLE + "--micro_train_batch_size 4")
    with pytest.raises(SettingError, match=r"came with OpenRLHF 0\.10\.2"):
        read(EXAMPLE, version="0.9.0")


def test_the_trainer_without_ray() -> None:
    command = (
        "deepspeed --num_gpus 8 --module openrlhf.cli.train_ppo --rollout_batch_size 512 --train_batch_size 128 --max_epochs 2 "
        "--micro_train_batch_size 4 --freezing_actor_steps 1"
    )
    schedule = read(command, rows=2048).schedule
    assert schedule.version == "0.5.9.post1"
    assert schedule.world_size == 8
    assert schedule.updates_per_rollout == 8
    assert schedule.critic is not None
    assert schedule.critic.updates == 32
    assert (schedule.updates, schedule.frozen_rollouts) == (24, 1)
    assert schedule.not_evaluated["syncs"]


def test_world_size_given_by_the_user() -> None:
    schedule = read(EXAMPLE + "--train.micro_batch_size 2", world_size=16).schedule
    assert schedule.world_size == 16
    assert schedule.microbatches_per_update == 4


def test_ring_attention_and_tensor_parallelism_share_samples() -> None:
    schedule = read(EXAMPLE + "--ds.ring_attn_size 2 --ds.tensor_parallel_size 2 --train.micro_batch_size 4").schedule
    assert schedule.world_size == 2
    assert schedule.microbatches_per_update == 16


@pytest.mark.parametrize(
    ("more", "kind", "text"),
    [
        ("--train.batch_size 1536", "carries", "8/3 updates of 1536"),
        ("--rollout.vllm_generate_batch_size 64", "shrinks", "a rollout has 64 prompts"),
        ("--critic.freezing_steps 1", "grows", "12288 samples at once"),
        ("--train.micro_batch_size 3 --train.batch_size 120 --rollout.micro_batch_size 1", "drops", "16 samples of each rollout"),
        ("--train.batch_size 1536 --train.dynamic_batch_enable", "drops", "1024 samples of each rollout"),
    ],
)  # fmt: skip
def test_what_is_done_silently(more: str, kind: str, text: str) -> None:
    notes = [note for note in read(EXAMPLE + more, rows=2560).notes if note.kind == kind]
    assert any(text in note.text for note in notes), notes


def test_rows_that_are_generated_for_nothing() -> None:
    reading = read(OLD, rows=1000)
    assert reading.schedule.rows_dropped_per_epoch == 1000 - 3 * 256
    assert any("232 rows of each episode" in note.text and "generated" in note.text for note in reading.notes)


def test_samples_of_a_smaller_rollout_that_dynamic_batches_never_train() -> None:
    dynamic = EXAMPLE + "--train.dynamic_batch_enable --train.batch_size 1024"
    plan = planned(dynamic, rows=896 + 32)  # the last rollout of an episode has 160 prompts, 2560 samples
    drops = [note.text for note in plan.notes if note.kind == "drops"]
    assert any("512 of 2560 samples of an episode's last rollout" in text for text in drops), drops
    (warned,) = [finding for finding in plan.findings if finding.code == "RLS512"]
    assert (warned.severity, warned.expected, warned.observed) == (
        "warning",
        "all 2560 samples of the last rollout of a data epoch trained in each pass",
        "512 samples left out (20 %)",
    )
    whole = planned(dynamic, rows=896)
    assert [finding for finding in whole.findings if finding.code == "RLS512"] == [], "2048 samples, two updates"
    filtered = read(dynamic + " --algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0 1", rows=896)
    assert any("smaller rollout that do not fill an update of 1024" in note.text for note in filtered.notes)


def test_a_smaller_last_rollout_leaves_gradients() -> None:
    reading = read(EXAMPLE + "--train.batch_size 2048", rows=896)
    assert reading.schedule.samples_of_last_rollout == 2048
    assert not any(note.kind == "carries" for note in reading.notes)
    reading = read(EXAMPLE + "--train.batch_size 2048", rows=832)
    assert any("1024 of 2048 wait" in note.text for note in reading.notes)


@pytest.mark.parametrize(
    ("more", "message", "fix"),
    [
        ("--train.batch_size 100", "100 != 1 * 12 * 8", "96 or 104"),
        ("--rollout.n_samples_per_prompt 1", "group_norm requires n_samples_per_prompt > 1", "2 or more"),
        ("--algo.advantage.estimator grpo", "invalid choice: 'grpo'", "group_norm"),
        ("--rollout.vllm_generate_batch_size 512", "requires --train.async_enable", "256"),
        ("--ds.lora.rank 16", "no module or parameter named 'base_model'", "ds.lora.rank = 0"),
    ],
)
def test_refusals(more: str, message: str, fix: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(EXAMPLE + more, rows=2560)
    assert message in caught.value.message
    assert fix in caught.value.fix
    plan = planned(EXAMPLE + more, rows=2560)
    assert [finding.code for finding in plan.findings] == ["RLS110"]


def test_facts_for_the_rules() -> None:
    facts = read(EXAMPLE + "--ckpt.save_steps 20 --actor.lr_warmup_ratio 0.1", rows=2560).facts
    assert facts["save_every"] == 20
    assert "eval_every" not in facts
    assert facts["lr_warmup"] == 32
    assert facts["lr_constant"] is False


def test_a_horizon_that_freezing_does_not_reach() -> None:
    plan = planned(EXAMPLE + "--algo.dynamic_filtering_enable", rows=2560)
    assert plan.schedule is not None
    assert plan.schedule.updates is None
    assert plan.schedule.lr_horizon == 320


def test_too_few_rows_for_an_old_release() -> None:
    plan = planned(OLD, rows=100)
    assert [finding.code for finding in plan.findings if finding.severity == "error"] == ["RLS510"]


def test_writes_what_it_reads() -> None:
    schedule = read(
        EXAMPLE + "--train.async_enable --train.async_queue_size 2 --critic.freezing_steps 1", rows=2560
    ).schedule
    written = system_of("openrlhf").write(schedule)
    assert written.lost == ()
    again = read(" ".join(written.arguments), rows=2560).schedule
    for name in (
        "world_size", "prompts_per_rollout", "samples_per_prompt", "samples_per_rollout", "reuse_epochs", "samples_per_update",
        "updates_per_rollout", "rollouts", "updates", "lags", "max_age", "frozen_rollouts", "remainder",
    ):  # fmt: skip
        assert getattr(again, name) == getattr(schedule, name), name


def test_carried_updates_can_be_written_of_half_a_rollout() -> None:
    command = (
        "accelerate launch --num_processes 2 -m trl.scripts.grpo --per_device_train_batch_size 4 --gradient_accumulation_steps 8 "
        "--steps_per_generation 4 --num_generations 8 --num_train_epochs 1"
    )
    schedule = read(command, rows=64).schedule
    written = system_of("openrlhf").write(schedule)
    again = read(" ".join(written.arguments), rows=64).schedule
    assert again.updates_per_rollout == schedule.updates_per_rollout
    assert again.updates == schedule.updates


def test_what_cannot_be_written() -> None:
    skyrl = (
        "python -m skyrl.train.entrypoints.main_base trainer.train_batch_size=8 trainer.policy_mini_batch_size=4 "
        "generator.n_samples_per_prompt=2 trainer.max_training_steps=5 trainer.epochs=10"
    )
    with pytest.raises(LaunchError, match=r"rollouts = 5 cannot be kept: .* whole passes"):
        system_of("openrlhf").write(read(skyrl, rows=16).schedule)
    kept = system_of("openrlhf").write(read(skyrl, rows=8).schedule)
    assert "--train.num_episodes" in kept.arguments


def test_a_critic_without_machines_is_fine_where_there_is_no_critic() -> None:
    """Only `critic.model_name_or_path` starts the critic, and every other estimator than GAE unsets it (train_ppo_ray.py)."""
    none = "--critic.num_nodes 0 --critic.num_gpus_per_node 0"
    assert read(f"{EXAMPLE} {none}", rows=2560).schedule.updates == read(EXAMPLE, rows=2560).schedule.updates
    with pytest.raises(SettingError, match=r"critic\.num_nodes = 0: the critic trains nowhere"):
        read(f"{EXAMPLE.replace('group_norm', 'gae')} {none}", rows=2560)
