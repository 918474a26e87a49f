"""verl's launches: golden cases, releases, remainders, refusals, DAPO's recipe, and what it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError, SettingError
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.engine.index import system_of
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

GRPO = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=1024 actor_rollout_ref.rollout.n=8 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 "
    "trainer.n_gpus_per_node=8 "
)
DAPO = (
    "ray job submit --no-wait -- python3 -m recipe.dapo.main_dapo data.train_batch_size=512 data.gen_batch_size=1536 "
    "actor_rollout_ref.rollout.n=16 actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.use_dynamic_bsz=True "
    "algorithm.adv_estimator=grpo algorithm.filter_groups.enable=True trainer.nnodes=16 trainer.n_gpus_per_node=8 "
    "trainer.total_epochs=1 data.train_files=dapo-math-17k.parquet "
)
RELEASES = ("0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1")


@pytest.mark.parametrize("version", RELEASES)
def test_grpo_of_every_release(version: str) -> None:
    schedule = read(GRPO + "trainer.total_training_steps=100", rows=8532, version=version).schedule
    assert schedule.version == version
    assert schedule.samples_per_rollout == 8192
    assert schedule.samples_per_update == 2048
    assert schedule.updates_per_rollout == 4
    assert (schedule.rollouts, schedule.updates, schedule.lr_ticks) == (100, 400, 100)
    assert schedule.rollouts_per_epoch == 8
    assert schedule.rows_dropped_per_epoch == 8532 - 8192
    assert schedule.lags == (0, 1, 2, 3)
    assert schedule.ratio_one_updates == (1,)
    assert schedule.critic is None
    assert schedule.loader_epochs == 12.5


@pytest.mark.parametrize(
    ("version", "per_rollout", "critic", "rollouts", "reference"),
    [
        # fit() of each release: 0.2 never makes the last of 2 x 8 rollouts, and its FSDP workers do not read ppo_epochs. Up to 0.3
        # the critic's 256 are samples: 8192 / 256 mini-batches.
        ("0.2", 4, 32, 15, "at_rollout"),
        ("0.3.0.post1", 8, 64, 16, "at_rollout"),
        ("0.4.1", 8, 8, 16, "none"),
        ("0.5.0", 8, 8, 16, "none"),
        ("0.6.0", 8, 8, 16, "none"),
    ],
)
def test_older_releases(version: str, per_rollout: int, critic: int, rollouts: int, reference: str) -> None:
    more = (
        "algorithm.adv_estimator=gae critic.ppo_micro_batch_size_per_gpu=8 actor_rollout_ref.actor.ppo_epochs=2 "
        "critic.ppo_epochs=2 trainer.total_epochs=2"
    )
    schedule = read(GRPO + more, rows=8532, version=version).schedule
    assert (schedule.updates_per_rollout, schedule.rollouts, schedule.lr_horizon) == (per_rollout, rollouts, 16)
    assert schedule.critic is not None
    assert schedule.critic.updates_per_rollout == critic
    assert schedule.reference_source == reference


@pytest.mark.parametrize(("version", "source"), [("0.5.0", "recompute"), ("0.6.0", "detach"), ("0.7.1", "detach")])
def test_old_log_probs_of_a_single_update(version: str, source: str) -> None:
    more = "actor_rollout_ref.actor.ppo_mini_batch_size=1024"
    assert read(GRPO + more, rows=8532, version=version).schedule.old_logprob_source == source


def test_a_value_that_was_removed_is_planned_for_a_release_that_takes_it() -> None:
    plan = planned(f"{GRPO} actor_rollout_ref.rollout.mode=sync", rows=8532)
    assert plan.version == "0.6.1"
    assert any("which 0.7.0 and later refuse; --version names another" in note.text for note in plan.notes)
    assert not [found for found in plan.findings if found.severity == "error"]
    later = planned(f"{GRPO} actor_rollout_ref.rollout.mode=sync", rows=8532, version="0.7.1")
    errors = [found.observed for found in later.findings if found.severity == "error"]
    assert [error.partition(".")[0] for error in errors] == ["ValueError: Rollout mode 'sync' has been removed"]
    assert planned(f"{GRPO} actor_rollout_ref.rollout.mode=async", rows=8532).version == "0.9.1"


@pytest.mark.parametrize("version", ["0.6.1", "0.7.1"])
def test_workers_of_megatron_detach_nothing(version: str) -> None:
    more = "actor_rollout_ref.actor.ppo_mini_batch_size=1024 actor_rollout_ref.actor.strategy=megatron"
    assert read(GRPO + more, rows=8532, version=version).schedule.old_logprob_source == "recompute"


def test_defaults_are_those_of_its_yaml() -> None:
    command = "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.use_dynamic_bsz=True"
    schedule = read(command, rows=7473).schedule
    assert schedule.algorithm == "PPO"
    assert schedule.samples_per_rollout == 1024
    assert schedule.updates_per_rollout == 4
    assert schedule.rollouts == 7 * 30
    assert schedule.critic is not None
    assert schedule.world_size == 8


def test_critic_with_sizes_of_its_own() -> None:
    more = (
        "algorithm.adv_estimator=gae critic.ppo_mini_batch_size=128 critic.ppo_epochs=2 critic.ppo_micro_batch_size_per_gpu=8 "
        "trainer.critic_warmup=3 trainer.total_epochs=2"
    )
    schedule = read(GRPO + more, rows=8532).schedule
    assert schedule.frozen_rollouts == 2
    assert schedule.updates == (16 - 2) * 4
    assert schedule.critic is not None
    assert schedule.critic.updates_per_rollout == 16
    assert schedule.critic.updates == 16 * 16


def test_padding_of_the_v1_trainer() -> None:
    reading = read(GRPO + "data.train_batch_size=1000", rows=8532)
    assert reading.schedule.samples_added_per_rollout == 192
    assert reading.schedule.updates_per_rollout == 4
    assert any(note.kind == "pads" and "192 samples" in note.text for note in reading.notes)


def test_a_smaller_last_mini_batch_of_legacy_workers() -> None:
    reading = read(GRPO + "data.train_batch_size=1000", rows=8532, version="0.7.1")
    assert reading.schedule.minibatches == (2048, 2048, 2048, 1856)
    assert any(note.kind == "grows" and "1856 instead of 2048" in note.text for note in reading.notes)


def test_a_mini_batch_that_is_more_than_a_rollout_is_not_rounded_down() -> None:
    more = "actor_rollout_ref.actor.ppo_mini_batch_size=2048 actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.rollout.n=5"
    reading = read(GRPO + more, rows=8532, version="0.7.1")
    said = [note.text for note in reading.notes]
    assert "a mini-batch of 10240 samples is more than a rollout has: each update takes all its 5120" in said
    assert not any("rounded down" in text for text in said)


def test_a_mini_batch_that_rounds_down() -> None:
    more = (
        "actor_rollout_ref.actor.ppo_mini_batch_size=3 actor_rollout_ref.rollout.n=5 "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"
    )
    reading = read(GRPO + more, rows=8532, version="0.7.1")
    assert reading.schedule.samples_per_update == 8
    assert reading.schedule.updates_per_rollout == 640
    assert any("rounded down to 8" in note.text for note in reading.notes)
    assert "RLS113" in [finding.code for finding in planned(GRPO + more, rows=8532, version="0.7.1").findings]


def test_generation_batches_of_the_ray_trainer() -> None:
    schedule = read(GRPO + "trainer.use_v1=False data.gen_batch_size=512", rows=8532).schedule
    assert schedule.prompts_per_rollout == 512
    assert schedule.updates_per_rollout == 2


def test_main_ppo_sync_of_08() -> None:
    command = GRPO.replace("main_ppo ", "main_ppo_sync ") + "data.train_batch_size=1000"
    assert read(command, rows=8532, version="0.8.0").schedule.remainder == "pad"
    assert read(GRPO, rows=8532, version="0.8.0").schedule.remainder == "error"


def test_world_size_given_by_the_user() -> None:
    schedule = read(
        GRPO + "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2", rows=8532, world_size=16
    ).schedule
    assert schedule.world_size == 16
    assert schedule.microbatches_per_update == 8
    assert read(GRPO + "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2", rows=8532).schedule.world_size == 4


@pytest.mark.parametrize("more", ["--config-name=ppo_megatron_trainer.yaml", "model_engine=megatron"])
def test_megatron_by_name(more: str) -> None:
    sizes = "".join(
        f" actor_rollout_ref.actor.megatron.{name}_model_parallel_size=2" for name in ("tensor", "pipeline")
    )
    assert read(GRPO + more + sizes, rows=8532).schedule.world_size == 2


def test_mindspeeds_engine_splits_processes_as_megatrons() -> None:
    """16 GPUs, of which 2 x 2 work on the same samples: 4 processes; without the engine's name its sizes count for nothing."""
    sizes = "".join(
        f" actor_rollout_ref.actor.mindspeed.{name}_model_parallel_size=2" for name in ("tensor", "pipeline")
    )
    alone = read(GRPO, rows=8532).schedule.world_size
    assert read(GRPO + "model_engine=mindspeed" + sizes, rows=8532).schedule.world_size == alone // 4
    assert (
        read(GRPO + "actor_rollout_ref.actor.strategy=mindspeed" + sizes, rows=8532).schedule.world_size == alone // 4
    )
    assert read(GRPO + sizes, rows=8532).schedule.world_size == alone


