"""NeMo-RL: golden cases, remainders, ticks and refusals of GRPO and PPO."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.launch.text import LaunchError, SettingError
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.planned.nemo_rl.system import SYSTEM
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.schedule import Schedule

GRPO = "uv run python examples/run_grpo.py cluster.gpus_per_node=8 policy.sequence_packing.enabled=false "
PPO = "uv run python examples/run_ppo.py cluster.gpus_per_node=8 policy.sequence_packing.enabled=false "
ASYNC = GRPO + (
    "grpo.async_grpo.enabled=true loss_fn.use_importance_sampling_correction=true "
    "policy.generation.colocated.enabled=false policy.generation.colocated.resources.gpus_per_node=4 "
)


def test_default_configuration() -> None:
    """golden.json: NeMo-RL grpo_math_1B."""
    schedule = read("uv run examples/run_grpo.py").schedule
    assert (schedule.prompts_per_rollout, schedule.samples_per_prompt) == (32, 16)
    assert (schedule.samples_per_rollout, schedule.samples_per_update) == (512, 512)
    assert schedule.updates_per_rollout == 1
    assert schedule.world_size == 1
    assert schedule.reference_source == "at_rollout"
    assert (schedule.lags, schedule.ratio_one_updates, schedule.old_logprob_source) == ((0,), (1,), "recompute")


def test_a_tick_follows_a_rollout_not_an_update() -> None:
    schedule = read(GRPO + "grpo.num_prompts_per_step=64 grpo.num_generations_per_prompt=32", rows=6400).schedule
    assert schedule.updates_per_rollout == 4
    assert schedule.lags == (0, 1, 2, 3)
    assert (schedule.rollouts, schedule.updates, schedule.lr_ticks) == (100, 400, 100)
    assert schedule.lr_clock == "rollout"
    assert schedule.step_means == "1 step = 1 rollout = 4 updates"


def test_a_tick_of_ppo_follows_a_pass() -> None:
    launch = PPO + "policy.train_global_batch_size=128 ppo.max_num_epochs=2 value.train_global_batch_size=256"
    schedule = read(launch, rows=330).schedule
    assert schedule.reuse_epochs == 4
    assert schedule.updates_per_rollout == 16
    assert (schedule.rollouts, schedule.updates, schedule.lr_ticks) == (20, 320, 80)
    assert schedule.lr_clock == "pass"
    assert schedule.critic is not None
    assert (schedule.critic.updates_per_rollout, schedule.critic.updates, schedule.critic.lr_ticks) == (8, 160, 80)


def test_the_policy_waits_for_its_critic() -> None:
    launch = PPO + (
        "ppo.max_num_steps=50 ppo.policy_training_start_step=10 policy.megatron_cfg.enabled=true "
        "policy.megatron_cfg.scheduler.lr_decay_style=cosine policy.megatron_cfg.scheduler.lr_decay_iters=null"
    )
    # examples/configs/ppo_math_1B.yaml has a length of its own.
    assert read(launch.replace("lr_decay_iters=null", "lr_warmup_iters=0"), rows=320).schedule.lr_horizon == 1000
    reading = read(launch, rows=32 * 10)
    schedule = reading.schedule
    assert (schedule.frozen_rollouts, schedule.rollouts, schedule.updates) == (10, 50, 160)
    assert schedule.critic is not None
    assert schedule.critic.updates == 200
    assert read(launch, rows=32).schedule.updates == 160
    short = read(launch.replace("max_num_steps=50", "max_num_steps=5"), rows=320).schedule
    assert (short.updates, short.lr_ticks) == (0, 0)
    # Made for 50 rollouts of 4 passes; the policy trains in 40 of them.
    assert (schedule.lr_ticks, schedule.lr_horizon) == (160, 200)
    assert [note.kind for note in reading.notes] == ["unit", "ignores"]
    assert reading.facts["lr_constant"] is False


@pytest.mark.parametrize(
    ("rows", "epochs", "steps", "rollouts", "dropped"),
    [
        (6400, 1, 1_000_000, 200, 0),
        (6399, 1, 1_000_000, 199, 31),
        (6399, 3, 1_000_000, 597, 31),
        (6399, 3, 500, 500, 31),
    ],
)
def test_rows_that_do_not_fill_a_rollout_are_dropped(
    rows: int, epochs: int, steps: int, rollouts: int, dropped: int
) -> None:
    schedule = read(GRPO + f"grpo.max_num_epochs={epochs} grpo.max_num_steps={steps}", rows=rows).schedule
    assert (schedule.rollouts, schedule.rows_dropped_per_epoch) == (rollouts, dropped)
    assert schedule.rows_reshuffled


def test_limit_that_stands_for_none() -> None:
    assert read(GRPO).schedule.rollouts is None
    assert read(GRPO + "grpo.max_num_steps=1000000").schedule.rollouts is None
    reading = read(GRPO + "grpo.max_num_steps=50")
    assert reading.schedule.rollouts == 50
    assert [note.kind for note in reading.notes] == ["unit", "assumes"]


def test_ratio_one_by_construction() -> None:
    schedule = read(GRPO + "loss_fn.force_on_policy_ratio=true").schedule
    assert schedule.old_logprob_source == "detach"
    assert (schedule.lags, schedule.ratio_one_updates) == ((0,), (1,))
    ppo = read(PPO + "loss_fn.force_on_policy_ratio=true").schedule
    assert ppo.ratio_one_updates == (1, 2, 3, 4)
    with pytest.raises(PlanError, match="force_on_policy_ratio requires") as caught:
        read(GRPO + "loss_fn.force_on_policy_ratio=true policy.train_global_batch_size=256")
    assert caught.value.fix == "policy.train_global_batch_size = 512"


def test_processes_are_gpus_over_copies() -> None:
    tensor = "policy.dtensor_cfg.tensor_parallel_size=2 "
    assert read(GRPO + tensor).schedule.world_size == 4
    # The other backend's sizes do not count.
    assert read(GRPO + "policy.megatron_cfg.tensor_model_parallel_size=2").schedule.world_size == 8
    megatron = "policy.megatron_cfg.enabled=true policy.megatron_cfg.pipeline_model_parallel_size=4 "
    assert read(GRPO + tensor + megatron).schedule.world_size == 2
    apart = "policy.generation.colocated.enabled=false policy.generation.colocated.resources."
    assert read(GRPO + apart + "gpus_per_node=4").schedule.world_size == 4
    nodes = "cluster.num_nodes=3 policy.train_micro_batch_size=1 "
    assert (
        read(
            GRPO + nodes + apart + "num_nodes=1 policy.generation.colocated.resources.gpus_per_node=8"
        ).schedule.world_size
        == 16
    )
    with pytest.raises(PlanError, match="but got inference_gpus_per_node=None"):
        read(GRPO + nodes + apart + "num_nodes=1")
    with pytest.raises(SettingError, match="none is left"):
        read(GRPO + apart + "gpus_per_node=8")


def test_asynchronous_grpo() -> None:
    reading = read(ASYNC + "grpo.async_grpo.max_trajectory_age_steps=3 grpo.max_num_steps=50", rows=1600)
    assert (reading.schedule.max_age, reading.schedule.rollouts) == (3, 50)
    assert read(GRPO).schedule.max_age == 0
    # Epochs are ignored: the collector goes once over the rows.
    with pytest.raises(PlanError, match="dataloader exhausted at training_step=49") as caught:
        read(ASYNC + "grpo.max_num_epochs=10 grpo.max_num_steps=50", rows=1599)
    assert caught.value.fix == "grpo.max_num_steps = 49, or at least 1600 rows"
    assert read(ASYNC).schedule.rollouts is None


def test_asynchronous_ppo_goes_round() -> None:
    launch = PPO + (
        "ppo.async_ppo.enabled=true ppo.max_num_steps=50 policy.generation.colocated.enabled=false "
        "policy.generation.colocated.resources.gpus_per_node=4"
    )
    schedule = read(launch, rows=100).schedule
    assert (schedule.max_age, schedule.rollouts, schedule.rows_dropped_per_epoch) == (1, 50, 0)
    assert schedule.data_epochs == 16


def test_dynamic_sampling_leaves_totals_open() -> None:
    reading = read(GRPO + "grpo.use_dynamic_sampling=true grpo.batch_multiplier=1.5", rows=1000)
    schedule = reading.schedule
    assert schedule.rollouts is None
    assert "at most 20 rollouts" in schedule.not_evaluated["rollouts"]
    assert schedule.rows_dropped_per_epoch == 1000 % 48
    assert schedule.rows_bound == "data_dependent"
    assert schedule.updates_per_rollout == 1
    assert [note.kind for note in reading.notes] == ["unit", "drops"]


def test_several_loaders_ignore_epochs() -> None:
    reading = read(GRPO + "data.use_multiple_dataloader=true grpo.max_num_steps=70", rows=320)
    assert reading.schedule.rollouts == 70
    assert [note.kind for note in reading.notes] == ["unit", "ignores"]


@pytest.mark.parametrize(
    ("settings", "message", "fix"),
    [
        ("policy.train_global_batch_size=384", "Total batch size (512) is not a multiple of batch_size (384)", "256 or 512"),
        ("policy.train_global_batch_size=1024", "Total batch size (512) is not a multiple of batch_size (1024)", "512"),
        ("policy.train_global_batch_size=4", "Batch size (4) is not a multiple of shards (8)", "8"),
        (
            "grpo.num_prompts_per_step=33 grpo.num_generations_per_prompt=3",
            "Batch size (99) is not a multiple of shards (8)",
            "96 or 104",
        ),
        ("policy.train_micro_batch_size=6", "Data dict size (64) is not a multiple of the provided microbatch size (6)", "4 or 8"),
        ("policy.dtensor_cfg.tensor_parallel_size=3", "World size (8) must be divisible by PP * CP * TP (3)", "6 or 9"),
        ("grpo.batch_multiplier=2", "batch_multiplier>1 can only be used if use_dynamic_sampling=True", "batch_multiplier = 1"),
    ],
)  # fmt: skip
def test_refusals(settings: str, message: str, fix: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(GRPO + settings)
    assert message in caught.value.message
    assert fix in caught.value.fix
    assert [finding.code for finding in planned(GRPO + settings).findings] == ["RLS110"]


def test_refusals_of_asynchronous_runs() -> None:
    with pytest.raises(PlanError, match="use_dynamic_sampling is not supported with async GRPO"):
        read(ASYNC + "grpo.use_dynamic_sampling=true")
    with pytest.raises(PlanError, match="Importance sampling correction must be enabled"):
        read(ASYNC + "loss_fn.use_importance_sampling_correction=false")


def test_the_critic_is_checked_as_well() -> None:
    with pytest.raises(PlanError, match=r"Total batch size \(512\) is not a multiple of batch_size \(200\)") as caught:
        read(PPO + "value.train_global_batch_size=200")
    assert caught.value.fix == "value.train_global_batch_size = 128 or 256"


def test_another_trainer_is_not_taken_for_this_one() -> None:
    with pytest.raises(LaunchError, match="another trainer"):
        read("python examples/run_grpo_single_controller.py")


def _again(schedule: Schedule, **options: Any) -> Schedule:
    command = SYSTEM.write(schedule).arguments
    return read(shlex.join(command), **options).schedule


@pytest.mark.parametrize(
    "launch",
    [
        GRPO + "grpo.max_num_epochs=3",
        GRPO + "grpo.max_num_epochs=7 grpo.max_num_steps=100 policy.train_global_batch_size=64",
        GRPO + "loss_fn.force_on_policy_ratio=true",
        PPO + "ppo.max_num_steps=33 ppo.policy_training_start_step=3 value.train_global_batch_size=64",
    ],
)
@pytest.mark.parametrize("rows", [999, None])
def test_what_is_written_reads_the_same(launch: str, rows: int | None) -> None:
    schedule = read(launch, rows=rows).schedule
    assert SYSTEM.write(schedule).lost == ()
    again = _again(schedule, rows=rows)
    for name in (
        "world_size", "prompts_per_rollout", "samples_per_prompt", "samples_per_rollout", "reuse_epochs", "minibatches",
        "samples_per_microbatch", "updates_per_rollout", "frozen_rollouts", "rollouts", "updates", "lags", "lr_ticks",
    ):  # fmt: skip
        assert getattr(again, name) == getattr(schedule, name), name
    assert (again.critic is None) == (schedule.critic is None)
    if schedule.critic is not None:
        assert again.critic is not None
        assert again.critic.minibatches == schedule.critic.minibatches


def test_what_grpo_cannot_say() -> None:
    several_passes = read(
        "uv run -m skyrl.train.entrypoints.main_base trainer.update_epochs_per_batch=2 trainer.placement.policy_num_gpus_per_node=4"
    ).schedule
    with pytest.raises(LaunchError, match="reuse_epochs = 2 cannot be kept"):
        SYSTEM.write(several_passes)


def test_what_does_not_fit_whole_rollouts() -> None:
    skyrl = "uv run -m skyrl.train.entrypoints.main_base trainer.placement.policy_num_gpus_per_node=4"
    with pytest.raises(LaunchError, match="rollouts = 0 cannot be kept"):
        SYSTEM.write(read(skyrl, rows=100).schedule)
    trl = "trl grpo --gradient_accumulation_steps 2 --steps_per_generation 16 --num_generations 4 --max_steps 2"
    assert "updates: 2, here 8 for whole rollouts" in SYSTEM.write(read(trl).schedule).lost


BASE = """
grpo: {num_prompts_per_step: 8, num_generations_per_prompt: 4, max_num_steps: 50, val_period: -1, async_grpo: null}
loss_fn: {reference_policy_kl_penalty: 0.01}
checkpointing: {enabled: false, save_period: 10}
policy:
  train_global_batch_size: "${mul:${grpo.num_prompts_per_step},${grpo.num_generations_per_prompt}}"
  train_micro_batch_size: 1
  logprob_batch_size: 1
  sequence_packing: {enabled: false}
  dynamic_batching: {enabled: false}
  dtensor_cfg: {enabled: true, tensor_parallel_size: 1, context_parallel_size: 1}
  generation: {colocated: {enabled: true, resources: {gpus_per_node: null, num_nodes: null}}}
