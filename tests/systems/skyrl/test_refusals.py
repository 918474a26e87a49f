"""What is not followed is refused by name, and what the audit raises leaves the trainer's loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks import StepAuditError, StepAuditSkyRL
from tests.systems.skyrl.faults import FAULTS
from tests.systems.skyrl.tiny import trained

if TYPE_CHECKING:
    from pathlib import Path

NAMED = {
    "trainer.strategy": ("megatron", "trainer.strategy=megatron"),
    "trainer.placement.colocate_all": (True, "placement.colocate_all"),
    "trainer.policy.model.lora.rank": (4, "LoRA"),
    "trainer.fully_async.enabled": (True, "fully_async"),
    "trainer.algorithm.dynamic_sampling.type": ("filter", "dynamic_sampling"),
    "generator.step_wise_trajectories": (True, "step_wise_trajectories"),
    "trainer.remove_microbatch_padding": (True, "remove_microbatch_padding"),
    "trainer.max_tokens_per_microbatch": (64, "max_tokens_per_microbatch"),
    "trainer.critic.model.path": ("critic", "a critic"),
    "trainer.algorithm.policy_loss_type": ("gspo", "policy_loss_type=gspo"),
    "trainer.policy.fsdp_config.mixed_precision.param_dtype": ("bf16", "param_dtype=bf16"),
}


def test_what_is_not_followed_is_refused_by_name(home: Path, tmp_path: Path) -> None:
    """With one trainer, whose configuration is changed and changed back."""
    said: dict[str, str] = {}

    def breaks(trainer: Any) -> None:
        for name, (value, _) in NAMED.items():
            *sections, last = name.split(".")
            owner = trainer.cfg
            for section in sections:
                owner = getattr(owner, section)
            kept = getattr(owner, last)
            setattr(owner, last, value)
            with StepAuditSkyRL(trainer, log_dir=None, listeners=()) as audit:
                pass
            setattr(owner, last, kept)
            said[name] = audit.report.not_evaluated["order"]

        trainer.__class__ = type(
            "OwnTrainer", (type(trainer),), {"compute_advantages_and_returns": lambda self, data: data}
        )
        with StepAuditSkyRL(trainer, log_dir=None, listeners=()) as audit:
            pass
        said["own"] = audit.report.not_evaluated["order"]
        raise InterruptedError

    with pytest.raises(InterruptedError):
        trained(home, tmp_path, breaks=breaks, audited=False)
    assert all(f"{words} is not supported" in said[name] for name, (_, words) in NAMED.items()), said
    assert "OwnTrainer.compute_advantages_and_returns" in said["own"]


def test_an_error_is_raised_out_of_train(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "the rate is doubled")
    with pytest.raises(StepAuditError, match="RLS605"):
        trained(home, tmp_path, breaks=lambda trainer: fault.breaks(trainer, monkeypatch), options={"on_fail": "raise"})
