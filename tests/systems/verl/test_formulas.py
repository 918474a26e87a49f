"""Plans against verl's own functions: its configuration, its padding and its cutting of mini-batches, for random sizes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.systems.verl.launch import CPU_FOLDER, ENVIRONMENT

RUNS = 100
ROLLOUTS = 6


def test_plans_are_what_verls_own_functions_give() -> None:
    # In a process of its own: importing verl's trainer settles its platform for good.
    environment = os.environ | ENVIRONMENT | {"VERL_USE_EXTERNAL_MODULES": "verl_cpu.plugin"}
    root = str(Path(__file__).parents[3])
    environment["PYTHONPATH"] = os.pathsep.join([str(CPU_FOLDER), root, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert [outcome for outcome in outcomes if outcome["planned"] != outcome["verl"]] == []
    # Neither side only refuses.
    refused = sum(outcome["verl"] is None for outcome in outcomes)
    assert RUNS // 5 < refused < RUNS * 4 // 5


def random_settings(draw: random.Random) -> dict[str, Any]:
    prompts = draw.randint(1, 12)
    return {
        "data.train_batch_size": prompts,
        "actor_rollout_ref.rollout.n": draw.randint(1, 4),
        "actor_rollout_ref.actor.ppo_mini_batch_size": draw.randint(1, prompts),
        "actor_rollout_ref.actor.ppo_epochs": draw.randint(1, 2),
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "critic.ppo_mini_batch_size": draw.randint(1, prompts),
        "algorithm.adv_estimator": draw.choice(["grpo", "gae"]),
        "trainer.n_gpus_per_node": draw.choice([1, 2, 3, 4]),
        "trainer.critic_warmup": draw.randint(0, 3),
        "trainer.use_v1": draw.choice([True, False]),
        "trainer.total_epochs": 1,
    }


def by_plan(config: Any) -> list[int] | None:
    """Updates of the policy and of the critic; None if refused."""
    from rlstep_hooks import plan
    from rlstep_hooks.planning.refusal import PlanError

    try:
        schedule = plan(config, rows=ROLLOUTS * config.data.train_batch_size)
    except PlanError:
        return None
    assert schedule.updates is not None
    return [schedule.updates, (schedule.critic.updates or 0) if schedule.critic else 0]


def by_verl(config: Any) -> list[int] | None:
    """The same from verl's own functions; None if an assertion fails."""
    from types import SimpleNamespace

    from verl.trainer.ppo.utils import need_critic
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    processes = config.trainer.n_gpus_per_node
    policy = critic = 0
    for step in range(1, ROLLOUTS + 1):
        trainer = SimpleNamespace(config=config, use_critic=need_critic(config), global_steps=step)
        samples = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
        if config.trainer.use_v1:
            multiple = PPOTrainer._get_required_batch_multiple(trainer, processes)
            samples += -samples % multiple
        try:
            if trainer.use_critic:
                critic += updates(samples, config.critic, config, processes)
            if config.trainer.critic_warmup <= step:
                policy += updates(samples, config.actor_rollout_ref.actor, config, processes)
        except AssertionError:
            return None
    return [policy, critic]


def updates(samples: int, role: Any, config: Any, processes: int) -> int:
    """Mini-batches of one rollout on one process, as `TrainingWorker.train_mini_batch` makes them."""
    import torch
    from tensordict import TensorDict
    from verl.utils.tensordict_utils import make_iterator

    size = role.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
    assert size % processes == 0
    assert samples % processes == 0
    data = TensorDict({"sample": torch.arange(samples // processes)}, batch_size=[samples // processes])
    return sum(1 for _ in make_iterator(data, size // processes, role.ppo_epochs, seed=0))


def main() -> None:
    import verl
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        plain = compose("ppo_trainer")
    draw = random.Random(0)
    outcomes = []
    for _ in range(RUNS):
        config, settings = plain.copy(), random_settings(draw)
        for name, value in settings.items():
            OmegaConf.update(config, name, value)
        outcomes.append({"settings": settings, "planned": by_plan(config), "verl": by_verl(config)})
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