data: {shuffle: true, default: {env_name: math}}
env: {reward_model: {resources: {gpus_per_node: 1, num_nodes: 1}}}
cluster: {gpus_per_node: 4, num_nodes: 1}
"""


def child(folder: Path, text: str) -> Path:
    (folder / "base.yaml").write_text(BASE)
    path = folder / "child.yaml"
    path.write_text(f"defaults: base.yaml\n{text}")
    return path


def test_a_configuration_is_planned_over_its_parent(tmp_path: Path) -> None:
    pytest.importorskip("omegaconf")
    schedule = read(child(tmp_path, "grpo: {num_prompts_per_step: 16}\n")).schedule
    assert (schedule.prompts_per_rollout, schedule.samples_per_update, schedule.rollouts) == (16, 64, 50)
    command = f"python examples/run_grpo.py --config {tmp_path}/child.yaml grpo.num_generations_per_prompt=2"
    assert read(command).schedule.samples_per_update == 32


def test_a_parent_that_is_not_here_is_not_guessed(tmp_path: Path) -> None:
    path = child(tmp_path, "grpo: {num_prompts_per_step: 16}\n")
    (tmp_path / "base.yaml").unlink()
    with pytest.raises(LaunchError, match=r"child\.yaml:1:1: base\.yaml is not here"):
        planned(path)
    with pytest.raises(LaunchError, match=r"mine\.yaml is not here"):
        planned("python examples/run_grpo.py --config mine.yaml grpo.num_prompts_per_step=16")


def test_a_configuration_that_nemo_rl_ships_is_known() -> None:
    plan = planned("python examples/run_grpo.py --config examples/configs/vlm_grpo_3B.yaml")
    assert plan.schedule is not None
    assert (plan.schedule.prompts_per_rollout, plan.schedule.world_size) == (8, 2)
    assert any("vlm_grpo_3B.yaml is the one of NeMo-RL 7ea279a" in note.text for note in plan.notes)
    own = planned("python examples/run_vlm_grpo.py").schedule
    assert own == plan.schedule


@pytest.mark.parametrize(
    ("text", "processes"),
    [
        ("data: {default: {env_name: reward_model}}\n", 3),
        ("data: {train: [{env_name: math}, {env_name: reward_model}]}\n", 3),
        ("data: {default: {env_name: reward_model}}\ncluster: {num_nodes: 3}\n", 8),
        (
            "policy: {generation: {colocated: {enabled: false, resources: {gpus_per_node: 2}}}}\n"
            "data: {default: {env_name: reward_model}}\ncluster: {num_nodes: 1}\n",
            1,
        ),
        (
            "policy: {generation: {colocated: {enabled: false, resources: {gpus_per_node: 4, num_nodes: 1}}}}\n"
            "cluster: {num_nodes: 3}\n",
            8,
        ),
        (
            "on_policy_distillation:\n  enabled: true\n  teacher_model_by_agent_name: {a: m, b: m, c: n}\n"
            "  non_colocated_teachers: {enabled: true, default_teacher_cfg: {num_nodes: 1}, teacher_overrides: {c: {num_nodes: 2}}}\n"
            "cluster: {num_nodes: 5}\n",
            8,
        ),
    ],
    ids=[
        "reward model",
        "of one data set",
        "on a node of its own",
        "beside generation",
        "generation apart",
        "teachers",
    ],
)
def test_what_else_takes_gpus(text: str, processes: int, tmp_path: Path) -> None:
    pytest.importorskip("omegaconf")
    more = f"{text}grpo: {{num_generations_per_prompt: 3}}\n" if processes == 3 else text
    assert read(child(tmp_path, more)).schedule.world_size == processes


def test_log_probs_in_other_micro_batches_than_training(tmp_path: Path) -> None:
    pytest.importorskip("omegaconf")
    path = child(tmp_path, "policy: {logprob_batch_size: 2, dtensor_cfg: {tensor_parallel_size: 4}}\n")
    assert any("NRL_IGNORE_TP_ACCURACY_CHECK is set" in note.text for note in planned(path).notes)
    command = f"python examples/run_grpo.py --config {path}"
    with pytest.raises(PlanError, match="batch-variant accuracy"):
        read(command)
    assert read(f"NRL_IGNORE_TP_ACCURACY_CHECK=1 {command}").schedule.world_size == 1


def test_the_single_controller_is_another_trainer(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="async_rl"):
        planned(child(tmp_path, "async_rl: {sampler: fifo}\n"))


def test_a_module_of_its_package_is_no_program() -> None:
    # nemo_rl/algorithms/grpo.py has functions alone: Python runs it to its end, and nothing trains.
    command = "uv run python -m nemo_rl.algorithms.grpo --config examples/configs/grpo_math_1B.yaml"
    with pytest.raises(
        LaunchError, match=r"nemo_rl\.algorithms\.grpo is a module of NeMo-RL, whose programs are scripts"
    ):
        planned(f"{command} grpo.num_prompts_per_step=8")