@pytest.mark.parametrize(("engine", "refused"), [("megatron", False), ("dp", True)])
def test_a_share_that_micro_batches_do_not_divide_is_refused_by_fsdps_workers_alone(engine: str, refused: bool) -> None:
    """Each of 32 processes takes 1 sample of a mini-batch of 32: Megatron's make a micro-batch of it."""
    launch = (
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=512 actor_rollout_ref.rollout.n=2 "
        "actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 "
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2 actor_rollout_ref.actor.use_kl_loss=False "
        f"trainer.n_gpus_per_node=8 trainer.nnodes=4 --config-name=ppo_{'megatron_' if engine == 'megatron' else ''}trainer"
    )
    if refused:
        with pytest.raises(PlanError, match="normalized ppo_mini_batch_size 1 should be divisible"):
            read(launch, rows=10_000, version="0.4.1")
        return
    schedule = read(launch, rows=10_000, version="0.4.1").schedule
    assert (schedule.samples_per_update, schedule.microbatches_per_update) == (32, 1)


def test_dapo() -> None:
    reading = read(DAPO, rows=1_791_700)
    schedule = reading.schedule
    assert schedule.samples_per_rollout == 8192
    assert schedule.samples_per_update == 512
    assert schedule.updates_per_rollout == 16
    assert schedule.rows_bound == "data_dependent"
    assert schedule.rollouts is None
    assert schedule.lr_horizon == 1166
    assert "at most 1166 rollouts" in schedule.not_evaluated["rollouts"]
    unfiltered = read(DAPO + "algorithm.filter_groups.enable=False", rows=1_791_700).schedule
    assert unfiltered.prompts_per_rollout == 1536
    assert unfiltered.rollouts == 1166


