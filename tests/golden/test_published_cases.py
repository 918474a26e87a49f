"""Every case of the collected golden cases: a launch in the system's own words, and the numbers that it must give."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlstep_hooks.planning.schedule import Schedule
from rlstep_hooks.planning.steps import read_steps
from rlstep_hooks.systems.recipes import find
from tests.golden.reading import read

PLANS = Path(__file__).parents[1] / "systems" / "plans"
CASES: dict[str, dict[str, Any]] = {
    case["name"]: case for case in json.loads((Path(__file__).parent / "published_cases.json").read_text())
}

Number = Callable[[Schedule], Any]


class Launched(msgspec.Struct, frozen=True):
    """A case as a launch."""

    framework: str
    launch: str
    options: dict[str, Any]
    numbers: dict[str, Number]
    """For each expected number that a Schedule holds, where it stands."""
    beyond: frozenset[str] = frozenset()
    """Expected numbers that are no part of a Schedule."""


PLAIN: dict[str, Number] = {
    name: (lambda schedule, name=name: getattr(schedule, name))
    for name in ("samples_per_rollout", "updates_per_rollout", "rollouts", "updates", "rollouts_per_epoch", "prompts_per_rollout")
}  # fmt: skip
TICKS_EACH: Number = lambda s: Fraction(s.lr_ticks, s.rollouts)  # noqa: E731


def case(
    system: str, launch: str, beyond: str = "", numbers: dict[str, Number] | None = None, **options: Any
) -> Launched:
    return Launched(system, " ".join(launch.split()), options, PLAIN | (numbers or {}), frozenset(beyond.split()))


def recipe(name: str, beyond: str = "", numbers: dict[str, Number] | None = None) -> Launched:
    found = find(name)
    options = {
        "framework": found.framework,
        "version": found.version,
        "rows": found.rows,
        "world_size": found.world_size,
    }
    given = {key: value for key, value in options.items() if value is not None}
    return Launched(found.framework or "", found.launch, given, PLAIN | (numbers or {}), frozenset(beyond.split()))


VERL = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator={algorithm} data.train_batch_size={P} actor_rollout_ref.rollout.n={n}
 actor_rollout_ref.actor.ppo_mini_batch_size={M} trainer.n_gpus_per_node={gpus} trainer.nnodes={nodes} trainer.total_epochs={epochs}
 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1
 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1"""
PPO2 = (
    "python -m baselines.run --alg=ppo2 --num_env={envs} --nsteps={steps} --noptepochs={epochs} --nminibatches={parts}"
)

