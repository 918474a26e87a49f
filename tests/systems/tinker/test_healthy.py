"""Healthy runs have no finding, and what is declared as compared is evaluated in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tinker_cookbook.rl.train import KLReferenceConfig

from rlstep_hooks.systems.tinker.observe.audit import TinkerAudit
from tests.systems.broken import MESSAGE, break_method
from tests.systems.tinker.environments import TwoTurnBuilder, with_test_set
from tests.systems.tinker.tiny import served, trained, trained_at

if TYPE_CHECKING:
    from pathlib import Path

HEALTHY: dict[str, dict[str, Any]] = {
    "as the recipe has it": {},
    "two updates": {"num_substeps": 2},
    "updates of different sizes": {"num_substeps": 3, "loss_fn": "ppo"},
    "ppo with bounds": {
        "num_substeps": 4,
        "loss_fn": "ppo",
        "loss_fn_config": {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1},
    },
    "cispo": {"num_substeps": 2, "loss_fn": "cispo"},
    "checkpoints": {"save_every": 1, "rolling_save_every": 1},
    "temperature": {"temperature": 0.7},
    "KL after the update": {"compute_post_kl": True},
    "equal groups left out": {"remove_constant_reward_groups": True, "group": 2, "groups": 6, "num_substeps": 2},
    "one sample a group": {"group": 1, "groups": 6},
    "a KL penalty": {"kl_penalty_coef": 0.1, "kl_reference_config": KLReferenceConfig(base_model="tiny/model")},
    "a discounted KL penalty": {
        "kl_penalty_coef": 0.1,
        "kl_discount_factor": 0.9,
        "kl_reference_config": KLReferenceConfig(base_model="tiny/model"),
    },
    "stable_reinforce": {"loss_fn": "stable_reinforce"},
    "gspo": {"loss_fn": "gspo", "num_substeps": 2},
    "a test set": {"builder": with_test_set(), "eval_every": 1},
    "turns that go on": {"builder": TwoTurnBuilder(continues=True), "num_substeps": 2},
    "turns of data of their own": {"builder": TwoTurnBuilder(continues=False), "num_substeps": 2},
    "several epochs": {"builder": TwoTurnBuilder(continues=True), "num_epochs": 2, "max_steps": None},
    "errors tolerated": {"rollout_error_tolerance": True},
    "more steps than are compared each time": {"max_steps": 12, "groups": 2},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy(home: Path, tmp_path: Path, name: str) -> None:
    """No finding but what the configuration itself means."""
    report = trained(home, tmp_path, **HEALTHY[name])
    assert report is not None
    expected = {"one sample a group": ["RLS505"]}.get(name, [])
    assert [found.code for found in report.findings if found.severity != "info"] == expected, report.findings
    assert report.verdict == "PASS"


def test_numbers_that_cannot_be_measured(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost their topics, and the run goes on."""
    break_method(monkeypatch, TinkerAudit, "_measure")
    report = trained(home, tmp_path)
    assert report is not None
    lost = {what for what, why in report.not_evaluated.items() if MESSAGE in why}
    assert lost >= {"log_ratio", "advantages", "formula", "sampler", "samples", "mask"}
    assert "order" not in lost
    assert [found for found in report.findings if found.severity != "info"] == []
    assert report.counts.updates == report.schedule.updates


def test_resumed(home: Path, tmp_path: Path) -> None:
    """A run that goes on from a checkpoint is counted from there."""
    with served(home) as address:
        trained_at(address, tmp_path, audited=False, max_steps=2, num_substeps=2, save_every=1, learning_rate=1e-3)
        report = trained_at(address, tmp_path, max_steps=4, num_substeps=2, save_every=1, learning_rate=1e-3)
    assert report is not None
    assert [found for found in report.findings if found.severity != "info"] == []
    assert (report.verdict, report.counts.rollouts, report.counts.updates) == ("PASS", 2, 4)
