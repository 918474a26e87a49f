"""`python -m tests.systems.verl.random_runs --runs 20 --seed 0`: random legal launches of verl, trained for real. None may be accused.

`tests/systems/random_launches.py` says how they are trained and what is printed.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

from tests.systems.random_launches import LIMIT, SHARE, Launched, some_of, train
from tests.systems.verl import agent_turns
from tests.systems.verl.audited import ROOT
from tests.systems.verl.launch import Assets, critic, grpo, launch, reference, several_turns

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlstep_hooks.planning.finding import Finding

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
CORRECTION = "algorithm.rollout_correction"

PLAIN: dict[str, list[Any]] = {
    "algorithm.adv_estimator": [
        "grpo",
        "grpo",
        "grpo_vectorized",
        "rloo",
        "rloo_vectorized",
        "reinforce_plus_plus",
        "reinforce_plus_plus_baseline",
        "remax",
        "opo",
        "gpg",
        "grpo_passk",
        "gae",
        "gae",
        "optimal_token_baseline",
    ],
    "algorithm.norm_adv_by_std_in_grpo": [True, False],
    "algorithm.gamma": [1.0, 1.0, 0.95],
    "algorithm.lam": [1.0, 0.9],
    "algorithm.kl_penalty": ["kl", "abs", "mse", "low_var_kl"],
    "algorithm.kl_ctrl.type": ["fixed", "fixed", "adaptive"],
    f"{CORRECTION}.rollout_is": ["token", "sequence"],
    f"{CORRECTION}.rollout_is_threshold": [2.0, 1.01, "0.9_1.1"],
    f"{CORRECTION}.rollout_is_batch_normalize": [True, False],
    f"{CORRECTION}.bypass_mode": [True, False, False],
    f"{ACTOR}.policy_loss.loss_mode": [
        "vanilla",
        "vanilla",
        "gspo",
        "dppo_tv",
        "dppo_kl",
        "sapo",
        "gpg",
        "clip_cov",
        "kl_cov",
        "geo_mean",
        "cispo",
    ],
    f"{ACTOR}.loss_agg_mode": [
        "token-mean",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
        "token-sum",
    ],
    f"{ACTOR}.clip_ratio_low": [0.2, 0.1],
    f"{ACTOR}.clip_ratio_high": [0.2, 0.28],
    f"{ACTOR}.clip_ratio_c": [3.0, 10.0],
    f"{ACTOR}.entropy_coeff": [0, 0.01, -0.01],
    f"{ACTOR}.calculate_entropy": [True, False],
    f"{ACTOR}.kl_loss_coef": [0.001, 0.5],
    f"{ACTOR}.kl_loss_type": ["kl", "abs", "mse", "low_var_kl", "low_var_kl+", "k2", "k1+"],
    f"{ACTOR}.ppo_epochs": [1, 2, 3],
    f"{ACTOR}.shuffle": [True, False],
    f"{ACTOR}.data_loader_seed": [42, 7],
    f"{ACTOR}.ppo_mini_batch_size": [8, 4, 3, 2],
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": [1, 2, 4, 8],
    f"{ACTOR}.use_dynamic_bsz": [True, False, False],
    f"{ACTOR}.ppo_max_token_len_per_gpu": [80, 160, 16384],
    f"{ACTOR}.optim.lr": [1e-6, 1e-4, 1e-3],
    f"{ACTOR}.optim.lr_warmup_steps": [-1, 0, 2],
    f"{ACTOR}.optim.lr_warmup_steps_ratio": [0.0, 0.3],
    f"{ACTOR}.optim.lr_scheduler_type": ["constant", "cosine"],
    f"{ACTOR}.optim.min_lr_ratio": [0.0, 0.1],
    f"{ACTOR}.optim.num_cycles": [0.5, 1.0],
    f"{ACTOR}.optim.weight_decay": [0.0, 0.01, 0.5],
    f"{ACTOR}.optim.betas": [[0.9, 0.999], [0.8, 0.95]],
    f"{ACTOR}.optim.clip_grad": [1.0, 0.01, 100.0],
    f"{ACTOR}.optim.optimizer": ["AdamW", "AdamW", "Adam", "SGD"],
    f"{ACTOR}.strategy": ["fsdp", "fsdp2", "fsdp2"],
    f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype": ["fp32", "fp32", "bf16"],
    f"{ACTOR}.fsdp_config.model_dtype": ["fp32", "fp32", "bf16"],
    f"{ACTOR}.entropy_from_logits_with_chunking": [True, False],
    "actor_rollout_ref.model.enable_gradient_checkpointing": [True, False],
    "actor_rollout_ref.model.lora_rank": [0, 0, 0, 4],
    f"{ROLLOUT}.n": [1, 2, 3, 4],
    f"{ROLLOUT}.temperature": [1.0, 0.7, 1.5],
    f"{ROLLOUT}.top_p": [1.0, 1.0, 0.9],
    f"{ROLLOUT}.top_k": [-1, -1, 5],
    f"{ROLLOUT}.calculate_log_probs": [True, False],
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": [1, 3, 8],
    f"{ROLLOUT}.log_prob_use_dynamic_bsz": [True, False, False],
    "data.train_batch_size": [8, 8, 6, 5],
    "data.shuffle": [True, False],
    "data.seed": [1, 2],
    "data.max_response_length": [12, 5, 20],
    "trainer.total_epochs": [1, 2],
    "trainer.test_freq": [-1, 2],
    "trainer.val_before_train": [True, False],
    "trainer.balance_batch": [True, False],
    "trainer.use_v1": [True, True, False],
    "trainer.v1.trainer_mode": ["sync", "sync", "sync", "colocate_async"],
}
"""Settings and their values; how often a value stands there says how often it is drawn."""
OF_A_CRITIC: dict[str, list[Any]] = {
    "critic.cliprange_value": [0.5, 0.01],
    "critic.ppo_epochs": [1, 2],
    "critic.ppo_mini_batch_size": [8, 4, 3],
    "critic.loss_agg_mode": ["token-mean", "seq-mean-token-mean"],
    "critic.optim.lr": [1e-5, 1e-3],
    "critic.optim.clip_grad": [1.0, 0.01],
    "trainer.critic_warmup": [0, 0, 1],
}
TURNS: dict[str, list[Any]] = {
    f"{ROLLOUT}.multi_turn.max_assistant_turns": [2, 3, 5],
    "data.max_response_length": [30, 160, 400],
    f"{ROLLOUT}.agent.num_workers": [1, 2],
}
"""Settings of a run whose sessions call a tool behind each turn."""
TRUE = {
    "RLS506": ("data.shuffle", False),
    "RLS312": ("actor_rollout_ref.rollout.calculate_log_probs", False),
}
"""A finding that is right where a setting has a value: rows in the order of the file, a correction without the engine's log-probs."""