def test_rows_of_the_data_limit() -> None:
    assert read(GRPO + "data.train_max_samples=2048 trainer.total_epochs=1", rows=8532).schedule.rollouts == 2


def test_total_training_steps_only_shorten() -> None:
    reading = read(GRPO + "trainer.total_epochs=1 trainer.total_training_steps=100", rows=8532)
    assert reading.schedule.rollouts == 8
    assert any(note.kind == "ignores" and "8 of total_training_steps = 100" in note.text for note in reading.notes)


def test_references_between_settings() -> None:
    schedule = read(GRPO + "'actor_rollout_ref.actor.ppo_mini_batch_size=${data.train_batch_size}'", rows=8532).schedule
    assert schedule.updates_per_rollout == 1


@pytest.mark.parametrize(
    ("more", "message", "fix"),
    [
        ("actor_rollout_ref.actor.ppo_mini_batch_size=2048", "must be >= actor.ppo_mini_batch_size (2048)", "1024"),
        ("data.train_batch_size=1001 actor_rollout_ref.rollout.n=3", "divisible by minimal possible batch size (8)", "of 8"),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=48", "data size must be divisible by", "divide"),
        ("data.gen_batch_size=300", "must be a positive multiple of gen_batch_size (300)", "gen_batch_size"),
        ("~actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", "Please set at least one of", "ppo_micro_batch_size_per_gpu"),
    ],
)  # fmt: skip
def test_refusals(more: str, message: str, fix: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(GRPO + more, rows=8532)
    assert message in caught.value.message
    assert fix in caught.value.fix


def test_what_is_not_read() -> None:
    with pytest.raises(LaunchError, match="a trainer of its own"):
        read("python3 -m recipe.spin.main_spin data.train_batch_size=4")
    with pytest.raises(LaunchError, match=r"verl 0\.1 is not known"):
        read(GRPO, version="0.1")
    with pytest.raises(SettingError, match="at least 1"):
        read(GRPO + "data.train_batch_size=0")


def test_facts_for_the_rules() -> None:
    more = (
        "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1 "
        "trainer.save_freq=20 trainer.total_epochs=10"
    )
    facts = read(GRPO + more, rows=8532).facts
    assert facts["lr_constant"] is False
    assert facts["lr_warmup"] == 8
    assert facts["save_every"] == 20
    assert "eval_every" not in facts
    steps = " actor_rollout_ref.actor.optim.lr_warmup_steps="
    assert [read(GRPO + more + steps + given, rows=8532).facts["lr_warmup"] for given in ("null", "-1", "3")] == [
        8,
        8,
        3,
    ]


@pytest.mark.parametrize(
    "more",
    [
        "trainer.total_training_steps=20",
        "trainer.total_epochs=2 actor_rollout_ref.actor.ppo_epochs=3",
        "trainer.total_epochs=2 algorithm.adv_estimator=gae critic.ppo_mini_batch_size=128 critic.ppo_micro_batch_size_per_gpu=8 "
        "trainer.critic_warmup=3",
        "trainer.total_epochs=2 algorithm.rollout_correction.bypass_mode=True actor_rollout_ref.actor.use_kl_loss=True",
    ],
)
def test_writes_what_it_reads(more: str) -> None:
    schedule = read(GRPO + more, rows=8532).schedule
    written = system_of("verl").write(schedule)
    assert written.lost == ()
    again = read(" ".join(written.arguments), rows=8532).schedule
    for name in (
        "world_size", "prompts_per_rollout", "samples_per_prompt", "samples_per_rollout", "reuse_epochs", "samples_per_update",
        "updates_per_rollout", "rollouts", "updates", "lags", "frozen_rollouts", "old_logprob_source", "reference_source",
    ):  # fmt: skip
        assert getattr(again, name) == getattr(schedule, name), name
    assert (again.critic is None) == (schedule.critic is None)
    if again.critic is not None and schedule.critic is not None:
        assert again.critic.updates == schedule.critic.updates


def test_what_cannot_be_written() -> None:
    openrlhf = (
        "python -m openrlhf.cli.train_ppo_ray --rollout.batch_size 8 --rollout.n_samples_per_prompt 2 --train.batch_size 12 "
        "--actor.num_gpus_per_node 1 --train.micro_batch_size 4 --vllm.num_engines 1 --algo.advantage.estimator reinforce"
    )
    with pytest.raises(LaunchError, match="updates_per_rollout = 4/3 cannot be kept"):
        system_of("verl").write(read(openrlhf, rows=32).schedule)


@pytest.mark.parametrize("version", ["0.2", "0.3.0.post1", *RELEASES])
@pytest.mark.parametrize(
    "more",
    [
        "",
        "actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.actor.ppo_epochs=2",
        "trainer.total_training_steps=3",
        "algorithm.adv_estimator=gae critic.ppo_micro_batch_size_per_gpu=8 trainer.critic_warmup=20 trainer.total_epochs=2",
    ],
)
def test_every_release_shows_formulas_that_give_the_planned_numbers(version: str, more: str) -> None:
    reading = read(GRPO + more, rows=8532, version=version)  # which evaluates what is shown
    assert {"samples_per_update", "updates_per_rollout", "rollouts", "updates", "lr_horizon"} <= {
        formula.quantity for formula in reading.formulas
    }


def test_a_rollout_that_fills_no_mini_batch_of_legacy_workers() -> None:
    reading = read(GRPO + "data.train_batch_size=128", rows=8532, version="0.2")
    shown = {formula.quantity: formula.text for formula in reading.formulas}
    assert (shown["samples_per_update"], reading.schedule.samples_per_update) == ("samples_per_rollout", 1024)


def test_the_gpus_of_the_launch_count_no_more_where_processes_are_asked_for() -> None:
    command = GRPO + "trainer.n_gpus_per_node=3"
    with pytest.raises(PlanError, match="minimal possible batch size"):
        read(command, rows=8532)
    schedule = read(command, rows=8532, world_size=4).schedule
    assert (schedule.world_size, schedule.settings["trainer.n_gpus_per_node"]) == (4, 4)


def test_no_steps_and_no_saving() -> None:
    more = "trainer.total_training_steps=0 trainer.save_freq=-5 data.train_max_samples=-7 "
    reading = read(GRPO + more, rows=8532)
    assert (reading.schedule.rollouts, reading.schedule.lr_horizon) == (0, 0)
    assert "save_every" not in reading.facts
    assert read(GRPO + more + "trainer.use_v1=False", rows=8532).schedule.rollouts == 1


def test_a_setting_that_is_not_set_is_not_shown() -> None:
    settings = read(GRPO + "critic.enable=False", rows=8532).schedule.settings
    assert settings["critic.enable"] is False
    assert None not in settings.values()
    assert "trainer.use_v1" not in settings


@pytest.mark.parametrize(
    "module", ["verl.trainer.main_ppo_pipeline", "verl.trainer.main_ppo_async", "recipe.partial_rollout.main_ppo"]
)
def test_a_fork_with_a_trainer_beside_verls_is_not_planned_as_verls(module: str) -> None:
    with pytest.raises(LaunchError, match=f"{module} is a trainer of its own"):
        read(GRPO.replace("verl.trainer.main_ppo", module))


def test_a_configuration_without_the_sizes_of_a_rollout_is_another_programs(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    text = "server: {port: 8000}\nactor_rollout_ref: {actor: {_target_: verl.x, ppo_mini_batch_size: 16, use_dynamic_bsz: true}}\n"
    file.write_text(text)
    with pytest.raises(LaunchError, match=r"server.yaml: data.train_batch_size is not in it"):
        read(file)
    file.write_text(text + "data: {train_batch_size: 64}\nalgorithm: {adv_estimator: grpo}\n")
    assert read(file).schedule.updates_per_rollout == 4


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("actor_rollout_ref.actor.grad_clip=0.5", "actor.grad_clip = 0.5 has no effect"),
        ("actor_rollout_ref.actor.grad_clip=0.5 actor_rollout_ref.actor.optim.clip_grad=0.5", ""),
        ("actor_rollout_ref.actor.grad_clip=1.0", ""),
        ("critic.grad_clip=0.3", ""),
        (
            "critic.grad_clip=0.3 algorithm.adv_estimator=gae critic.ppo_micro_batch_size_per_gpu=4",
            "critic.grad_clip = 0.3 has no effect",
        ),
    ],
)
def test_a_limit_of_the_gradient_norm_that_no_engine_reads(more: str, said: str) -> None:
    notes = [str(note.text) for note in read(GRPO + more, rows=8532, version="0.9.1").notes]
    about = [text for text in notes if "grad_clip" in text]
    assert len(about) == bool(said)
    assert all(said in text for text in about)