LAUNCHES: dict[str, Launched] = {
    "SkyRL gsm8k": case(
        "skyrl",
        """uv run -m skyrl.train.entrypoints.main_base trainer.train_batch_size=1024 trainer.policy_mini_batch_size=256
         generator.n_samples_per_prompt=5 trainer.epochs=20""",
        numbers={"minibatch_samples": lambda s: s.samples_per_update},
        rows=7473,
    ),
    "DeepSeek-R1-Zero": recipe(
        "r1-zero",
        beyond="ref_refresh_rollouts",
        numbers={
            "prompts_consumed": lambda s: s.rollouts * s.prompts_per_rollout,
            "implied_dataset": lambda s: s.rows,
            "max_within_rollout_lag": lambda s: max(s.lags),
        },
    ),
    "DeepSeekMath GRPO": recipe(
        "deepseekmath",
        numbers={
            "prompts_per_rollout_if_batch_counts_samples": lambda s: s.prompts_per_rollout,
            "rollouts_per_epoch_if_so": lambda s: s.rollouts_per_epoch,
        },
    ),
    "InstructGPT": recipe("instructgpt", numbers={"data_epochs": lambda s: round(float(s.data_epochs), 2)}),
    "NeMo-RL grpo_math_1B": case("nemo_rl", "uv run examples/run_grpo.py", rows=12800),
    "slime qwen3-4B": case(
        "slime",
        "python3 train.py --num-rollout 3000 --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256",
        numbers={"train_iters": lambda s: s.updates},
        rows=17398,
    ),
    "slime num_steps_per_rollout=3": case(
        "slime",
        """python3 train.py --num-rollout 10 --rollout-batch-size 32 --n-samples-per-prompt 8 --num-steps-per-rollout 3
         --actor-num-nodes 1 --actor-num-gpus-per-node 1""",
        numbers={
            "global_batch_size": lambda s: s.samples_per_update,
            "samples_dropped": lambda s: s.samples_dropped_per_rollout,
        },
        rows=1000,
    ),
    "ms-swift/TRL GRPO fractional": case(
        "trl",
        "trl grpo --gradient_accumulation_steps 8 --steps_per_generation 4 --num_iterations 1 --max_steps 8",
        numbers={
            "updates_per_rollout": lambda s: str(s.updates_per_rollout),
            "rollouts_per_update": lambda s: 1 / s.updates_per_rollout,
            "old_logprob": lambda s: "detach (ratio==1)" if (s.old_logprob_source, s.lags) == ("detach", (0,)) else "",
        },
        rows=1000,
    ),
    "OpenRLHF example": case(
        "openrlhf",
        """python3 -m openrlhf.cli.train_ppo_ray --rollout.batch_size 256 --rollout.n_samples_per_prompt 16 --train.batch_size 128
         --train.max_epochs 1 --actor.num_gpus_per_node 1 --algo.advantage.estimator group_norm""",
        rows=8000,
    ),
    "PPO paper Atari on baselines ppo2": case(
        "baselines",
        PPO2.format(envs=8, steps=128, epochs=3, parts=4) + " --env=PongNoFrameskip-v4 --num_timesteps=1e7",
        numbers={"minibatch": lambda s: s.samples_per_update},
    ),
    "baselines defaults.atari()": case(
        "baselines",
        "python -m baselines.run --alg=ppo2 --env=PongNoFrameskip-v4 --num_env=8 --num_timesteps=1e7",
    ),
    "baselines defaults.mujoco()": case(
        "baselines",
        "python -m baselines.run --alg=ppo2 --env=Hopper-v2 --num_env=1 --num_timesteps=1e6",
    ),
    "ROLL qwen2.5-7B-rlvr": case(
        "roll",
        f"python {Path(__file__).parent}/scripts/examples/start_rlvr_pipeline.py "
        f"{Path(__file__).parent}/scripts/examples/rlvr/rlvr_config.yaml",
        numbers={"per_rank_samples": lambda s: s.samples_per_rollout // s.world_size},
    ),
    "TinyZero/HEAD": recipe("tinyzero"),
    "TinyZero/orig": case(
        "paper", "paper --prompts-per-rollout 256 --samples-per-update 128 --epochs 15", rows=327680, framework="paper"
    ),
    "SimpleRL-Zoo": recipe(
        "simplerl-zoo",
        numbers={
            "rollouts_per_epoch_drop_last": lambda s: s.rows // s.prompts_per_rollout,
            "data_epochs_by_prompts": lambda s: round(float(s.data_epochs), 3),
            "dataloader_passes_drop_last": lambda s: Fraction(s.rollouts, s.rows // s.prompts_per_rollout),
            "wrong_answer_if_minibatch_taken_as_batch": lambda s: round(
                float(read_steps(s, 100, "update").data_epochs), 1
            ),
        },
    ),
    "DAPO": recipe("dapo", beyond="rows_per_unique_prompt_about gen_batches_per_epoch_drop_last"),
    "CleanRL default": case("cleanrl", "python cleanrl/ppo.py"),
    "torchtune ppo mistral": case(
        "torchtune", "tune run ppo_full_finetune_single_device --config mistral/7B_full_ppo_low_memory", rows=100000
    ),
}

ELSEWHERE: dict[str, str] = {
    "AReaL boba": "test_areal.py::test_boba",
    "ROLL critic": "test_roll.py::test_the_critic_passes_once",
    "SB3 default 1e6": "test_sb3.py::test_defaults",
    "lm-human-preferences sentiment": "test_lm_human_preferences.py::test_sentiment",
    "NeMo-Aligner ppo default": "test_nemo_aligner.py::test_ppo_default",
    "open-instruct olmo3 7b think": "test_open_instruct.py::test_olmo3_7b_think",
    **{
        f"open-instruct packs={packs}": "test_open_instruct.py::test_packs"
        for packs in ("8 M=4", "10 M=4", "3 M=4", "6 M=4", "11 M=8")
    },
    "prime-rl default": "test_prime_rl.py::test_default",
    "torchtune grpo dev": "test_torchtune.py::test_grpo_dev",
    "TRL<=0.11 step() / LLaMA-Factory": "test_llamafactory.py::test_golden",
    "TRL PPOTrainer >=0.17 GA=8 M=4": "test_trl_ppo.py::test_updates_do_not_follow_num_mini_batches",
    "TRL PPOTrainer >=0.17 GA=2 M=4": "test_trl_ppo.py::test_accumulation_against_minibatches",
    "TRL PPOTrainer >=0.17 GA=1 M=4": "test_trl_ppo.py::test_accumulation_against_minibatches",
    "TRL PPOv2/PPO 0.9..0.16 GA=8 M=4": "test_trl_ppo.py::test_up_to_016_num_mini_batches_makes_the_rollout_larger",
    "lag one-step async K=1": "test_slime.py::test_one_rollout_ahead",
    "lag one-step async K=2": "test_slime.py::test_one_rollout_ahead",
    "rLLM verl N=513 r=4 dp=8": "test_rllm.py::test_rows_that_vary",
}
"""Cases that need more than a command line, with the test that has their numbers."""


def test_every_case_is_a_test() -> None:
    assert not set(LAUNCHES) & set(ELSEWHERE)
    assert set(LAUNCHES) | set(ELSEWHERE) == set(CASES)
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (PLANS / file).read_text(), place


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_published_case(name: str) -> None:
    launched = LAUNCHES[name]
    schedule = read(launched.launch, **launched.options).schedule
    expected = {key: value for key, value in CASES[name]["expected"].items() if key not in launched.beyond}
    assert {key: launched.numbers[key](schedule) for key in expected} == expected
