"""Healthy runs of AReaL's PPOTrainer are silent, and train bit for bit as without the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from areal.api.cli_args import NormConfig, RejectionSamplingConfig

from tests.detection.outcomes import Clean, note
from tests.systems.areal.tiny import trained

if TYPE_CHECKING:
    from pathlib import Path

HEALTHY: dict[str, dict[str, Any]] = {
    "recomputed log-probs, rewards normalised in their groups": {},
    "the engine's log-probs, two passes over the rows": {"actor.recompute_logprob": False, "total_train_epochs": 2},
    "decoupled loss, samples one rollout old, whole rollouts normalised, a schedule": {
        "actor.use_decoupled_loss": True,
        "rollout.max_head_offpolicyness": 1,
        "actor.reward_norm": None,
        "actor.adv_norm": NormConfig(),
        "actor.gae_lambda": 0.9,
        "actor.optimizer.lr_scheduler_type": "cosine",
        "actor.optimizer.warmup_steps_proportion": 0.25,
        "actor.optimizer.min_lr_ratio": 0.1,
    },
    "mini-batches of several sizes, a dual clip, rewards scaled": {
        "actor.ppo_n_minibatches": 3,
        "actor.eps_clip": 0.05,
        "actor.eps_clip_higher": 0.1,
        "actor.c_clip": 3.0,
        "actor.reward_scaling": 2.0,
        "actor.reward_bias": -0.5,
        "actor.optimizer.lr_scheduler_type": "linear",
    },
    "means of groups, discounted tokens normalised in groups, two mini-batches, warm-up to a constant": {
        "actor.reward_norm": NormConfig(mean_level="group", std_level=None, group_size=4),
        "actor.adv_norm": NormConfig(mean_level="group", std_level="group", group_size=4, eps=1e-3),
        "actor.gae_lambda": 0.8,
        "actor.discount": 0.95,
        "actor.ppo_n_minibatches": 2,
        "actor.optimizer.warmup_steps_proportion": 0.5,
    },
    "samples up to two rollouts old, the engine's log-probs, no normalisation": {
        "actor.recompute_logprob": False,
        "actor.reward_norm": None,
        "rollout.max_head_offpolicyness": 2,
        "total_train_epochs": 3,
        "actor.eps_clip": 0.1,
    },
    "SGD, one mini-batch, a narrow limit of the gradient": {
        "actor.optimizer.type": "sgd",
        "actor.optimizer.lr": 0.5,
        "actor.optimizer.weight_decay": 0.1,
        "actor.optimizer.gradient_clipping": 1e-3,
        "actor.ppo_n_minibatches": 1,
    },
    "another temperature, biased deviations, clipped rewards, other moments of Adam": {
        "gconfig.temperature": 0.7,
        "actor.temperature": 0.7,
        "actor.reward_clip": 1.0,
        "actor.reward_norm": NormConfig(mean_level="group", std_level="group", group_size=4, std_unbiased=False),
        "actor.optimizer.beta1": 0.5,
        "actor.optimizer.beta2": 0.9,
        "actor.optimizer.eps": 1e-5,
        "actor.optimizer.weight_decay": 0.2,
    },
    "one sample a prompt, large rollouts, eight mini-batches, longer completions": {
        "gconfig.n_samples": 1,
        "gconfig.max_new_tokens": 16,
        "train_dataset.batch_size": 12,
        "rollout.consumer_batch_size": 12,
        "total_train_epochs": 3,
        "actor.reward_norm": NormConfig(),
        "actor.ppo_n_minibatches": 8,
        "actor.c_clip": 1.5,
    },
    "a KL penalty against a reference, discounted, rewards of whole rollouts": {
        "reference": True,
        "actor.kl_ctl": 0.2,
        "actor.kl_estimator": "k2",
        "actor.gae_lambda": 0.9,
        "actor.reward_norm": NormConfig(),
        "total_train_epochs": 2,
    },
    "decoupled loss beside its approximation, two epochs, old samples": {
        "actor.use_decoupled_loss": True,
        "actor.prox_logp_method": "metrics",
        "rollout.max_head_offpolicyness": 2,
        "total_train_epochs": 2,
        "actor.eps_clip_higher": 0.5,
        "actor.optimizer.lr_scheduler_type": "cosine",
    },
}

PARTLY: dict[str, tuple[dict[str, Any], set[str]]] = {
    "a KL penalty on its own log-probs, as AReaL's default has it": ({"actor.kl_ctl": 0.1}, {"RLS516"}),
    "means of the group's other samples": (
        {"actor.reward_norm": NormConfig(mean_level="group", std_level="group", group_size=4, mean_leave1out=True)},
        {"RLS516"},
    ),
    "ratios of sequences": ({"actor.importance_sampling_level": "sequence"}, {"RLS801"}),
    "SAPO": ({"actor.use_sapo_loss": True}, {"RLS801"}),
    "tokens far from the engine do not count": (
        {
            "actor.use_decoupled_loss": True,
            "actor.rejection_sampling": RejectionSamplingConfig(),
            "rollout.max_head_offpolicyness": 1,
        },
        {"RLS801"},
    ),
    "the penalty of the norm's second moment": ({"actor.m2_threshold": 0.04}, {"RLS801"}),
}
"""Healthy runs of which something is not compared, and the rules that say so."""

SEEN = {
    "RLS101", "RLS201", "RLS204", "RLS306", "RLS402", "RLS405", "RLS502", "RLS515", "RLS516", "RLS517", "RLS605", "RLS801", "RLS803",
    "RLS804", "RLS805", "RLS806", "RLS808", "RLS810",
}  # fmt: skip
"""Rules that have something to compare in each of these runs."""
IN_PART = "looked at "
"""How the reason begins of a rule that compared something in the first rollouts alone, of more than are compared each time."""


@pytest.mark.parametrize("name", HEALTHY)
def test_clean_runs(name: str, home: Path, tmp_path: Path) -> None:
    report = trained(home, tmp_path, **HEALTHY[name])
    loud = [finding for finding in report.findings if finding.severity != "info"]
    note(Clean(framework="AReaL", alarms=tuple(finding.code for finding in loud)))
    assert not loud, "\n".join(map(str, loud))
    assert report.verdict == "PASS", report.not_evaluated
    rollouts = 12 // HEALTHY[name].get("train_dataset.batch_size", 4) * HEALTHY[name].get("total_train_epochs", 1)
    updates = HEALTHY[name].get("actor.ppo_n_minibatches", 4) * rollouts
    assert (report.counts.rollouts, report.counts.weight_syncs, report.counts.updates) == (rollouts, rollouts, updates)
    unseen = {code: why for code, why in report.not_evaluated.items() if code in SEEN and not why.startswith(IN_PART)}
    assert not unseen


@pytest.mark.parametrize("name", PARTLY)
def test_clean_runs_that_are_compared_in_part(name: str, home: Path, tmp_path: Path) -> None:
    settings, without = PARTLY[name]
    report = trained(home, tmp_path, **settings)
    loud = [finding for finding in report.findings if finding.severity != "info"]
    note(Clean(framework="AReaL", alarms=tuple(finding.code for finding in loud)))
    assert not loud, "\n".join(map(str, loud))
    assert report.verdict == "PASS", report.not_evaluated
    assert SEEN & report.not_evaluated.keys() == without


def test_a_workflow_decides_samples_and_masks(home: Path, tmp_path: Path) -> None:
    settings = {"actor.reward_norm": None, "actor.adv_norm": NormConfig()}
    report = trained(home, tmp_path, workflow="tests.systems.areal.tiny.OneOrTwo", **settings)
    loud = [finding for finding in report.findings if finding.severity != "info"]
    assert not loud, "\n".join(map(str, loud))
    assert report.verdict == "PASS", report.not_evaluated
    assert report.counts.rollouts == 3
    assert report.counts.samples > 48
    assert "RLS516" not in report.not_evaluated
    assert "RLS518" in report.not_evaluated


ONE_AT_A_TIME = {
    "train_dataset.batch_size": 1, "rollout.consumer_batch_size": 1, "gconfig.n_samples": 1, "actor.ppo_n_minibatches": 1,
    "actor.reward_norm": None, "total_train_steps": 4,
}  # fmt: skip
"""Rollouts of one sample: of several the order depends on which the server has finished first."""


def test_training_is_the_same_with_the_audit(home: Path, tmp_path: Path) -> None:
    """Weights and the state of the optimizer; and each attribute is what it was."""
    ends = []
    for audited in (False, True):
        kept: dict[str, Any] = {}

        def look(trainer: Any, kept: dict[str, Any] = kept) -> None:
            engine = trainer.actor
            kept["weights"] = [of.detach().to_local().clone() for of in engine.model.parameters()]
            kept["moments"] = [of["exp_avg"].to_local().clone() for of in engine.optimizer.state.values()]
            kept["random"] = torch.get_rng_state()
            owners = (engine, engine.actor, trainer.rollout)
            kept["wrapped"] = [name for of in owners for name in vars(of) if hasattr(vars(of)[name], "__wrapped__")]

        trained(home, tmp_path / str(audited), finally_=look, audited=audited, **ONE_AT_A_TIME)
        ends.append(kept)
    without, with_audit = ends
    assert all(map(torch.equal, without["weights"], with_audit["weights"]))
    assert all(map(torch.equal, without["moments"], with_audit["moments"]))
    assert torch.equal(without["random"], with_audit["random"])
    assert not with_audit["wrapped"]