def draw(seed: int, number: int, assets: Assets) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw what is given to a launch, and which part of it was drawn."""
    rng = random.Random(f"verl/{seed}/{number}")
    ranks = rng.choice([1, 1, 1, 2])
    drawn = some_of(PLAIN, rng)
    given = grpo(assets, ranks=ranks)
    if drawn.get("algorithm.adv_estimator") == "gae":
        given |= critic(assets)
        drawn |= some_of(OF_A_CRITIC, rng)
    if rng.random() < SHARE:
        given |= several_turns(assets)
        drawn |= {"turns": True} | {name: rng.choice(values) for name, values in TURNS.items()}
    kind = rng.choice(["none", "none", "loss", "reward"])
    if kind != "none":
        given |= reference(loss=kind == "loss")
    if rng.random() < SHARE:
        given |= {"trainer.total_training_steps": 3}
    settings = {name: value for name, value in drawn.items() if name != "turns"}
    sizes = legal_sizes(given | settings, ranks)
    return given | settings | sizes, {"ranks": ranks, "reference": kind, **drawn, **sizes}


def legal_sizes(given: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The sizes that verl would refuse, as it takes them: a mini-batch is no larger than its batch, and the ranks share a batch evenly
    (0.9.1 workers/config/actor.py:225, critic.py `validate`, utils/config.py:124)."""
    batch, samples = int(given["data.train_batch_size"]), int(given[f"{ROLLOUT}.n"])
    sizes: dict[str, Any] = {}
    if batch * samples % ranks:
        batch = sizes["data.train_batch_size"] = batch - batch % ranks
    for name in (f"{ACTOR}.ppo_mini_batch_size", "critic.ppo_mini_batch_size"):
        if name in given and int(given[name]) > batch:
            sizes[name] = batch
    return sizes


def is_true(finding: Finding, drawn: dict[str, Any]) -> bool:
    """Whether a finding says what was drawn: of some tokens only, the engine's log-probs are others than the trainer's of all."""
    if finding.code == "RLS403" and "tokens that top_" in finding.why:
        return any(drawn.get(f"actor_rollout_ref.rollout.{name}") is not None for name in ("top_k", "top_p"))
    setting, value = TRUE.get(finding.code, ("", None))
    return bool(setting) and drawn.get(setting) == value


def prepare(folder: Path) -> Callable[[int, int], Launched]:
    """Make what launches share in a folder; returns what launches a draw."""
    assets = Assets.write(folder)

    def trained(seed: int, number: int) -> Launched:
        overrides, drawn = draw(seed, number, assets)
        where = folder / str(number)
        variables = {"RLSTEP_DIR": str(where / "log"), "PYTHONPATH": str(ROOT)}
        modules = [agent_turns.MODULE] if drawn.get("turns") else []
        outcome = launch(overrides, where, modules=modules, environment=variables, limit=LIMIT)
        return Launched(drawn, outcome, where / "log")

    return trained


if __name__ == "__main__":
    sys.exit(train("verl", prepare, is_true))
