"""Forks of verl: recognised by what only they have, and planned by their own loops. Sizes are those of the forks' own scripts."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.schedule import Schedule

MAIN = "python3 -m verl.trainer.main_ppo "
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def plan(sizes: str, rows: int | None = None) -> Plan:
    return plan_launch(shlex.split(MAIN + sizes), Options(rows=rows))


def schedule_of(sizes: str, rows: int | None = None) -> Schedule:
    schedule = plan(sizes, rows).schedule
    assert schedule is not None
    return schedule


SEARCH_R1 = (
    f"data.train_batch_size=512 {ACTOR}.ppo_mini_batch_size=256 {ACTOR}.ppo_micro_batch_size=64 trainer.n_gpus_per_node=8 "
    "trainer.total_epochs=15 trainer.total_training_steps=1005 trainer.default_hdfs_dir=null "
)
DEEPSCALER = (
    f"algorithm.adv_estimator=grpo data.train_batch_size=128 {ACTOR}.ppo_mini_batch_size=64 {ACTOR}.use_dynamic_bsz=True "
    f"{ROLLOUT}.n=8 {ROLLOUT}.n_val=8 trainer.project_name=deepscaler trainer.total_epochs=30 "
)
SKYWORK = (
    f"algorithm.adv_estimator=grpo data.train_batch_size=256 {ACTOR}.ppo_mini_batch_size=256 {ACTOR}.use_dynamic_bsz=True "
    f"{ACTOR}.adaptive_entropy.enabled=True {ROLLOUT}.n=16 trainer.nnodes=4 trainer.rejection_sample=True "
    "trainer.rejection_sample_multiplier=1 trainer.total_epochs=30 "
)
PRIME = (
    f"data.train_batch_size=256 {ACTOR}.ppo_mini_batch_size=256 {ACTOR}.ppo_micro_batch_size=8 data.n_samples=4 "
    "algorithm.adv_estimator=rloo trainer.total_epochs=1 "
)
VERL_AGENT = (
    f"algorithm.adv_estimator=gigpo data.train_batch_size=16 {ACTOR}.ppo_mini_batch_size=256 {ACTOR}.ppo_micro_batch_size_per_gpu=32 "
    "env.env_name=alfworld/AlfredTWEnv env.rollout.n=8 trainer.n_gpus_per_node=2 trainer.total_epochs=10 "
)
LOGIC_RL = (
    f"algorithm.adv_estimator=grpo data.train_batch_size=64 {ACTOR}.ppo_mini_batch_size=32 {ACTOR}.ppo_micro_batch_size=16 "
    f"{ROLLOUT}.n=16 trainer.n_gpus_per_node=4 trainer.project_name=GRPO_logic_KK trainer.total_epochs=5 trainer.default_hdfs_dir=null "
)


TORL = (
    f"algorithm.adv_estimator=grpo data.train_batch_size=128 {ACTOR}.ppo_mini_batch_size=1024 {ACTOR}.use_dynamic_bsz=True "
    f"{ROLLOUT}.n=16 {ROLLOUT}.num_llm_calls_available=1 trainer.n_gpus_per_node=8 trainer.total_epochs=300 "
)


@pytest.mark.parametrize(
    ("sizes", "rows", "title", "expected"),
    [
        # prompts, samples of a prompt, samples of an update, updates of a rollout, rollouts
        (f"{SEARCH_R1} algorithm.adv_estimator=grpo {ROLLOUT}.n_agent=5", 169_615, "Search-R1", (512, 5, 256, 10, 1004)),
        (f"{SEARCH_R1} algorithm.adv_estimator=gae {ROLLOUT}.n_agent=1", 169_615, "Search-R1", (512, 1, 256, 2, 1004)),
        (LOGIC_RL, 4500, "Logic-RL", (64, 16, 512, 2, 70 * 5 - 1)),
        (DEEPSCALER, 40_315, "DeepScaleR", (128, 8, 512, 2, 314 * 30 - 1)),
        (f"{DEEPSCALER} trainer.rejection_sample=True", 40_315, "DeepScaleR", (256, 8, 512, 4, 157 * 30 - 1)),
        (SKYWORK, 100_000, "Skywork-OR1", (256, 16, 4096, 1, 390 * 30 - 1)),
        (PRIME, 10_000, "PRIME", (256, 4, 256, 4, 39)),
        (VERL_AGENT, 16, "verl-agent", (16, 8, 128, 1, 10)),
        (TORL, 28_000, "ToRL", (128, 16, 2048, 1, 218 * 300 - 1)),
    ],
)  # fmt: skip
def test_the_numbers_of_a_forks_own_script(
    sizes: str, rows: int | None, title: str, expected: tuple[int, int, int, int, int]
) -> None:
    schedule = schedule_of(sizes, rows)
    assert schedule.framework == title
    assert (
        schedule.prompts_per_rollout,
        schedule.samples_per_prompt,
        schedule.samples_per_update,
        schedule.updates_per_rollout,
        schedule.rollouts,
    ) == expected


@pytest.mark.parametrize(
    "sizes", [f"{SEARCH_R1} {ROLLOUT}.n_agent=1", LOGIC_RL, DEEPSCALER, SKYWORK, PRIME, VERL_AGENT, TORL]
)
def test_an_evaluation_is_no_training(sizes: str) -> None:
    with pytest.raises(LaunchError, match="validates once and ends"):
        plan(f"{sizes} +trainer.val_only=true")
    with pytest.raises(LaunchError, match="validates at most and ends"):
        plan(f"{sizes} trainer.total_epochs=0")
    assert plan(f"{sizes} +trainer.val_only=true +trainer.val_before_train=False").schedule is not None


def test_search_r1s_critic_counts_samples_too() -> None:
    schedule = schedule_of(f"{SEARCH_R1} algorithm.adv_estimator=gae {ROLLOUT}.n_agent=1", 169_615)
    assert schedule.critic is not None
    assert schedule.critic.updates_per_rollout == 2


def test_groups_that_are_rejected_make_the_updates_a_bound() -> None:
    assert schedule_of(SKYWORK, 100_000).updates_bound == "upper"
    assert schedule_of(DEEPSCALER, 40_315).updates_bound == "exact"
    assert schedule_of(SKYWORK, 100_000).reference_source == "none"
    assert schedule_of(DEEPSCALER, 40_315).reference_source == "at_rollout"


def test_primes_filter_decides_how_long_the_run_is() -> None:
    schedule = schedule_of(f"{PRIME} data.filter_accuracy=True", 10_000)
    assert schedule.rollouts is None
    assert schedule.rows_bound == "data_dependent"
    assert schedule.lr_horizon == 39


def test_an_episode_of_verl_agent_has_a_row_for_each_turn() -> None:
    schedule = schedule_of(VERL_AGENT)
    assert schedule.updates is None
    assert "each turn of an episode" in schedule.not_evaluated["updates"]
    assert (schedule.updates_from, schedule.updates_to) == (schedule.updates_per_rollout, 0)
    limited = schedule_of(f"{VERL_AGENT} env.max_steps=15")
    assert (limited.updates_from, limited.updates_to) == (1, 8)  # 128 x 15 turns in mini-batches of 256
    refused = plan(f"{VERL_AGENT} {ROLLOUT}.n=8")
    assert refused.schedule is None
    assert "we keep n=1" in refused.findings[0].observed


PREPARES = "python3 -m examples.data_preprocess.prepare --mode text{more}\n"


@pytest.mark.parametrize(
    ("before", "rollouts"),
    [
        (PREPARES.format(more=" --train_data_size 32 --val_data_size 64"), 20),
        (PREPARES.format(more=""), 160),  # 256 rows where the script does not say
        (PREPARES.format(more=" --train_data_size $SIZE"), None),
        ("python3 write_tasks.py --train_size 200\n", None),
        ("", None),
    ],
)
def test_rows_that_verl_agents_own_program_writes_are_known(tmp_path: Path, before: str, rollouts: int | None) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"{before}{MAIN} data.train_files=$HOME/data/train.parquet {VERL_AGENT}\n")
    made = plan_launch([str(script)], Options())
    assert made.schedule is not None
    assert made.schedule.rollouts == rollouts
    assert any("as the script has a program write them" in note.text for note in made.notes) == (rollouts is not None)


@pytest.mark.parametrize("is_here", [True, False])
def test_a_program_that_the_checkout_lacks_writes_no_rows(tmp_path: Path, is_here: bool) -> None:
    (tmp_path / "examples/data_preprocess").mkdir(parents=True)
    if is_here:
        (tmp_path / "examples/data_preprocess/prepare.py").write_text("")
    (tmp_path / ".git").mkdir()
    script = tmp_path / "examples/run.sh"
    script.write_text(
        f"{PREPARES.format(more=' --train_data_size 16')}{MAIN} data.train_files=~/a.parquet {VERL_AGENT}\n"
    )
    schedule = plan_launch([str(script)], Options()).schedule
    assert schedule is not None
    assert schedule.rollouts == (10 if is_here else None)


def test_episodes_that_verl_agent_adds_until_there_are_enough_are_more() -> None:
    made = plan(f"{VERL_AGENT} env.max_steps=15 algorithm.filter_groups.enable=True")
    assert made.schedule is not None, made.findings
    # 120 episodes are too few, 128 more are added and none is cut: 248 x 15 turns in mini-batches of 256.
    assert (made.schedule.updates_from, made.schedule.updates_to) == (1, 15)
    assert any("a rollout has 128 to 248 episodes" in note.text for note in made.notes)


def test_several_agents_of_verl_agent_are_asked_for() -> None:
    with pytest.raises(LaunchError, match="agents with settings and updates of their own"):
        plan(f"{VERL_AGENT} agent.agent_ids=[a,b]")


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        (DEEPSCALER, "verl.trainer.main_ppo is taken for DeepScaleR's by trainer.project_name = deepscaler alone"),
        (LOGIC_RL, "verl.trainer.main_ppo is taken for Logic-RL's by trainer.project_name = GRPO_logic_KK alone"),
        (PRIME, ""),
    ],
)
def test_a_fork_that_only_the_name_of_the_project_tells_is_said_to_be_assumed(launch: str, said: str) -> None:
    alone = [note.text for note in plan(launch).notes if " alone; --framework" in note.text]
    assert [text.partition(";")[0] for text in alone] == ([said] if said else [])


def test_tinyzero_is_said_of_tinyzero_only() -> None:
    """`trainer.default_hdfs_dir` is a setting of every verl."""
    sizes = f"data.train_batch_size=256 {ACTOR}.ppo_mini_batch_size=128 {ACTOR}.ppo_micro_batch_size=8 trainer.default_hdfs_dir=null"
    assert plan(f"{sizes} trainer.project_name=TinyZero", 327_680).title == "TinyZero"
    assert plan(f"{sizes} trainer.project_name=verl_example", 327_680).title == "verl"


@pytest.mark.parametrize(
    ("command", "rows", "title", "updates", "prompts"),
    [
        # Video-R1#58: ceil(1700 / 8) x 8; VLM-R1#183: 2000 x 6 / (6 x 4) x 2; VLM-R1#133: 7000 x 8 / (8 x 2).
        (
            "torchrun --nproc_per_node=8 src/open_r1/grpo_custom_video_mc.py --per_device_train_batch_size 1 "
            "--gradient_accumulation_steps 1 --num_train_epochs 8 --num_generations 6",
            1700,
            "R1-V (TRL 0.14)",
            1704,
            8,
        ),
        (
            "torchrun --nproc_per_node=6 src/open_r1/grpo_jsonl.py --num_generations 6 --per_device_train_batch_size 1 "
            "--gradient_accumulation_steps 4 --num_train_epochs 2",
            2000,
            "VLM-R1 (TRL 0.16)",
            1000,
            1,
        ),
        (
            "torchrun --nproc_per_node=8 src/open_r1/grpo_text.py --num_generations 8 --per_device_train_batch_size 1 "
            "--gradient_accumulation_steps 2 --num_train_epochs 1",
            7000,
            "VLM-R1 (TRL 0.16)",
            3500,
            1,
        ),
        (
            "torchrun --nproc_per_node=8 src/open_r1/grpo.py --max_pixels 401408 --num_generations 8 "
            "--per_device_train_batch_size 1 --gradient_accumulation_steps 2 --num_train_epochs 2",
            8000,
            "R1-V (TRL 0.14)",
            1000,
            8,
        ),
    ],
)
def test_copies_of_trls_trainer(command: str, rows: int, title: str, updates: int, prompts: int) -> None:
    planned = plan_launch(shlex.split(command), Options(rows=rows))
    assert planned.title == title
    assert planned.schedule is not None
    assert (planned.schedule.updates, planned.schedule.prompts_per_rollout) == (updates, prompts)


def test_a_mini_batch_larger_than_a_rollout_of_torl_is_one_update_with_a_smaller_gradient() -> None:
    planned = plan(TORL, 28_000)
    assert any("mean over 16384, 8.0 times smaller" in note.text for note in planned.notes)
    assert all(finding.severity == "info" for finding in planned.findings)


def test_verl_tool_is_planned_by_the_formulas_of_verls_release() -> None:
    """Sizes of its examples/train/search_r1/train_3b.sh."""
    command = (
        f"python3 -m verl_tool.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=512 {ACTOR}.ppo_mini_batch_size=64 "
        f"{ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_micro_batch_size_per_gpu=1 {ROLLOUT}.n=16 trainer.n_gpus_per_node=4 "
        "actor_rollout_ref.agent.max_turns=4 +actor_rollout_ref.agent.retokenization=True trainer.total_epochs=15"
    )
    planned = plan_launch(shlex.split(command), Options(rows=20_000))
    assert (planned.framework, planned.findings[0].severity) == ("verl_tool", "info")
    assert planned.schedule is not None
    assert (planned.schedule.framework, planned.schedule.version) == ("verl-tool on verl", "0.6.1")
    assert (planned.schedule.samples_per_update, planned.schedule.updates_per_rollout, planned.schedule.rollouts) == (
        1024,
        8,
        585,
    )
    assert not any("no release" in note.text for note in planned.notes)


@pytest.mark.parametrize(
    ("role", "given"), [("actor_rollout_ref.actor", ""), ("critic", f"{ACTOR}.ppo_micro_batch_size_per_gpu=4")]
)
def test_a_micro_batch_that_is_not_given_is_asked_for(role: str, given: str) -> None:
    """As verl 0.2 asks for it; the plan that the sizes mean is there all the same."""
    planned = plan(
        f"data.train_batch_size=128 {ACTOR}.ppo_mini_batch_size=64 {ROLLOUT}.num_llm_calls_available=1 {given}", 10_000
    )
    assert planned.title == "ToRL"
    assert f"[{role}] Please set at least one of '{role}.micro_batch_size'" in planned.findings[0].observed
    assert planned.meant is not None
    assert planned.meant.updates_per_rollout == 2


def test_verls_recipe_of_prime_trains_a_part_of_what_it_generates() -> None:
    """run_prime_qwen.sh: 64 x 4 prompts of 4 samples, of which 64 x 4 are trained; the last of 58 x 15 rollouts never comes."""
    command = (
        f"python3 -m recipe.prime.main_prime data.train_batch_size=64 data.oversample_factor=4 {ACTOR}.ppo_mini_batch_size=64 "
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=1 {ROLLOUT}.n=4 algorithm.use_kl_in_reward=True trainer.total_epochs=15"
    )
    planned = plan_launch(shlex.split(command), Options(rows=15_000))
    schedule = planned.schedule
    assert schedule is not None
    assert (schedule.samples_per_rollout, schedule.samples_dropped_per_rollout) == (1024, 768)
    assert (schedule.samples_per_update, schedule.updates_per_rollout, schedule.rollouts, schedule.lr_horizon) == (
        256,
        1,
        869,
        870,
    )
    assert (schedule.algorithm, schedule.reference_source) == ("RLOO", "at_rollout")
    assert all(finding.severity == "info" for finding in planned.findings)


@pytest.mark.parametrize(
    ("module", "text", "framework"),
    [
        (
            "verl_tool.trainer.main_ppo",
            "from verl_tool.trainer.ppo.ray_trainer import AgentRayPPOTrainer as RayPPOTrainer\nRayPPOTrainer()\n",
            "verl_tool",
        ),
        ("recipe.dapo.main_dapo", "from .dapo_ray_trainer import RayDAPOTrainer\nRayDAPOTrainer()\n", "verl"),
        (
            "recipe.prime.main_prime",
            "from .prime_ray_trainer import RayPRIMETrainer\nRayPRIMETrainer()\n",
            "verl_prime",
        ),
    ],
)
def test_a_program_that_is_at_hand_trains_by_a_trainer_of_its_own(
    module: str, text: str, framework: str, tmp_path: Path
) -> None:
    """Its file names its own trainer, and none of verl's."""
    file = tmp_path / (module.replace(".", "/") + ".py")
    file.parent.mkdir(parents=True)
    file.write_text(text)
    script = tmp_path / "run.sh"
    sizes = f"data.train_batch_size=512 {ACTOR}.use_dynamic_bsz=True {ROLLOUT}.log_prob_micro_batch_size_per_gpu=1"
    script.write_text(f"python3 -m {module} algorithm.adv_estimator=grpo {sizes}\n")
    assert plan_launch([str(script)], Options()).framework == framework


