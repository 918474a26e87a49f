"""What the last six releases of TRL, verl and OpenRLHF make of one launch; the numbers are worked out by hand from the sources."""

from __future__ import annotations

import shlex
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.launches import plan_launch
from rlstep_hooks.systems.engine.release import planned_releases

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule

TRL = "accelerate launch --num_processes 8 -m trl.scripts.grpo "
VERL = (
    "python3 -m verl.trainer.main_ppo data.train_batch_size=512 trainer.total_epochs=2 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 "
)
MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"
MICRO = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
OPENRLHF = "python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 1 --actor.num_gpus_per_node 8 "

LAST = {
    "trl": ("1.11.0", "1.12.0", "1.13.0", "1.14.2", "1.15.0", "1.16.0"),
    "verl": ("0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1"),
    "openrlhf": ("0.10.2", "0.10.3", "0.10.4", "0.11.0", "0.11.1", "0.11.2"),
}


class Golden(msgspec.Struct, frozen=True):
    """One launch, and what each release makes of it: numbers, or the words of its refusal."""

    system: str
    launch: str
    rows: int
    expected: dict[str, dict[str, Any] | str]
    """The releases, from the first one named on."""


GOLDEN = {
    # 8 x 4 x 2 = 64 samples, 8 prompts; 1 000 / 8 = 125 rollouts in each of 2 passes, one update each.
    "trl-one-update": Golden(
        "trl",
        f"{TRL} --num_generations 8 --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --num_train_epochs 2",
        1000,
        {"1.11.0": {"prompts_per_rollout": 8, "samples_per_rollout": 64, "samples_per_update": 64, "updates_per_rollout": 1,
                    "rollouts": 250, "updates": 250, "lags": (0,), "old_logprob_source": "detach", "rows_dropped_per_epoch": 0}},
    ),
    # 8 x 4 x 8 = 256 samples, 32 prompts, trained twice in updates of 128: 4; 1 000 = 31 x 32 + 8, 3 passes of 31 rollouts.
    "trl-four-updates": Golden(
        "trl",
        f"{TRL} --num_generations 8 --per_device_train_batch_size 4 --gradient_accumulation_steps 4 --steps_per_generation 8 "
        "--num_iterations 2",
        1000,
        {"1.11.0": {"prompts_per_rollout": 32, "samples_per_rollout": 256, "samples_per_update": 128, "updates_per_rollout": 4,
                    "rollouts": 93, "updates": 372, "lags": (0, 1, 2, 3), "old_logprob_source": "at_rollout",
                    "rows_dropped_per_epoch": 8}},
    ),
    # 64 samples are 2 micro-batches of 8 x 4, an update takes 3: 2/3 of an update a rollout, 100 updates of 300 micro-batches.
    "trl-part-of-an-update": Golden(
        "trl",
        f"{TRL} --num_generations 16 --per_device_train_batch_size 4 --gradient_accumulation_steps 3 --generation_batch_size 64 "
        "--max_steps 100 --use_vllm true",
        1000,
        {"1.11.0": {"prompts_per_rollout": 4, "samples_per_update": 96, "updates_per_rollout": Fraction(2, 3), "rollouts": 150,
                    "updates": 100, "old_logprob_source": "at_rollout"}},
    ),
    "trl-refused": Golden(
        "trl", f"{TRL} --num_generations 6", 1000,
        {"1.11.0": "generation_batch_size (64) must be divisible by num_generations (6)."},
    ),
    # 512 x 8 = 4 096 samples in mini-batches of 128 x 8; 10 000 = 19 x 512 + 272, two passes.
    "verl-grpo": Golden(
        "verl",
        f"{VERL} algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 {MINI}=128 {MICRO}=4",
        10_000,
        {"0.6.1": {"samples_per_rollout": 4096, "samples_per_update": 1024, "updates_per_rollout": 4, "rollouts": 38, "updates": 152,
                   "lr_horizon": 38, "rows_dropped_per_epoch": 272}},
    ),
    # critic_warmup = 3 freezes the policy for 2 rollouts, which leaves 36 x 4 updates.
    "verl-warmup": Golden(
        "verl",
        f"{VERL} algorithm.adv_estimator=gae actor_rollout_ref.rollout.n=4 {MINI}=128 {MICRO}=4 critic.ppo_micro_batch_size_per_gpu=4 "
        "trainer.critic_warmup=3",
        10_000,
        {"0.6.1": {"samples_per_update": 512, "updates_per_rollout": 4, "frozen_rollouts": 2, "rollouts": 38, "updates": 144,
                   "critic.samples_per_update": 512, "critic.updates": 152}},
    ),
    "verl-two-passes": Golden(
        "verl",
        f"{VERL} algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 {MINI}=128 {MICRO}=4 actor_rollout_ref.actor.ppo_epochs=2 "
        "trainer.total_training_steps=25",
        10_000,
        {"0.6.1": {"updates_per_rollout": 8, "rollouts": 25, "updates": 200, "lr_horizon": 25}},
    ),
    # 2 560 samples, 320 on each of 8 GPUs, in mini-batches of 200 x 5 / 8 = 125: the last has 70, is refused, or is filled up.
    "verl-remainder": Golden(
        "verl",
        f"{VERL} algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=5 {MINI}=200 {MICRO}=5 "
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        10_000,
        {
            "0.6.1": {"minibatches": (1000, 1000, 560), "samples_added_per_rollout": 0, "updates_per_rollout": 3, "updates": 114},
            "0.8.0": "AssertionError: 320 % 125 != 0",
            "0.9.0": {"minibatches": (1000, 1000, 1000), "samples_added_per_rollout": 440, "updates_per_rollout": 3, "updates": 114},
        },
    ),
    # 128 x 8 = 1 024 samples, 4 updates; 10 000 = 78 x 128 + 16, and 16 x 8 samples are half an update.
    "openrlhf-grpo": Golden(
        "openrlhf",
        f"{OPENRLHF} --rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --train.batch_size 256 --train.micro_batch_size 4 "
        "--algo.advantage.estimator group_norm",
        10_000,
        {
            "0.10.2": {"samples_per_rollout": 1024, "updates_per_rollout": 4, "rollouts": 78, "updates": 312, "lr_horizon": 312},
            "0.11.0": {"samples_per_rollout": 1024, "updates_per_rollout": 4, "rollouts": 79, "updates": 312, "lr_horizon": 312},
        },
    ),
    # freezing_steps = 2 freezes 3 rollouts, whose samples wait and are trained with the fourth.
    "openrlhf-critic": Golden(
        "openrlhf",
        f"{OPENRLHF} --rollout.batch_size 128 --rollout.n_samples_per_prompt 1 --train.batch_size 64 --critic.num_nodes 1 "
        "--critic.num_gpus_per_node 8 --train.max_epochs 2 --critic.freezing_steps 2",
        10_000,
        {
            "0.10.2": {"updates_per_rollout": 4, "rollouts": 78, "frozen_rollouts": 3, "updates": 312, "critic.updates": 312},
            "0.11.0": {"updates_per_rollout": 4, "rollouts": 79, "frozen_rollouts": 3, "updates": 312, "critic.updates": 312},
        },
    ),
    # 400 samples and updates of 128: 25/8 of an update a rollout; 50 rollouts of 100 prompts, 20 000 / 128 = 156.
    "openrlhf-remainder": Golden(
        "openrlhf",
        f"{OPENRLHF} --rollout.batch_size 100 --rollout.n_samples_per_prompt 4 --train.batch_size 128 "
        "--algo.advantage.estimator group_norm --data.max_samples 5000",
        10_000,
        {"0.10.2": {"updates_per_rollout": Fraction(25, 8), "rollouts": 50, "updates": 156}},
    ),
}  # fmt: skip


