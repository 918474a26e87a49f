"""Programs that take a framework's settings and do not train with it are not planned; those that train are, whatever their name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError, NoLaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

SKYRL = "trainer.train_batch_size=64 trainer.policy_mini_batch_size=64 generator.n_samples_per_prompt=5"
NEMO = "grpo.num_prompts_per_step=32 grpo.num_generations_per_prompt=16 policy.train_global_batch_size=512 grpo.max_num_steps=10"
VERL = (
    "algorithm.adv_estimator=grpo data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=64 "
    "actor_rollout_ref.actor.use_dynamic_bsz=True"
)


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (f"python -m skyrl.train.entrypoints.main_generate {SKYRL}", "generate"),
        (f"python -m skyrl.train.entrypoints.serve {SKYRL}", "serve"),
        (f"python -m examples.train.callbacks.main_sft_with_callbacks {SKYRL}", "sft"),
        ("python generate.py --num-generations 4 --prompts-per-device 8", "generate"),
        (f"python -m my.tools.evaluate_checkpoint {VERL}", "evaluate"),
    ],
)
def test_the_name_says_that_it_trains_nothing(command: str, word: str) -> None:
    with pytest.raises(NoLaunchError, match=f'by its name \\("{word}"\\) it trains nothing'):
        plan_launch(command.split())


@pytest.mark.parametrize(
    ("program", "known"),
    [
        ("openrlhf.cli.train_grpo", False),
        ("verl.trainer.main_grpo", False),
        ("mine.train_grpo", True),
        ("examples.train_grpo", True),
    ],
)
def test_a_module_of_another_framework_is_not_planned_by_its_settings_alone(program: str, *, known: bool) -> None:
    command = (
        f"python -m {program} --num_generations 4 --per_device_train_batch_size 8 --max_steps 9 --use_vllm true".split()
    )
    if known:
        assert plan_launch(command, Options(rows=100)).framework == "trl"
        return
    with pytest.raises(NoLaunchError, match=f"is a module of {program.partition('.')[0]}, of which it is no program"):
        plan_launch(command, Options(rows=100))


@pytest.mark.parametrize(
    ("text", "settings", "trains"),
    [
        ("from nemo_rl.models.policy.lm_policy import Policy\nPolicy().train()\n", NEMO, False),
        ("from nemo_rl.algorithms.grpo import grpo_train\ngrpo_train()\n", NEMO, True),
        ("from nemo_rl.algorithms import grpo\ngrpo.async_grpo_train()\n", NEMO, True),
        ('load("verl.trainer.ppo.ray_trainer.RayPPOTrainer")().fit()\n', VERL, True),
        ('print("the verl.trainer.ppo.ray_trainer.RayPPOTrainer")\n', VERL, False),
        ("from verl.trainer.main_ppo import create_rl_dataset\nfrom .loop import MyTrainer\n", VERL, False),
        ("from .loop import RayPPOTrainer\nRayPPOTrainer().fit()\n", VERL, False),
        ("from verl.trainer.ppo.ray_trainer import RayPPOTrainer\nRayPPOTrainer().fit()\n", VERL, True),
        ("import vllm\nvllm.LLM()\n", "--num_generations 8 --per_device_train_batch_size 8", False),
        ("from trl import GRPOTrainer\nGRPOTrainer().train()\n", "--num_generations 8 --max_steps 3", True),
    ],
)
def test_a_program_that_is_here_uses_what_trains(tmp_path: Path, text: str, settings: str, *, trains: bool) -> None:
    script = tmp_path / "program.py"
    script.write_text(text)
    words = ["python", str(script), *settings.split()]
    if trains:
        assert plan_launch(words, Options(rows=1000)).schedule is not None
        return
    with pytest.raises(NoLaunchError, match="uses nothing that trains with it"):
        plan_launch(words)


def test_a_framework_that_is_named_is_taken_at_its_word() -> None:
    words = f"python -m skyrl.train.entrypoints.main_generate {SKYRL}".split()
    assert plan_launch(words, Options(framework="skyrl")).schedule is not None


@pytest.mark.parametrize("program", ["main_sft_then_train", "my_grpo", "geometry3k_entrypoint"])
def test_a_program_that_is_not_here_is_read_by_its_settings(program: str) -> None:
    assert plan_launch(f"python -m mine.{program} {SKYRL}".split()).schedule is not None


def test_a_command_that_trains_beside_one_that_evaluates(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"python -m my.main_eval {VERL}\npython -m verl.trainer.main_ppo {VERL}\n")
    schedule = plan_launch([str(script)]).schedule
    assert schedule is not None
    assert schedule.prompts_per_rollout == 64


def test_a_trainer_that_is_set_over_a_base_that_is_copied(tmp_path: Path) -> None:
    """trlX's `nemo_ppo_inference.py`: what `dict(base, trainer=...)` adds is read, so another trainer is not taken for the default."""
    file = tmp_path / "ppo_config.py"
    file.write_text(
        "from trlx.data.default_configs import default_ppo_config\n"
        "base = default_ppo_config()\n"
        'config = base.evolve(train=dict(base.train.__dict__, trainer="NeMoPPOTrainer"))\n'
    )
    with pytest.raises(Exception, match="NeMoPPOTrainer: only AcceleratePPOTrainer is read"):
        plan_launch([str(file)])


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            "python3 train.py --rollout-batch-size 128 --num-epoch 3 --loss-type sft_loss --actor-num-gpus-per-node 8",
            "loss_type = sft_loss learns given texts",
        ),
        (
            "rl --orchestrator.batch-size 128 --orchestrator.algo.type sft --max-steps 5",
            "learns the texts of a teacher",
        ),
    ],
)
def test_a_trainers_program_that_is_told_to_learn_given_texts(command: str, says: str) -> None:
    """slime's run-qwen3-4B-base-sft.sh and prime-rl's sft_distill.toml: planned as GRPO."""
    with pytest.raises(LaunchError, match=says):
        plan_launch(command.split(), Options(rows=1000, world_size=1))