@pytest.mark.parametrize(
    ("command", "title", "expected"),
    [
        # entropy/32b_clip_cov.sh, without its filter: 256 x 8 samples in mini-batches of 32 x 8
        (
            f"recipe.entropy.main_entropy data.train_batch_size=256 data.gen_batch_size=768 {ACTOR}.ppo_mini_batch_size=32 "
            f"{ROLLOUT}.n=8 {ACTOR}.use_dynamic_bsz=True algorithm.adv_estimator=grpo trainer.nnodes=4 trainer.total_epochs=1",
            "verl recipe/entropy",
            (768, 6144, 256, 24),
        ),
        # the same with its filter: rollouts of train_batch_size prompts
        (
            f"recipe.entropy.main_entropy data.train_batch_size=256 data.gen_batch_size=768 {ACTOR}.ppo_mini_batch_size=32 "
            f"{ROLLOUT}.n=8 "
            f"{ACTOR}.use_dynamic_bsz=True algorithm.adv_estimator=grpo algorithm.filter_groups.enable=True trainer.nnodes=4",
            "verl recipe/entropy",
            (256, 2048, 256, 8),
        ),
        # sppo/run_qwen2.5-7b_rm.sh: one sample of a prompt, no critic although adv_estimator is not given
        (
            f"recipe.sppo.main_sppo data.train_batch_size=1024 {ACTOR}.ppo_mini_batch_size=256 {ACTOR}.ppo_micro_batch_size_per_gpu=4 "
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=4 trainer.n_gpus_per_node=4",
            "verl recipe/sppo",
            (1024, 1024, 256, 4),
        ),
        # gvpo/run_qwen2-7b_math_gvpo.sh
        (
            f"recipe.gvpo.gvpo_main_ppo data.train_batch_size=1024 {ACTOR}.ppo_mini_batch_size=256 "
            f"{ACTOR}.ppo_micro_batch_size_per_gpu=16 "
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=16 {ROLLOUT}.n=4 algorithm.adv_estimator=grpo trainer.n_gpus_per_node=2",
            "verl recipe/gvpo",
            (1024, 4096, 1024, 4),
        ),
        # flowrl/run_flowrl_qwen2.5_7b.sh: what it generates for a filter is all trained
        (
            f"recipe.flowrl.main_flowrl data.train_batch_size=512 data.gen_batch_size=1536 {ACTOR}.ppo_mini_batch_size=32 "
            f"{ROLLOUT}.n=8 {ACTOR}.use_dynamic_bsz=True algorithm.adv_estimator=grpo",
            "verl recipe/flowrl",
            (1536, 12288, 256, 48),
        ),
    ],
)  # fmt: skip
def test_verls_recipes_whose_loop_is_verls(command: str, title: str, expected: tuple[int, ...]) -> None:
    planned = plan_launch(shlex.split(f"python3 -m {command}"), Options(rows=17_000))
    schedule = planned.schedule
    assert schedule is not None
    assert (schedule.framework, schedule.critic) == (title, None)
    found = (
        schedule.prompts_per_rollout,
        schedule.samples_per_rollout,
        schedule.samples_per_update,
        schedule.updates_per_rollout,
    )
    assert found == expected


