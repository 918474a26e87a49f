"""`python -m tests.systems.openrlhf.random_runs --runs 20 --seed 0`: random legal launches of OpenRLHF, trained for real.

None may be accused. `tests/systems/random_launches.py` says how they are trained and what is printed.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.openrlhf.observe.ray_hooks import HOOK
from tests.systems.openrlhf.launch import Assets, launch, model_rewards, reinforce
from tests.systems.random_launches import LIMIT, SHARE, Launched, some_of, train

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.planning.finding import Finding

CORRECTION = "algo.advantage.is_correction"

PLAIN: dict[str, list[Any]] = {
    "algo.advantage.gamma": [1.0, 0.95],
    "algo.advantage.lambd": [1.0, 0.9],
    "algo.advantage.no_std_norm": [True],
    "algo.kl.init_coef": [0.0, 0.01, 0.5],
    "algo.kl.use_loss": [True],
    "algo.kl.estimator": ["k1", "k2", "k3"],
    "algo.kl.unbiased_gradient": [True],
    "algo.kl.target": [0.1],
    "algo.kl.horizon": [10, 10000],
    "actor.policy_loss_type": ["ppo", "gspo"],
    "actor.loss_agg_mode": ["token-mean", "seq-mean-token-mean"],
    "actor.eps_clip_low_high": [(0.2, 0.28), (0.01, 0.02), (3e-4, 4e-4)],
    "actor.dual_clip": [1.5, 10.0],
    "actor.entropy_coef": [0.0, 0.01, -0.01],
    "actor.adam.lr": [1e-6, 1e-4, 1e-2],
    "actor.adam.betas": [(0.8, 0.999), (0.0, 0.9)],
    "actor.adam.eps": [1e-6],
    "actor.adam.weight_decay": [0.01, 0.5],
    "actor.max_norm": [0.01, 100.0],
    "actor.lr_scheduler": ["constant", "constant_with_warmup", "linear", "cosine", "cosine_with_min_lr"],
    "actor.lr_warmup_ratio": [0.0, 0.3],
    "actor.min_lr_ratio": [0.0, 0.5],
    "actor.gradient_checkpointing_enable": [True],
    "ds.zero_stage": [0, 1, 2, 3],
    "ds.param_dtype": ["bf16"],
    "ds.attn_implementation": ["sdpa", "eager"],
    "ds.packing_samples": [True],
    "ds.adam_offload": [True],
    "ds.grad_accum_dtype": ["fp32"],
    "data.max_samples": [22, 32],
    "data.max_len": [20, 64],
    "rollout.max_new_tokens": [4, 30],
    "rollout.micro_batch_size": [1, 3, 8],
    "rollout.n_samples_per_prompt": [2, 3, 4],
    "rollout.batch_size": [4, 6, 8],
    "rollout.temperature": [0.7, 1.5],
    "rollout.top_p": [0.9],
    "train.max_epochs": [1, 2, 3],
    "train.num_episodes": [1, 2],
    "train.dynamic_batch_enable": [True],
    "train.max_tokens_per_gpu": [70, 200],
    "train.seed": [1, 7],
    "train.full_determinism_enable": [True],
    "reward.clip_range": [(-0.2, 0.2), (0.0, 10.0)],
    "reward.overlong_buffer_len": [4.0],
    "reward.stop_properly_penalty_coef": [0.0, 0.5, -0.5],
    "ref.offload": [True],
    "vllm.enable_prefix_caching": [True],
    "ckpt.save_steps": [1, 2],
}
"""Flags and their values; how often a value stands there says how often it is drawn."""
ESTIMATORS = ["reinforce", "reinforce_baseline", "rloo", "group_norm", "dr_grpo", "flash_reinforce", "gae", "gae"]
ALONE = {"reinforce", "flash_reinforce", "gae"}
"""Estimators that take one sample of a prompt."""
BATCHES = [(8, 4), (8, 2), (4, 4), (4, 1), (12, 4), (16, 8), (6, 3)]
"""Samples of an update and of a micro-batch, which must divide each other."""
OF_A_CRITIC: dict[str, list[Any]] = {
    "critic.value_clip": [0.5, 0.01],
    "critic.freezing_steps": [0, 1],
    "critic.adam.lr": [1e-5, 1e-3],
    "critic.adam.weight_decay": [0.1],
    "critic.lr_scheduler": ["constant", "linear"],
    "critic.max_norm": [0.01, 100.0],
}
CORRECTIONS: list[dict[str, Any]] = [
    {f"{CORRECTION}_level": "token", f"{CORRECTION}_mode": "clip", f"{CORRECTION}_threshold": (0.99, 1.01)},
    {f"{CORRECTION}_level": "token", f"{CORRECTION}_mode": "mask"},
    {f"{CORRECTION}_level": "token", f"{CORRECTION}_mode": "mask", f"{CORRECTION}_threshold": (1.01,)},
    {f"{CORRECTION}_level": "seq", f"{CORRECTION}_mode": "mask", f"{CORRECTION}_threshold": (0.999, 1.001)},
    {f"{CORRECTION}_level": "seq", f"{CORRECTION}_gating": "binary_kl", f"{CORRECTION}_threshold": (1e-5,)},
    {f"{CORRECTION}_level": "token", f"{CORRECTION}_gating": "tv", f"{CORRECTION}_threshold": (0.005,)},
]
"""What corrects for the engine's log-probs."""
FILTERS = [(0.2, 0.9), (0.38, 1.0)]
"""Means of a group's rewards between which it is trained."""


