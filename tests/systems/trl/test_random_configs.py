"""Random legal configurations, trained for real: no false finding.

A few with a fixed seed run with all tests; RLSTEP_SOAK=100 (nox -s soak) runs that many new ones.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.testing.tiny_trl import tiny_trainer
from tests.systems.trl.conftest import RELEASE

SOAK = int(os.environ.get("RLSTEP_SOAK", "0"))
MICROBATCHES = 72
"""Upper bound of the micro-batches of one run, to keep it short."""


def reward(completions: Any, **kwargs: Any) -> list[float]:
    """Different for every completion of a rollout, so that a run without signal is never drawn."""
    return [zlib.crc32(str(text).encode()) % 7 + 0.01 * index for index, text in enumerate(completions)]


def another_reward(completions: Any, **kwargs: Any) -> list[float | None]:
    """None for some completions, as a reward that does not apply."""
    return [None if index % 5 == 3 else float(len(str(text)) % 3) for index, text in enumerate(completions)]


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Settings that TRL accepts, for runs of at most some dozen micro-batches."""
    batch = draw(st.integers(1, 4))
    accumulation = draw(st.integers(1, 4))
    periods = Version("0.18") <= RELEASE
    per_generation = draw(st.integers(1, 5)) if periods else accumulation
    iterations = draw(st.integers(1, 3))
    # 0.16 forms groups within one micro-batch, later releases within the generation batch.
    whole = batch if Version("0.17") > RELEASE else batch * per_generation
    groups = [g for g in range(2, whole + 1) if whole % g == 0]
    if not groups:
        batch, whole = 2 * batch, 2 * whole
        groups = [g for g in range(2, whole + 1) if whole % g == 0]
    group = draw(st.sampled_from(groups))
    prompts = max(batch * per_generation // group, 1)
    rows = draw(st.integers(prompts, 4 * prompts + 3))
    per_epoch = rows // prompts * per_generation * iterations
    config: dict[str, Any] = {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulation,
        "num_iterations": iterations,
        "num_generations": group,
        "rows": rows,
        "beta": draw(st.sampled_from([0.0, 0.0, 0.0, 0.04])),
        "max_completion_length": draw(st.integers(2, 8)),
        "lr_scheduler_type": draw(st.sampled_from(["linear", "cosine", "constant"])),
        "learning_rate": draw(st.sampled_from([1e-2, 1e-3])),
        "optim": draw(st.sampled_from(["adamw_torch", "adamw_torch_fused", "sgd", "adafactor", "rmsprop"])),
        "weight_decay": draw(st.sampled_from([0.0, 0.1])),
        "max_grad_norm": draw(st.sampled_from([1.0, 1e-3, 0.0])),
        "gradient_checkpointing": draw(st.booleans()),
    }
    if periods:
        config["steps_per_generation"] = per_generation
    if Version("0.17") <= RELEASE:
        config["shuffle_dataset"] = draw(st.booleans()) or rows % prompts != 0
    if Version("0.18") <= RELEASE:
        losses = ["grpo", "bnpo", "dr_grpo"] + (["dapo"] if Version("0.22") <= RELEASE else [])
        losses += ["cispo", "sapo", "vespo", "luspo"] if Version("1.0") <= RELEASE else []
        config["loss_type"] = draw(st.sampled_from(losses))
        config["scale_rewards"] = draw(st.booleans())
    if Version("0.24") <= RELEASE:
        config["scale_rewards"] = draw(st.sampled_from(["group", "batch", "none"]))
        if config["loss_type"] in ("grpo", "bnpo", "dr_grpo", "dapo"):
            config["importance_sampling_level"] = draw(st.sampled_from(["token", "token", "sequence"]))
        if config["loss_type"] == "luspo":
            config["importance_sampling_level"] = "sequence"
        config["top_entropy_quantile"] = draw(st.sampled_from([1.0, 1.0, 0.5]))
    if config["beta"] and draw(st.booleans()):
        config |= {
            "sync_ref_model": True,
            "ref_model_sync_steps": draw(st.integers(1, 3)),
            "ref_model_mixup_alpha": 0.6,
        }
    if Version("1.0") <= RELEASE and draw(st.booleans()):
        config["reward"] = [reward, another_reward]
        config["reward_weights"] = [1.0, 0.25]
        config["multi_objective_aggregation"] = draw(st.sampled_from(["sum_then_normalize", "normalize_then_sum"]))
    if draw(st.booleans()):
        config["max_steps"] = draw(st.integers(1, max(min(MICROBATCHES, 3 * per_epoch) // accumulation, 1)))
    else:
        epochs = [e for e in (0.5, 1.0, 1.5, 2.0, 3.0) if e * per_epoch <= MICROBATCHES] or [0.25]
        config["num_train_epochs"] = draw(st.sampled_from(epochs))
    return config


def allowed(finding: Any) -> bool:
    """Findings that are true: those that a known deviation of this release explains."""
    return bool(finding.deviation) and Version("1.9.1") > RELEASE


CANCELLING = {
    "per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "steps_per_generation": 2, "num_iterations": 3,
    "num_generations": 2, "rows": 6, "max_completion_length": 2, "learning_rate": 0.01, "lr_scheduler_type": "linear",
    "optim": "rmsprop", "shuffle_dataset": False, "loss_type": "grpo", "scale_rewards": True, "num_train_epochs": 1.0,
}  # fmt: skip
"""Found by the soak: both completions of a group become equal, their rewards differ, and so their gradients cancel to exactly 0."""


BARELY_MOVING = {
    "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "num_iterations": 3, "num_generations": 5, "rows": 5,
    "max_completion_length": 2, "learning_rate": 1e-3, "lr_scheduler_type": "linear", "optim": "sgd", "max_grad_norm": 1e-3,
    "steps_per_generation": 5, "shuffle_dataset": False, "loss_type": "grpo", "scale_rewards": "group", "num_train_epochs": 0.5,
}  # fmt: skip
"""Found by the soak: a whole step is clipped to 1e-6, and both tokens of a micro-batch round to the log-probs that they had."""


@settings(
    max_examples=SOAK or 10,
    derandomize=not SOAK,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(configs())
def test_a_healthy_run_has_no_finding(config: dict[str, Any]) -> None:
    trains_without_finding(config)


@pytest.mark.skipif(Version("0.18") > RELEASE, reason="this release has no steps_per_generation")
def test_gradients_of_equal_completions_may_cancel() -> None:
    trains_without_finding(CANCELLING)


@pytest.mark.skipif(Version("0.24") > RELEASE, reason="this release has no scale_rewards by name")
def test_a_step_may_be_too_small_for_two_tokens() -> None:
    trains_without_finding(BARELY_MOVING)


def trains_without_finding(config: dict[str, Any]) -> None:
    """Train, and look for findings that are not true."""
    audit = StepAuditCallback(log_dir=None, listeners=())
    with tempfile.TemporaryDirectory() as folder:
        trainer = tiny_trainer(Path(folder), callbacks=[audit], **{"reward": reward} | config)
        trainer.train()
    report = audit.report
    false = [str(f) for f in report.findings if f.severity != "info" and not allowed(f)]
    assert not false, (config, false, report.to_json())
    assert report.complete
    assert report.verdict == ("FAIL" if any(f.deviation for f in report.findings) else "PASS")
    assert report.counts.updates + report.counts.skipped_updates == trainer.state.global_step
    assert report.schedule is not None
    if not any(f.deviation for f in report.findings):
        assert report.counts.updates == report.schedule.updates
        assert report.counts.rollouts == report.schedule.rollouts
