"""Healthy runs of RLlib's PPO are silent, and train bit for bit as without the audit."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.detection.outcomes import Clean, note
from tests.systems.rllib.tiny import config, learner_of, trained

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

HEALTHY: dict[str, tuple[Any, int]] = {
    "two environments, a clip of the norm": (config(), 0),
    "schedules, no limit, mini-batches that run on, attached in mid-run": (
        config(
            lr=[[0, 3e-3], [500, 1e-4]],
            entropy_coeff=[[0, 0.05], [500, 0.0]],
            grad_clip=None,
            minibatch_size=48,
            use_kl_loss=False,
        ),
        1,
    ),
    "a continuous space, shared layers, each gradient clipped": (
        config("Pendulum-v1", model={"vf_share_layers": True}, grad_clip_by="value", lambda_=0.95, vf_clip_param=1e6),
        0,
    ),
    "whole episodes, one pass": (
        config(batch_mode="complete_episodes", num_epochs=1, vf_loss_coeff=0.5, grad_clip_by="norm"),
        0,
    ),
    "a runner in its own process": (config(runners=1, envs=3, clip_param=0.02), 0),
    "evaluation between rollouts, two of them an iteration": (
        config()
        .evaluation(evaluation_interval=1, evaluation_num_env_runners=0, evaluation_duration=1)
        .reporting(min_sample_timesteps_per_iteration=200),
        0,
    ),
    "a policy without a critic in its loss, one large mini-batch": (
        config(envs=1, use_critic=False, minibatch_size=128, num_epochs=2),
        0,
    ),
}
"""Settings, and rollouts before the audit is attached."""

SEEN = {
    "RLS201", "RLS204", "RLS301", "RLS402", "RLS405", "RLS502", "RLS515", "RLS516", "RLS517", "RLS521", "RLS605", "RLS801", "RLS803",
    "RLS805", "RLS806",
}  # fmt: skip
"""Rules that have something to compare in each of these runs."""


def _assert_silent(report: Report) -> None:
    loud = [finding for finding in report.findings if finding.severity != "info"]
    assert not loud, "\n".join(map(str, loud))
    assert report.verdict == "PASS", report.not_evaluated


@pytest.mark.parametrize("name", HEALTHY)
def test_clean_runs(name: str) -> None:
    settings, before = HEALTHY[name]
    report = trained(settings, before=before)
    loud = tuple(finding.code for finding in report.findings if finding.severity != "info")
    note(Clean(framework="RLlib", alarms=loud))
    _assert_silent(report)
    rollouts = 6 if settings.min_sample_timesteps_per_iteration else 3
    assert (report.counts.rollouts, report.counts.weight_syncs) == (rollouts, rollouts)
    assert report.counts.updates == report.counts.microbatches > 0
    assert not SEEN & set(report.not_evaluated)
    assert ("gradient" in report.not_evaluated) == (settings.grad_clip_by != "global_norm")


def test_training_is_the_same_with_the_audit(tmp_path: Path) -> None:
    """Weights, the state of the optimizer and all random generators; and each attribute is what it was."""
    ends = []
    for audited in (False, True):
        random.seed(3), np.random.seed(3), torch.manual_seed(3)
        kept: dict[str, Any] = {}

        def look(algorithm: Any, kept: dict[str, Any] = kept, folder: Path = tmp_path / str(audited)) -> None:
            learner = learner_of(algorithm)
            kept["weights"] = {name: of.clone() for name, of in learner.module["default_policy"].state_dict().items()}
            kept["moments"] = [of["exp_avg"].clone() for of in learner.get_optimizer("default_policy").state.values()]
            kept["random"] = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
            owners = (algorithm, algorithm.env_runner_group, learner, learner.module["default_policy"])
            kept["wrapped"] = [name for of in owners for name in vars(of) if hasattr(vars(of)[name], "__wrapped__")]
            algorithm.save_to_path(str(folder))

        report = trained(config(), audited=audited, finally_=look)
        ends.append(kept)
        assert (report is not None) == audited
    without, with_audit = ends
    assert all(torch.equal(of, with_audit["weights"][name]) for name, of in without["weights"].items())
    assert all(map(torch.equal, without["moments"], with_audit["moments"]))
    assert without["random"][:2] == with_audit["random"][:2]
    assert torch.equal(without["random"][2], with_audit["random"][2])
    assert not with_audit["wrapped"]
