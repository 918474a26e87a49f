"""Settings that are wrong by orders of magnitude give a message at once, not an endless calculation.

Each launch was found by `nox -s fuzz`.
"""

from __future__ import annotations

import shlex

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.counting import MOST, TooManyError, countable, divisors
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.fuzz.limits import time_limit

SECONDS = 20
"""Processor time; each takes well under one."""
HUGE = 10**18


def plan(launch: str, **options: object) -> Plan:
    with time_limit(SECONDS):
        return plan_launch(shlex.split(launch), Options(rows=100, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "launch",
    [
        f"paper --reuse_epochs {HUGE} --prompts_per_rollout 256",
        f"python -m baselines.run --learn.noptepochs={10**40}",
        f"python -m baselines.run --learn.nminibatches={HUGE} --learn.nsteps={HUGE}",
        f"python ppo_continuous_action.py --update_epochs {HUGE}",
        f"python -m oat.experiment.some --pi_buffer_maxlen_per_device {HUGE} --critic_max_step_adjustment 512",
        f"python sota-implementations/ppo/some.py collector.frames_per_batch={10**40}",
        f"python run_vlm_grpo.py grpo.num_prompts_per_step={HUGE}",
        "python stack_llama/scripts/rl_training.py --PPOConfig.ppo_epochs=126942983",
        f"python examples/scripts/ppo.py --PPOConfig.batch_size {10**40}",
        f"trl grpo --num_iterations {HUGE}",
        f"swift rlhf --rlhf_type grpo --per_device_train_batch_size {10**40} --num_generations 7",
        f"python -m verl.trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=32 "
        f"actor_rollout_ref.actor.ppo_epochs={HUGE} actor_rollout_ref.actor.use_dynamic_bsz=True",
    ],
)
def test_more_than_any_run_has_is_an_error_that_says_so(launch: str) -> None:
    with pytest.raises(LaunchError, match=r"too (many|large) to plan"):
        plan(launch)


def test_gpus_that_do_not_hold_one_copy_of_the_model() -> None:
    found = plan(
        "python -m verl.trainer.main_ppo actor_rollout_ref.actor.use_dynamic_bsz=True trainer.n_gpus_per_node=8 "
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size=1000000"
    ).findings
    assert "8 GPUs do not hold one copy of the model" in found[0].observed


def test_a_release_that_nobody_made() -> None:
    with pytest.raises(LaunchError, match="TRL 9999 is not known"):
        plan("trl grpo", version="9999")


def test_the_limit_itself() -> None:
    assert countable(MOST) == MOST
    with pytest.raises(TooManyError, match=r"^more than 1 000 000 updates on one rollout are too many to plan$"):
        countable(MOST + 1)


@pytest.mark.parametrize("value", [1, 2, 36, 97, 1024])
def test_divisors(value: int) -> None:
    assert divisors(value) == [divisor for divisor in range(1, value + 1) if value % divisor == 0]
