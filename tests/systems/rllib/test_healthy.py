"""Healthy runs of RLlib's PPO are silent, and train bit for bit as without the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch

from rlstep_hooks import StepAuditRLlib
from tests.systems.rllib.tiny import config, trained

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report

HEALTHY: dict[str, Any] = {
    "two environments, a clip of the norm": config(),
    "schedules, no limit, mini-batches that run on": config(
        lr=[[0, 3e-3], [300, 1e-4]], entropy_coeff=[[0, 0.05], [300, 0.0]], grad_clip=None, minibatch_size=48, use_kl_loss=False
    ),
    "a continuous space, shared layers, each gradient clipped": config(
        "Pendulum-v1", model={"vf_share_layers": True}, grad_clip_by="value", lambda_=0.95, vf_clip_param=1e6
    ),
    "whole episodes, one pass": config(batch_mode="complete_episodes", num_epochs=1, vf_loss_coeff=0.5, grad_clip_by="norm"),
    "a runner in its own process": config(runners=1, envs=3, shuffle_batch_per_epoch=True, clip_param=0.02),
    "no critic in the loss, one large mini-batch": config(envs=1, use_critic=False, minibatch_size=128, num_epochs=2),
}


def _assert_silent(report: Report) -> None:
    loud = [finding for finding in report.findings if finding.severity != "info"]
    assert not loud, "\n".join(map(str, loud))
    assert report.verdict == "PASS", report.not_evaluated


@pytest.mark.parametrize("name", HEALTHY)
def test_clean_runs(name: str) -> None:
    report = trained(HEALTHY[name])
    _assert_silent(report)
    assert (report.counts.rollouts, report.counts.weight_syncs) == (3, 3)
    assert report.counts.updates == report.counts.microbatches > 0
    unseen = {"RLS201", "RLS204", "RLS301", "RLS402", "RLS405", "RLS502", "RLS515", "RLS516", "RLS517", "RLS521", "RLS605", "RLS801", "RLS803", "RLS805", "RLS806"}
    assert not unseen & set(report.not_evaluated)
