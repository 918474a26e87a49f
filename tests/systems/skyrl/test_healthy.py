"""Healthy runs of SkyRL's RayPPOTrainer are silent, and train bit for bit as without the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import ray
import torch

from tests.detection.outcomes import Clean, note
from tests.systems.skyrl.tiny import trained

if TYPE_CHECKING:
    from pathlib import Path

HEALTHY: dict[str, dict[str, Any]] = {
    "GRPO, token_mean": {},
    "several passes, a KL term in the loss, sequence_mean, a schedule": {
        "trainer.update_epochs_per_batch": 2,
        "trainer.epochs": 2,
        "trainer.algorithm.use_kl_loss": True,
        "trainer.algorithm.kl_loss_coef": 0.1,
        "trainer.algorithm.loss_reduction": "sequence_mean",
        "trainer.policy.optimizer_config.scheduler": "cosine",
        "trainer.policy.optimizer_config.num_warmup_steps": 3,
    },
    "RLOO, dual clip, prompt_mean, larger groups, one mini-batch": {
        "trainer.algorithm.advantage_estimator": "rloo",
        "trainer.algorithm.policy_loss_type": "dual_clip",
        "trainer.algorithm.loss_reduction": "prompt_mean",
        "trainer.algorithm.eps_clip_low": 0.01,
        "trainer.algorithm.eps_clip_high": 0.02,
        "trainer.algorithm.clip_ratio_c": 1.05,
        "generator.n_samples_per_prompt": 6,
        "trainer.policy_mini_batch_size": 4,
    },
    "REINFORCE++, a KL penalty in the rewards, token_mean_legacy, longer completions": {
        "trainer.algorithm.advantage_estimator": "reinforce++",
        "trainer.algorithm.use_kl_in_reward": True,
        "trainer.algorithm.kl_loss_coef": 0.05,
        "trainer.algorithm.kl_estimator_type": "k1",
        "trainer.algorithm.gamma": 0.95,
        "trainer.algorithm.loss_reduction": "token_mean_legacy",
        "generator.sampling_params.max_generate_length": 14,
        "trainer.policy.optimizer_config.scheduler": "linear",
    },
    "Dr. GRPO, seq_mean_token_sum_norm, another temperature, four mini-batches": {
        "trainer.algorithm.grpo_norm_by_std": False,
        "trainer.algorithm.loss_reduction": "seq_mean_token_sum_norm",
        "trainer.algorithm.max_seq_len": 40,
        "generator.sampling_params.temperature": 1.3,
        "trainer.policy_mini_batch_size": 1,
        "trainer.micro_train_batch_size_per_gpu": 2,
        "trainer.policy.optimizer_config.max_grad_norm": 0.05,
    },
    "old log-probs of the whole rollout at once": {"trainer.recompute_old_logprobs_per_minibatch": False},
    "more rollouts than are compared each time, larger ones, three mini-batches, no limit of the gradient, other moments of Adam": {
        "trainer.train_batch_size": 3,
        "trainer.policy_mini_batch_size": 1,
        "trainer.micro_train_batch_size_per_gpu": 2,
        "trainer.epochs": 3,
        "trainer.algorithm.loss_reduction": "prompt_mean",
        "trainer.policy.optimizer_config.adam_betas": [0.5, 0.9],
        "trainer.policy.optimizer_config.weight_decay": 0.3,
        "trainer.policy.optimizer_config.max_grad_norm": 0.0,
    },
    "dual clip, several passes, a KL term by its absolute value, one sample a micro-batch, an end before the rows": {
        "trainer.algorithm.policy_loss_type": "dual_clip",
        "trainer.algorithm.clip_ratio_c": 1.2,
        "trainer.algorithm.eps_clip_low": 0.05,
        "trainer.algorithm.eps_clip_high": 0.3,
        "trainer.algorithm.use_kl_loss": True,
        "trainer.algorithm.kl_loss_coef": 0.3,
        "trainer.algorithm.kl_estimator_type": "abs",
        "trainer.algorithm.loss_reduction": "sequence_mean",
        "trainer.update_epochs_per_batch": 3,
        "trainer.micro_train_batch_size_per_gpu": 1,
        "trainer.max_training_steps": 2,
        "trainer.policy.optimizer_config.scheduler": "linear",
        "trainer.policy.optimizer_config.num_warmup_steps": 4,
    },
    "GRPO with a KL penalty in the rewards by k2, pairs of samples, an evaluation before and after each rollout": {
        "trainer.algorithm.use_kl_in_reward": True,
        "trainer.algorithm.kl_loss_coef": 0.2,
        "trainer.algorithm.kl_estimator_type": "k2",
        "generator.n_samples_per_prompt": 2,
        "trainer.micro_train_batch_size_per_gpu": 2,
        "trainer.eval_interval": 1,
        "trainer.eval_before_train": True,
        "trainer.eval_batch_size": 4,
        "generator.eval_sampling_params.temperature": 0.5,
    },
    "Dr. GRPO on large groups, one update, k2, short completions": {
        "trainer.train_batch_size": 2,
        "generator.n_samples_per_prompt": 8,
        "trainer.policy_mini_batch_size": 2,
        "trainer.micro_train_batch_size_per_gpu": 8,
        "trainer.algorithm.grpo_norm_by_std": False,
        "trainer.algorithm.use_kl_loss": True,
        "trainer.algorithm.kl_loss_coef": 1.0,
        "trainer.algorithm.kl_estimator_type": "k2",
        "generator.sampling_params.max_generate_length": 3,
    },
    "REINFORCE++ with discounted returns, two passes, seq_mean_token_sum_norm, a cosine": {
        "trainer.algorithm.advantage_estimator": "reinforce++",
        "trainer.algorithm.gamma": 0.8,
        "trainer.update_epochs_per_batch": 2,
        "trainer.algorithm.loss_reduction": "seq_mean_token_sum_norm",
        "trainer.algorithm.max_seq_len": 64,
        "trainer.algorithm.eps_clip_low": 0.02,
        "trainer.policy.optimizer_config.scheduler": "cosine",
        "trainer.policy.optimizer_config.max_grad_norm": 0.01,
    },
}
PARTLY: dict[str, tuple[dict[str, Any], set[str]]] = {
    "MaxRL": ({"trainer.algorithm.advantage_estimator": "maxrl"}, {"RLS516"}),
    "advantages normalised over the batch": (
        {"trainer.algorithm.advantage_batch_normalize": True},
        {"RLS801", "RLS517"},
    ),
    "a term of the entropy": ({"trainer.algorithm.use_entropy_loss": True}, {"RLS801"}),
    "importance weights of the engine": (
        {"trainer.algorithm.off_policy_correction.tis_ratio_type": "token"},
        {"RLS801"},
    ),
    "no log-probs of the engine": ({"generator.sampling_params.logprobs": None}, {"RLS403"}),
    "prompts whose rewards are all the same do not count": (
        {"trainer.algorithm.zero_variance_filter": True},
        {"RLS518"},
    ),
    "an adaptive penalty": (
        {
            "trainer.algorithm.use_kl_in_reward": True,
            "trainer.algorithm.kl_ctrl.type": "adaptive",
            "trainer.algorithm.kl_loss_coef": 0.2,
        },
        {"RLS516", "RLS515"},
    ),
}
"""Healthy runs of which something is not compared, and the rules that say so."""

SEEN = {
    "RLS101", "RLS201", "RLS204", "RLS306", "RLS402", "RLS403", "RLS405", "RLS502", "RLS509", "RLS515", "RLS516", "RLS517", "RLS605",
    "RLS801", "RLS803", "RLS804", "RLS805", "RLS806", "RLS808", "RLS810",
}  # fmt: skip
"""Rules that have something to compare in each of these runs."""
IN_PART = "looked at "
"""How the reason begins of a rule that compared something in the first rollouts alone, of more than are compared each time."""


@pytest.mark.parametrize("name", HEALTHY)
def test_clean_runs(name: str, home: Path, tmp_path: Path) -> None:
    settings = HEALTHY[name]
    report = trained(home, tmp_path, **settings)
    loud = [finding for finding in report.findings if finding.severity != "info"]
    note(Clean(framework="SkyRL", alarms=tuple(finding.code for finding in loud)))
    assert not loud, "\n".join(map(str, loud))
    assert report.verdict == "PASS", report.not_evaluated
    prompts = settings.get("trainer.train_batch_size", 4)
    rollouts = settings.get("trainer.max_training_steps", 12 // prompts * settings.get("trainer.epochs", 1))
    minibatches = prompts // settings.get("trainer.policy_mini_batch_size", 2)
    updates = minibatches * settings.get("trainer.update_epochs_per_batch", 1) * rollouts
    assert (report.counts.rollouts, report.counts.weight_syncs, report.counts.updates) == (
        rollouts,
        rollouts + 1,
        updates,
    )
    expected = SEEN - ({"RLS515"} if settings.get("trainer.algorithm.use_kl_in_reward") else set())
    # A limit of 0 is none.
    expected -= set() if settings.get("trainer.policy.optimizer_config.max_grad_norm", 1.0) else {"RLS808"}
    unseen = {
        code: why for code, why in report.not_evaluated.items() if code in expected and not why.startswith(IN_PART)
    }
    assert not unseen


@pytest.mark.parametrize("name", PARTLY)
def test_clean_runs_that_are_compared_in_part(name: str, home: Path, tmp_path: Path) -> None:
    settings, without = PARTLY[name]
    report = trained(home, tmp_path, **settings)
    loud = [finding for finding in report.findings if finding.severity != "info"]
    note(Clean(framework="SkyRL", alarms=tuple(finding.code for finding in loud)))
    assert not loud, "\n".join(map(str, loud))
    assert report.verdict == "PASS", report.not_evaluated
    assert (SEEN | {"RLS518"}) & report.not_evaluated.keys() == without


def _state(worker: Any) -> dict[str, Any]:
    """What training has made of a worker."""
    return {
        "weights": [of.detach().to_local().clone() for of in worker.model.parameters()],
        "moments": [of["exp_avg"].to_local().clone() for of in worker.optimizer.state.values()],
        "random": torch.get_rng_state(),
        "wrapped": [
            name
            for owner in (worker, worker.strategy)
            for name, value in vars(owner).items()
            if hasattr(value, "__wrapped__") or "rlstep" in name
        ],
    }


def test_training_is_the_same_with_the_audit(home: Path, tmp_path: Path) -> None:
    """Weights and the state of the optimizer; and each attribute is what it was."""
    ends = []
    for audited in (False, True):
        kept: dict[str, Any] = {}

        def look(trainer: Any, kept: dict[str, Any] = kept) -> None:
            (actor,) = trainer.policy_model._actor_handlers
            kept |= ray.get(actor.__ray_call__.remote(_state))
            kept["own"] = torch.get_rng_state()
            owners = (trainer, trainer.dispatch)
            kept["wrapped"] += [name for of in owners for name in vars(of) if hasattr(vars(of)[name], "__wrapped__")]

        trained(home, tmp_path / str(audited), finally_=look, audited=audited)
        ends.append(kept)
    without, with_audit = ends
    assert all(map(torch.equal, without["weights"], with_audit["weights"]))
    assert all(map(torch.equal, without["moments"], with_audit["moments"]))
    assert torch.equal(without["random"], with_audit["random"])
    assert torch.equal(without["own"], with_audit["own"])
    assert with_audit["wrapped"] == without["wrapped"]