def test_a_setting_of_verls_is_no_misspelling_in_a_copy() -> None:
    command = f"python3 -m recipe.entropy.main_entropy {ACTOR}.use_dynamic_bsz=True {ROLLOUT}.log_prob_micro_batch_size=512 +mine.own=1"
    said = " ".join(note.text for note in plan_launch(shlex.split(command), Options()).notes)
    assert "did you mean" not in said
    assert "no release" not in said


def test_what_gvpo_refuses() -> None:
    sizes = f"data.train_batch_size=1024 {ACTOR}.ppo_micro_batch_size_per_gpu=1 {ROLLOUT}.log_prob_micro_batch_size_per_gpu=1"
    command = f"python3 -m recipe.gvpo.gvpo_main_ppo {sizes} {ROLLOUT}.n=16 algorithm.adv_estimator=grpo trainer.n_gpus_per_node=8"
    planned = plan_launch(shlex.split(command), Options())
    assert "should be divisible by n 16" in planned.findings[0].observed


@pytest.mark.parametrize("launch", [LOGIC_RL, DEEPSCALER, f"{SEARCH_R1} {ROLLOUT}.n_agent=1"])
def test_an_engine_whose_copies_do_not_share_the_gpus_is_refused(launch: str) -> None:
    size = f"{ROLLOUT}.tensor_model_parallel_size"
    assert plan(f"{launch} {size}=2").schedule is not None
    for refused in ("3", "0.7"):
        assert any(
            "is not divisible by infer_tp" in each.observed for each in plan(f"{launch} {size}={refused}").findings
        )


def test_a_microbatch_is_no_larger_than_an_update() -> None:
    # 4 prompts of 16 samples on 4 processes: each process has 16 samples of an update, where a micro-batch would hold 64.
    small = LOGIC_RL.replace("data.train_batch_size=64", "data.train_batch_size=4")
    schedule = schedule_of(small.replace("micro_batch_size=16", "micro_batch_size=32"))
    assert schedule.samples_per_update == schedule.samples_per_microbatch == 64
    assert schedule.microbatches_per_update == 1