def of(golden: Golden, release: str) -> dict[str, Any] | str:
    """What is expected of a release: as of the last one named that is not later."""
    order = LAST[golden.system]
    named = [first for first in golden.expected if order.index(first) <= order.index(release)]
    return golden.expected[named[-1]]


def value(schedule: Schedule, name: str) -> Any:
    """A field of a Schedule, or of its critic's."""
    if name.startswith("critic."):
        assert schedule.critic is not None
        return value(schedule.critic, name.removeprefix("critic."))
    return getattr(schedule, name)


@pytest.mark.parametrize("system", LAST)
def test_these_are_the_last_six_releases(system: str) -> None:
    assert planned_releases(index.system_of(system))[-6:] == LAST[system]


@pytest.mark.parametrize(
    ("name", "release"), [(name, release) for name, golden in GOLDEN.items() for release in LAST[golden.system]]
)
def test_the_plan_of_a_release(name: str, release: str) -> None:
    golden = GOLDEN[name]
    plan = plan_launch(shlex.split(golden.launch), Options(rows=golden.rows, version=release))
    expected = of(golden, release)
    assert plan.version == release
    if isinstance(expected, str):
        assert plan.schedule is None
        assert plan.findings[0].observed == expected
        return
    assert plan.schedule is not None
    assert {name: value(plan.schedule, name) for name in expected} == expected


@pytest.mark.parametrize("name", [name for name, golden in GOLDEN.items() if len(golden.expected) > 1])
def test_an_upgrade_that_changes_the_plan_is_said(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`rlstep diff --version-a --version-b`, and `rlstep plan --all-versions`, for each pair of neighbours that differ."""
    from rlstep_hooks.cli.app import main

    golden = GOLDEN[name]
    command = ["--rows", str(golden.rows), "--", *shlex.split(golden.launch)]
    order = LAST[golden.system]
    for before, after in pairwise(order):
        with pytest.raises(SystemExit) as ended:
            main(["diff", "--version-a", before, "--version-b", after, *command])
        differs = of(golden, before) != of(golden, after)
        assert (ended.value.code != 0) == differs, (before, after, capsys.readouterr().out)
    with pytest.raises(SystemExit):
        main(["plan", "--all-versions", *command])
    said = capsys.readouterr().out
    for first in list(golden.expected)[1:]:
        assert first in said
