"""ROLL: golden cases of RLVR and agentic runs, the critic's single pass, adjusted batches, refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError, SettingError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.reading import Reading

RLVR = """
max_steps: 500
save_steps: 100
rollout_batch_size: 64
num_return_sequences_in_group: 8
ppo_epochs: 1
adv_estimator: "reinforce"
actor_train:
  training_args: {per_device_train_batch_size: 1, gradient_accumulation_steps: 32, warmup_steps: 20}
  strategy_args:
    strategy_name: megatron_train
    strategy_config: {tensor_model_parallel_size: 1, pipeline_model_parallel_size: 1}
  device_mapping: list(range(0,16))
"""

AGENTIC = """
max_steps: 100
rollout_batch_size: 128
ppo_epochs: 1
adv_estimator: "grpo"
init_kl_coef: 0.0
actor_train:
  training_args: {per_device_train_batch_size: 2, gradient_accumulation_steps: 8}
  strategy_args: {strategy_name: megatron_train}
  device_mapping: list(range(0,8))
  infer_batch_size: 4
train_env_manager: {num_env_groups: 8, group_size: 16}
"""


def launch(folder: Path, config: str, script: str = "start_rlvr_pipeline.py", **options: int) -> Reading:
    (folder / "config.yaml").write_text(config)
    return read(f"python examples/{script} --config_path {folder} --config_name config", **options)


def agentic(folder: Path, config: str) -> Reading:
    return launch(folder, config, "start_agentic_pipeline.py")


def with_settings(config: str, **settings: object) -> str:
    """A configuration with top settings replaced or added."""
    kept = [line for line in config.splitlines() if line.partition(":")[0] not in settings]
    return "\n".join([*kept, *(f"{name}: {value}" for name, value in settings.items())])


def test_qwen_rlvr_example(tmp_path: Path) -> None:
    """golden.json: ROLL qwen2.5-7B-rlvr."""
    reading = launch(tmp_path, RLVR)
    schedule = reading.schedule
    assert (schedule.samples_per_rollout, schedule.world_size) == (512, 16)
    assert (schedule.samples_per_update, schedule.updates_per_rollout) == (512, 1)
    assert schedule.microbatches_per_update == 32
    assert (schedule.rollouts, schedule.updates, schedule.lr_ticks, schedule.lr_horizon) == (500, 500, 500, 500)
    assert schedule.reference_source == "at_rollout"
    assert (schedule.old_logprob_source, schedule.ratio_one_updates) == ("recompute", (1,))
    assert (reading.facts["lr_warmup"], reading.facts["save_every"]) == (20, 100)


def test_the_configuration_alone_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "rlvr.yaml"
    path.write_text(RLVR)
    assert read(path).schedule.updates == 500
    path.write_text(AGENTIC)
    assert read(path).schedule.samples_per_prompt == 16


def test_validation_that_is_turned_off_is_no_refusal(tmp_path: Path) -> None:
    assert agentic(tmp_path, with_settings(AGENTIC, eval_steps=-1)).facts.get("eval_every") is None
    assert agentic(tmp_path, with_settings(AGENTIC, eval_steps=20)).facts["eval_every"] == 20


def test_the_critic_passes_once(tmp_path: Path) -> None:
    """golden.json: ROLL critic: 128 samples a process, 32 an update, 3 passes."""
    config = with_settings(RLVR, rollout_batch_size=256, adv_estimator="gae", ppo_epochs=3, critic_warmup=5) + (
        "\ncritic:\n  training_args: {per_device_train_batch_size: 4, gradient_accumulation_steps: 8}\n"
        "  strategy_args: {strategy_name: megatron_train}\n  device_mapping: list(range(0,16))\n"
    )
    reading = launch(tmp_path, config)
    schedule = reading.schedule
    assert schedule.samples_per_rollout // schedule.world_size == 128
    assert schedule.updates_per_rollout == 12
    assert schedule.critic is not None
    assert schedule.critic.updates_per_rollout == 4
    assert (schedule.frozen_rollouts, schedule.updates) == (5, 495 * 12)
    assert (schedule.critic.updates, schedule.critic.lr_horizon) == (2000, 2000)
    # The policy's schedule is made for the rollouts that train only the critic as well.
    assert (schedule.lr_ticks, schedule.lr_horizon) == (495 * 12, 500 * 12)
    assert [note.kind for note in reading.notes] == ["unit", "ignores"]
    shown = {formula.quantity: (formula.text, formula.inputs) for formula in reading.formulas}
    text, inputs = shown["critic.samples_per_update"]
    assert text.endswith("critic.training_args.gradient_accumulation_steps * critic.world_size")
    assert inputs["critic.world_size"] == 16


def test_warm_up_of_a_critic_that_is_not_there(tmp_path: Path) -> None:
    reading = launch(tmp_path, with_settings(RLVR, critic_warmup=3))
    assert reading.schedule.updates == 497
    assert [note.kind for note in reading.notes] == ["unit", "drops"]


@pytest.mark.parametrize(
    ("epochs", "accumulation", "disabled", "source", "lags", "ones"),
    [
        (1, 32, "false", "detach", (0,), (1,)),
        (1, 16, "false", "recompute", (0, 1), (1,)),
        (1, 16, "true", "detach", (0,), (1, 2)),
        (2, 32, "false", "recompute", (0, 1), (1,)),
        (2, 16, "true", "recompute", (0, 1, 2, 3), (1, 2)),
    ],
)
def test_old_log_probs_of_the_first_visit(
    tmp_path: Path,
    epochs: int,
    accumulation: int,
    disabled: str,
    source: str,
    lags: tuple[int, ...],
    ones: tuple[int, ...],
) -> None:
    config = RLVR.replace("gradient_accumulation_steps: 32", f"gradient_accumulation_steps: {accumulation}")
    settings = {"init_kl_coef": 0, "ppo_epochs": epochs, "force_disable_old_logprobs_recompute": disabled}
    schedule = launch(tmp_path, with_settings(config, **settings)).schedule
    assert (schedule.old_logprob_source, schedule.lags, schedule.ratio_one_updates) == (source, lags, ones)
    assert schedule.reference_source == "none"


def test_a_kl_term_needs_old_log_probs(tmp_path: Path) -> None:
    # init_kl_coef is 0.2 unless it is set, so the forward that could be saved is made.
    assert launch(tmp_path, RLVR).schedule.old_logprob_source == "recompute"
    assert launch(tmp_path, with_settings(RLVR, init_kl_coef=0)).schedule.old_logprob_source == "detach"


@pytest.mark.parametrize(("ratio", "age"), [("0", 0), ("1", 1), ("1.5", 2), ("2", 2)])
def test_ages(tmp_path: Path, ratio: str, age: int) -> None:
    schedule = launch(tmp_path, with_settings(RLVR, async_generation_ratio=ratio), rows=1000).schedule
    assert (schedule.max_age, schedule.correction) == (age, "none" if age else "")
    assert (schedule.rows_bound, schedule.data_epochs) == (("data_dependent", None) if age else ("exact", 32))


def test_rows_go_round(tmp_path: Path) -> None:
    schedule = launch(tmp_path, RLVR, rows=999).schedule
    assert (schedule.rows_dropped_per_epoch, schedule.rollouts) == (0, 500)
    filtered = RLVR + "\nrewards:\n  math_rule:\n    query_filter_config: {type: mean_filter}\n"
    assert launch(tmp_path, filtered, rows=999).schedule.rows_bound == "data_dependent"


@pytest.mark.parametrize(
    ("mapping", "processes"),
    [
        ("list(range(0,8))", 8),
        ("'list(range(0,4)) + list(range(8,12))'", 8),
        ("[0, 1, 2, 3]", 4),
        ("'[0,1] + [4,5]'", 4),
    ],
)
def test_device_mappings(tmp_path: Path, mapping: str, processes: int) -> None:
    assert launch(tmp_path, RLVR.replace("list(range(0,16))", mapping)).schedule.world_size == processes


def test_copies_of_the_model(tmp_path: Path) -> None:
    megatron = RLVR.replace("tensor_model_parallel_size: 1", "tensor_model_parallel_size: 4")
    assert launch(tmp_path, megatron).schedule.world_size == 4
    fsdp = RLVR.replace("megatron_train", "fsdp2_train").replace(
        "  device_mapping", "  model_args: {ulysses_size: 2}\n  device_mapping"
    )
    assert launch(tmp_path, fsdp).schedule.world_size == 8
    assert launch(tmp_path, RLVR, world_size=4).schedule.world_size == 4


def test_workers_of_several_devices(tmp_path: Path) -> None:
    several = RLVR.replace("  device_mapping", "  num_gpus_per_worker: 4\n  device_mapping")
    assert launch(tmp_path, several).schedule.world_size == 4
    with pytest.raises(PlanError, match="must be divisible by num_gpus_per_worker=3") as caught:
        launch(tmp_path, several.replace("worker: 4", "worker: 3"))
    assert caught.value.fix == "actor_train.device_mapping of 15 or 18 devices"


def test_devices_that_are_no_list(tmp_path: Path) -> None:
    for mapping in ("__import__('os')", "8", "list(range(x))", "list(range(1,2,3,4))", "list(range(0,10**30))"):
        with pytest.raises(SettingError, match="is no list of devices"):
            launch(tmp_path, RLVR.replace("list(range(0,16))", mapping))
    with pytest.raises(SettingError, match="device_mapping is missing"):
        launch(tmp_path, RLVR.replace("device_mapping", "device_map"))


@pytest.mark.parametrize(
    ("old", "new", "message", "fix"),
    [
        (
            "rollout_batch_size: 64",
            "rollout_batch_size: 60",
            "Rollout Batch Size (60) must be divisible by data parallel size (16)",
            "48 or 64",
        ),
        ("accumulation_steps: 32", "accumulation_steps: 64", "32 % 64 != 0", "32"),
        ("accumulation_steps: 32", "accumulation_steps: 24", "32 % 24 != 0", "16 or 32"),
        (
            "tensor_model_parallel_size: 1",
            "tensor_model_parallel_size: 3",
            "Total GPUs (16) must be divisible by model parallel size (3",
            "15 or 18",
        ),
        ("ppo_epochs: 1", "async_generation_ratio: 0.5", "async_generation_ratio must be >= 1.0", "0 or 1"),
    ],
)
def test_refusals(tmp_path: Path, old: str, new: str, message: str, fix: str) -> None:
    config = RLVR.replace(old, new)
    with pytest.raises(PlanError) as caught:
        launch(tmp_path, config)
    assert message in caught.value.message
    assert fix in caught.value.fix
    assert [finding.code for finding in planned(tmp_path / "config.yaml").findings] == ["RLS110"]


def test_other_strategies_do_not_check_prompts(tmp_path: Path) -> None:
    config = RLVR.replace("rollout_batch_size: 64", "rollout_batch_size: 60").replace("megatron_train", "fsdp2_train")
    with pytest.raises(PlanError, match="30 % 32 != 0"):
        launch(tmp_path, config)
    assert launch(tmp_path, config.replace("steps: 32", "steps: 10")).schedule.updates_per_rollout == 3


def test_agentic_trajectories(tmp_path: Path) -> None:
    reading = agentic(tmp_path, AGENTIC)
    schedule = reading.schedule
    assert (schedule.prompts_per_rollout, schedule.samples_per_prompt, schedule.samples_per_rollout) == (8, 16, 128)
    assert (schedule.updates_per_rollout, schedule.samples_added_per_rollout) == (1, 0)
    assert schedule.rows is None
    assert [note.kind for note in reading.notes] == ["unit"]


@pytest.mark.parametrize(
    ("mode", "added", "dropped", "updates"),
    [("copy", 96, 0, 2), ("delete", 0, 32, 1), ("auto", 0, 32, 1), ("random_sample", 0, 32, 1)],
)
def test_agentic_batches_are_adjusted(tmp_path: Path, mode: str, added: int, dropped: int, updates: int) -> None:
    reading = agentic(tmp_path, with_settings(AGENTIC, rollout_batch_size=160, batch_adjust_mode=mode))
    schedule = reading.schedule
    assert (schedule.samples_added_per_rollout, schedule.samples_dropped_per_rollout) == (added, dropped)
    assert (schedule.updates_per_rollout, schedule.minibatches) == (updates, (128,) * updates)
    assert [note.kind for note in reading.notes] == ["unit", "pads" if added else "drops"]
    # The schedule of the rate is made before the batch is adjusted.
    assert (schedule.lr_ticks, schedule.lr_horizon) == (100 * updates, 100 * 160 // 128)


@pytest.mark.parametrize(("mode", "adjusted"), [("copy", 384), ("delete", 256), ("random_sample", 128)])
def test_agentic_batches_of_several_updates(tmp_path: Path, mode: str, adjusted: int) -> None:
    config = with_settings(AGENTIC, rollout_batch_size=272, batch_adjust_mode=mode).replace(
        "group_size: 16", "group_size: 17"
    )
    config = config.replace("strategy_name: megatron_train", "strategy_name: fsdp2_train")
    assert sum(agentic(tmp_path, config).schedule.minibatches) == adjusted


def test_a_small_agentic_batch_is_always_filled_up(tmp_path: Path) -> None:
    for mode in ("copy", "delete", "auto", "random_sample"):
        schedule = agentic(tmp_path, with_settings(AGENTIC, rollout_batch_size=48, batch_adjust_mode=mode)).schedule
        assert schedule.samples_added_per_rollout == 80


def test_forwards_without_gradients_count_as_well(tmp_path: Path) -> None:
    schedule = agentic(tmp_path, AGENTIC.replace("infer_batch_size: 4", "infer_batch_size: 32")).schedule
    assert (schedule.samples_added_per_rollout, schedule.updates_per_rollout) == (128, 2)


def test_turns_that_are_samples(tmp_path: Path) -> None:
    config = AGENTIC + "\ncustom_envs:\n  Sokoban:\n    env_manager_cls: roll.pipeline.agentic.StepEnvManager\n"
    reading = agentic(tmp_path, config)
    assert reading.schedule.updates_bound == "data_dependent"
    assert (reading.schedule.updates, reading.schedule.updates_from) == (None, reading.schedule.updates_per_rollout)
    assert [note.kind for note in reading.notes] == ["unit", "grows"]


def test_agentic_groups_are_whole(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"rollout_batch_size \(120\) must be a multiple") as caught:
        agentic(tmp_path, with_settings(AGENTIC, rollout_batch_size=120))
    assert caught.value.fix == "rollout_batch_size = 112 or 128"


WEIGHED = "\ntrain_infer_correction:\n  is_weight: {enabled: true}\nactor_infer:\n  generating_args: {top_p: 0.9}\n"


@pytest.mark.parametrize(
    ("more", "correction", "inert", "biased"),
    [
        ("", "none", "", ""),
        (WEIGHED, "token importance weights, at most 1.2", "", "top_p = 0.9"),
        (
            WEIGHED.replace("enabled: true", "enabled: true, upper_bound: null"),
            "token importance weights, without a bound",
            "",
            "0.9",
        ),
        (
            WEIGHED.replace("top_p: 0.9", "top_p: 1, logprobs: null"),
            "token importance weights, at most 1.2",
            "all 1",
            "",
        ),
        (
            "\ntrain_infer_correction:\n  filters:\n    - {enabled: true, agg_type: token}\n",
            "train_infer_correction.filters",
            "",
            "top_p = 0.7",  # the default
        ),
    ],
)
def test_the_correction_for_old_samples(tmp_path: Path, more: str, correction: str, inert: str, biased: str) -> None:
    config = with_settings(RLVR.replace("\nactor_infer:", "\nunused:"), async_generation_ratio=1) + more
    schedule = launch(tmp_path, config).schedule
    assert schedule.correction == correction
    assert inert in schedule.correction_inert
    assert bool(inert) == bool(schedule.correction_inert)
    assert biased in schedule.correction_biased


@pytest.mark.parametrize(
    ("text", "program", "said"),
    [
        ("chosen_key: chosen\nactor_train:\n  training_args: {per_device_train_batch_size: 1}\n", "", "DPO"),
        ("rollout_batch_size: 16\nnum_return_sequences_in_group: 4\nstudent_train:\n  training_args: "
         "{per_device_train_batch_size: 1}\n", "", "on-policy distillation"),
        ("num_return_sequences_in_group: 4\n", "start_sft_pipeline.py", "start_sft_pipeline.py"),
    ],
)  # fmt: skip
def test_other_pipelines_are_not_read(tmp_path: Path, text: str, program: str, said: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    command = ["python", program, "--config_path", str(tmp_path), "--config_name", "c"] if program else []
    words = command or [str(tmp_path / "c.yaml")]
    with pytest.raises(LaunchError, match=f"{said}.* is another pipeline"):
        plan_launch(words, Options(framework="roll"))