OLDER = "custom_reward_function.path=reward.py custom_reward_function.name=score reward_model.reward_manager=dapo "


@pytest.mark.parametrize(
    ("launch", "version", "observed"),
    [
        (
            GRPO + OLDER,
            "0.9.1",
            "custom_reward_function.path (now reward.custom_reward_function.path), custom_reward_function.name (now "
            "reward.custom_reward_function.name), reward_model.reward_manager (now reward.reward_manager.name)",
        ),
        (
            GRPO
            + "+reward_model.reward_kwargs.max_resp_len=8 reward_model.enable=False custom_reward_function.path=null",
            "0.9.1",
            "reward_model.reward_kwargs.max_resp_len (now reward.reward_kwargs.max_resp_len), reward_model.enable (now "
            "reward.reward_model.enable)",
        ),
        (GRPO + OLDER, "0.8.0", None),
        (GRPO + "custom_reward_function.path=a.py reward.custom_reward_function.path=a.py", "0.9.1", None),
        (GRPO.replace("verl.trainer.main_ppo", "mine.main_ppo") + OLDER, "0.9.1", None),
    ],
)
def test_older_settings_of_rewards_have_no_effect_from_0_9_on(launch: str, version: str, observed: str | None) -> None:
    found = [finding.observed for finding in planned(launch, version=version).findings if finding.code == "RLS118"]
    assert found == ([observed] if observed else [])


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("trainer.v1.trainer_mode=ours_sync", "trainer.v1.trainer_mode=ours_sync is a trainer of somebody's own"),
        ("trainer.v1.sampler.custom_sampler.path=ours.py", "gives the samples of a rollout in a way of its own"),
    ],
)
def test_parts_of_somebodys_own_in_the_trainers_of_v1_are_asked_about(more: str, says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        read(f"{GRPO} {more}", rows=8532, version="0.9.1")
    before = f"{GRPO} {more} trainer.use_v1=False trainer.total_training_steps=8"  # the trainer from before has neither
    assert read(before, rows=8532, version="0.9.1").schedule.rollouts == 8


def test_a_manager_of_agent_loops_of_somebodys_own_may_give_any_number_of_samples() -> None:
    more = "+actor_rollout_ref.rollout.agent.agent_loop_manager_class=ours.Manager trainer.total_training_steps=8"
    assert read(f"{GRPO} {more}", rows=8532, version="0.9.1").schedule.updates_bound == "data_dependent"