def test_a_pipeline_of_roll_that_only_samples(tmp_path: Path) -> None:
    """examples/start_rlvr_rollout_pipeline.py, with the configuration of a training run."""
    script = tmp_path / "start_rlvr_rollout_pipeline.py"
    script.write_text(
        "from roll.pipeline.rlvr.rlvr_rollout_pipeline import RLVRRolloutPipeline\nRLVRRolloutPipeline().run()\n"
    )
    (tmp_path / "c.yaml").write_text(
        "rollout_batch_size: 8\nactor_train:\n  training_args:\n    per_device_train_batch_size: 1\n"
    )
    with pytest.raises(NoLaunchError, match="by its name"):
        plan_launch(["python", str(script), "--config", str(tmp_path / "c.yaml")])


def test_one_sample_of_a_prompt_is_enough_with_a_teacher() -> None:
    """ms-swift's examples/train/grpo/opd_rl.sh: refused."""
    command = "swift rlhf --rlhf_type grpo --num_generations 1 --per_device_train_batch_size 2 --gradient_accumulation_steps 2"
    with_teacher = plan_launch(f"{command} --teacher_model Qwen/Qwen3.5-9B".split(), Options(rows=1000, world_size=4))
    assert with_teacher.schedule is not None
    assert with_teacher.schedule.samples_per_prompt == 1
    assert plan_launch(command.split(), Options(rows=1000, world_size=4)).schedule is None


def test_a_frameworks_own_module_is_known_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout of verl of another day in the folder: what its main_ppo.py imports says nothing."""
    (tmp_path / "verl" / "trainer").mkdir(parents=True)
    (tmp_path / "verl" / "trainer" / "main_ppo.py").write_text("from .v2 import launch\nlaunch()\n")
    monkeypatch.chdir(tmp_path)
    assert plan_launch(f"python -m verl.trainer.main_ppo {VERL}".split()).schedule is not None


@pytest.mark.parametrize("name", ["run_grpo.py", "run_grpo_math.py", "gsm8k_grpo.py"])
def test_a_common_name_is_not_taken_for_the_framework_that_has_it(tmp_path: Path, name: str) -> None:
    """NeMo-RL's `run_grpo.py` and AReaL's `gsm8k_grpo.py` take Hydra overrides; TRL's users have scripts of these names too."""
    flags = "--num_generations 8 --per_device_train_batch_size 8 --max_steps 3"
    plan = plan_launch(f"accelerate launch --num_processes 2 {name} {flags}".split(), Options(rows=1000))
    assert (plan.title, plan.schedule is not None) == ("TRL", True)
    (tmp_path / name).write_text(
        "from trl import GRPOConfig, GRPOTrainer\n"
        "args = GRPOConfig(num_generations=8, per_device_train_batch_size=8, max_steps=3)\n"
        "GRPOTrainer(args=args).train()\n"
    )
    assert plan_launch([str(tmp_path / name)], Options(rows=1000, world_size=2)).title == "TRL"
    if name.startswith("run_grpo"):
        assert plan_launch(["python", name, *NEMO.split()], Options(rows=1000)).title == "NeMo-RL"


@pytest.mark.parametrize("name", ["sft_then_grpo.py", "grpo_eval_reward.py"])
@pytest.mark.parametrize(("method", "trains"), [("train", True), ("evaluate", False)])
def test_a_file_that_is_here_says_more_than_its_name(tmp_path: Path, name: str, method: str, *, trains: bool) -> None:
    script = tmp_path / name
    script.write_text(f"from trl import GRPOTrainer\nGRPOTrainer().{method}()\n")
    words = ["python", str(script), "--num_generations", "8", "--max_steps", "3"]
    if trains:
        assert plan_launch(words, Options(rows=1000)).title == "TRL"
        return
    with pytest.raises(NoLaunchError, match="by its name"):
        plan_launch(words, Options(rows=1000))