def draw(seed: int, number: int, assets: Assets, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw what is given to a launch, and which part of it was drawn."""
    rng = random.Random(f"openrlhf/{seed}/{number}")
    drawn = some_of(PLAIN, rng)
    estimator = rng.choice(ESTIMATORS)
    drawn["algo.advantage.estimator"] = estimator
    drawn["train.batch_size"], drawn["train.micro_batch_size"] = rng.choice(BATCHES)
    if estimator in ALONE and rng.random() < SHARE:
        drawn["rollout.n_samples_per_prompt"] = 1
    if estimator == "gae":
        drawn |= some_of(OF_A_CRITIC, rng) | {"critic.num_gpus_per_node": 1}
    if rng.random() < SHARE:
        drawn |= rng.choice(CORRECTIONS)
    if rng.random() < SHARE:
        drawn |= model_rewards(assets)
    elif drawn.get("rollout.n_samples_per_prompt") != 1 and rng.random() < SHARE:
        drawn |= {"algo.dynamic_filtering_enable": True, "algo.dynamic_filtering_range": rng.choice(FILTERS)}
    return reinforce(assets, folder, rows=32) | drawn, drawn


def is_true(finding: Finding, drawn: dict[str, Any]) -> bool:
    """Whether a finding says what OpenRLHF is known to do with such flags: such findings have a name. With dynamic batches a rollout
    that does not fill an update is not trained at all (replay_buffer.py:107, 0.11.2), which RLS209 says rightly."""
    unfilled = (
        drawn.get("train.dynamic_batch_enable") and finding.code == "RLS209" and "ask for no update" in finding.why
    )
    return bool(finding.deviation or unfilled)


def prepare(folder: Path) -> Callable[[int, int], Launched]:
    """Make what launches share in a folder; returns what launches a draw."""
    assets = Assets.write(folder)
    extensions = Path(os.environ.get("TORCH_EXTENSIONS_DIR", folder / "extensions"))

    def trained(seed: int, number: int) -> Launched:
        where = folder / str(number)
        flags, drawn = draw(seed, number, assets, where)
        variables = {"RLSTEP_DIR": str(where / "log"), "RAY_RUNTIME_ENV_HOOK": HOOK}
        outcome = launch(flags, where, environment=variables, extensions=extensions, limit=LIMIT)
        return Launched(drawn, outcome, where / "log")

    return trained


if __name__ == "__main__":
    sys.exit(train("openrlhf", prepare, is_true))
