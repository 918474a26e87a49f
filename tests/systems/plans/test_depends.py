"""With a setting that makes a count depend on the run, no exact count is given: for each entry of each declaration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.show.plan import plan_rows
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

VERL = (
    "data.train_batch_size=100 actor_rollout_ref.rollout.n=4 algorithm.adv_estimator=grpo "
    "actor_rollout_ref.actor.ppo_mini_batch_size=100 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=5 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=5 trainer.n_gpus_per_node=2 trainer.total_epochs=2 "
)
SKYRL = (
    "trainer.train_batch_size=64 trainer.policy_mini_batch_size=64 trainer.epochs=2 generator.n_samples_per_prompt=4 "
    "trainer.placement.policy_num_gpus_per_node=4 "
)
NEMO = (
    "uv run examples/run_grpo.py grpo.num_prompts_per_step=32 grpo.num_generations_per_prompt=16 grpo.max_num_steps=100 "
    "policy.train_global_batch_size=512 policy.train_micro_batch_size=4 cluster.gpus_per_node=8 cluster.num_nodes=1 "
)
PRIME = (
    "python3 -m verl.trainer.main_ppo data.train_batch_size=256 data.n_samples=4 actor_rollout_ref.actor.ppo_mini_batch_size=64 "
    "actor_rollout_ref.actor.ppo_micro_batch_size=8 trainer.n_gpus_per_node=8 trainer.total_epochs=1 algorithm.adv_estimator=rloo "
)
LAUNCHES: dict[str, list[tuple[str, str]]] = {
    # System -> for each entry of its table, the launch without it, and what turns it on.
    "verl": [
        ("python3 -m recipe.dapo.main_dapo data.gen_batch_size=300 " + VERL, "algorithm.filter_groups.enable=True"),
        ("python3 -m verl.trainer.main_ppo " + VERL, "algorithm.filter_groups.enable=True"),
    ],
    "openrlhf": [
        (
            "python3 -m openrlhf.cli.train_ppo_ray --rollout.batch_size 64 --rollout.n_samples_per_prompt 4 --train.batch_size 64 "
            "--train.micro_batch_size 4 --actor.num_gpus_per_node 4 --train.num_episodes 2",
            "--algo.dynamic_filtering_enable",
        )
    ],
    "skyrl": [
        ("python -m skyrl.train.entrypoints.main_base " + SKYRL, "trainer.algorithm.dynamic_sampling.type=filter"),
        (
            "python -m examples.train.fully_async.main_fully_async trainer.fully_async.enabled=true "
            "trainer.fully_async.num_parallel_generation_workers=64 trainer.placement.colocate_all=false generator.batched=false "
            "trainer.algorithm.policy_loss_type=rollout_is " + SKYRL,
            "trainer.fully_async.sample_full_batch=true",
        ),
    ],
    "prime": [(PRIME, "data.filter_accuracy=True")],
    "nemo_rl": [(NEMO, "grpo.use_dynamic_sampling=true")],
    "swift": [
        (
            "swift rlhf --rlhf_type grpo --model m --dataset d --num_generations 8 --per_device_train_batch_size 8 --max_steps 50",
            "--early_stop_interval 3",
        )
    ],
    "cleanrl": [("python cleanrl/ppo.py --num-envs 8 --num-steps 128 --total-timesteps 100000", "--target-kl 0.02")],
}
PYTHON: dict[str, list[tuple[str, str]]] = {
    "trl": [
        (
            "from trl import GRPOConfig, GRPOTrainer\nfrom transformers import EarlyStoppingCallback\n"
            "config = GRPOConfig(per_device_train_batch_size=8, num_generations=8, max_steps=50)\n"
            "trainer = GRPOTrainer(model='m', args=config)\n{more}trainer.train()\n",
            "trainer.add_callback(EarlyStoppingCallback())\n",
        ),
        (
            "from trl import GRPOConfig, GRPOTrainer\nfrom transformers import TrainerCallback\n"
            "class Best(TrainerCallback):\n    def on_log(self, args, state, control):\n        control.should_training_stop = True\n"
            "config = GRPOConfig(per_device_train_batch_size=8, num_generations=8, max_steps=50)\n"
            "trainer = GRPOTrainer(model='m', args=config)\n{more}trainer.train()\n",
            "trainer.add_callback(Best())\n",
        ),
    ],
    "trl_ppo_step": [
        (
            "from trl import PPOConfig, PPOTrainer\nconfig = PPOConfig(batch_size=64, mini_batch_size=16{more})\n"
            "trainer = PPOTrainer(config, model)\nfor epoch in range(2):\n    trainer.step(q, r, s)\n",
            ", early_stopping=True",
        )
    ],
    "sb3": [
        (
            "from stable_baselines3 import PPO\nmodel = PPO('MlpPolicy', 'CartPole-v1', n_steps=128{more})\n"
            "model.learn(total_timesteps=10000)\n",
            ", target_kl=0.02",
        )
    ],
}


def of_command(name: str, launch: str) -> Plan:
    return plan_launch(launch.split(), Options(rows=10000, framework=name))


def of_python(name: str, text: str, folder: Path) -> Plan:
    (folder / "train.py").write_text(text)
    return plan_launch([str(folder / "train.py")], Options(rows=10000, world_size=1, framework=name))


def test_each_entry_of_each_declaration_has_a_launch_here() -> None:
    own = {name: len(depends) for name in index.names() if (depends := index.system_of(name).depends)}
    tested = {name: len(launches) for name, launches in (LAUNCHES | PYTHON).items()}
    copies = {name for name in own if name not in tested}
    assert {name: count for name, count in own.items() if name not in copies} == tested
    # Copies have the table of what they are copies of.
    tables = [index.system_of(name).depends for name in tested]
    assert all(index.system_of(name).depends in tables for name in copies)


@pytest.mark.parametrize(
    ("name", "at", "launch", "more"),
    [(name, at, *pair) for name, launches in LAUNCHES.items() for at, pair in enumerate(launches)],
)
def test_a_command_with_it_gets_no_exact_count(name: str, at: int, launch: str, more: str) -> None:
    exact, depends = of_command(name, launch), of_command(name, f"{launch} {more}")
    judge(name, at, exact, depends)


@pytest.mark.parametrize(
    ("name", "at", "text", "more"),
    [(name, at, *pair) for name, launches in PYTHON.items() for at, pair in enumerate(launches)],
)
def test_a_python_file_with_it_gets_no_exact_count(tmp_path: Path, name: str, at: int, text: str, more: str) -> None:
    exact, depends = (of_python(name, text.format(more=each), tmp_path) for each in ("", more))
    judge(name, at, exact, depends)


def judge(name: str, at: int, exact: Plan, depends: Plan) -> None:
    """What the entry concerns is a number without it, and none with it, or a bound."""
    entry = index.system_of(name).depends[at]
    assert exact.schedule is not None
    assert depends.schedule is not None
    assert exact.schedule.updates_bound == "exact"
    for count in entry.counts:
        assert getattr(exact.schedule, count) is not None, count
        assert getattr(depends.schedule, count) is None, count
        assert depends.schedule.not_evaluated.get(count), count
    if not entry.counts:
        assert depends.schedule.updates_bound == "upper"
        run = next(what for title, what, _ in plan_rows(depends.schedule) if title == "run")
        assert "at most" in run or depends.schedule.updates is None
