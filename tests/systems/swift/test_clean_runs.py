"""Healthy runs of ms-swift's GRPO: as planned, without a finding; its deviation; training as without the audit."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
import torch

import rlstep_hooks
from rlstep_hooks import StepAuditCallback
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.record.events import Rollout
from rlstep_hooks.systems.engine.launches import reading_of
from tests.systems.swift import tiny
from tests.systems.trl.helpers import codes, events_of, explained, problems

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.judge.report import Report


def audited(folder: Path, **settings: Any) -> tuple[Report, StepAuditCallback]:
    audit = StepAuditCallback(on_fail="raise", log_dir=None, listeners=())
    tiny.train(folder, [audit], **settings)
    return audit.report, audit


HEALTHY: dict[str, tuple[dict[str, Any], tuple[int, int, int]]] = {
    "one pass": ({}, (6, 12, 6)),
    "two passes": ({"num_iterations": 2}, (6, 24, 12)),
    "a rollout of two updates": ({"steps_per_generation": 4}, (3, 12, 6)),
    "two rollouts for an update": ({"gradient_accumulation_steps": 4, "steps_per_generation": 2}, (6, 12, 3)),
    "two passes over two rollouts' update": (
        {"gradient_accumulation_steps": 8, "steps_per_generation": 4, "num_iterations": 2},
        (3, 24, 3),
    ),
    "one long window of three": ({"gradient_accumulation_steps": 3, "steps_per_generation": 2}, (6, 12, 4)),
    "bnpo": ({"loss_type": "bnpo", "num_iterations": 2}, (6, 24, 12)),
    "dr_grpo": ({"loss_type": "dr_grpo", "num_iterations": 2, "beta": 0}, (6, 24, 12)),
    "dapo": ({"loss_type": "dapo", "num_iterations": 2, "epsilon_high": 0.28}, (6, 24, 12)),
    "gspo": ({"importance_sampling_level": "sequence", "num_iterations": 2}, (6, 24, 12)),
    "two-sided clip": ({"delta": 1.5, "num_iterations": 2}, (6, 24, 12)),
    "rewards of the batch": ({"scale_rewards": "batch"}, (6, 12, 6)),
    "rloo": ({"advantage_estimator": "rloo", "kl_in_reward": "true"}, (6, 12, 6)),
    "rloo, divided by the group's deviation": ({"advantage_estimator": "rloo", "scale_rewards": "group"}, (6, 12, 6)),
    "reinforce++": ({"advantage_estimator": "reinforce_plus_plus", "kl_in_reward": "true"}, (6, 12, 6)),
    "rewards as they are": ({"scale_rewards": "none"}, (6, 12, 6)),
    "gdpo": ({"scale_rewards": "gdpo", "reward_funcs": ["tiny", "other"], "reward_weights": [1, 2]}, (6, 12, 6)),
    "cispo": ({"loss_type": "cispo", "num_iterations": 2, "epsilon_high": 5}, (6, 24, 12)),
    "sapo": ({"loss_type": "sapo", "num_iterations": 2, "tau_neg": 1.2}, (6, 24, 12)),
    "lora": ({"tuner_type": "lora", "lora_dropout": 0, "num_iterations": 2}, (6, 24, 12)),
    "a learning rate that falls": ({"lr_scheduler_type": "linear", "warmup_ratio": 0.2}, (6, 12, 6)),
    "resampled groups": ({"dynamic_sample": "true"}, (6, 12, 6)),
    "no shuffling": ({"dataset_shuffle": "false", "train_dataloader_shuffle": "false"}, (6, 12, 6)),
    "a run that max_steps ends": ({"max_steps": 4}, (4, 8, 4)),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_as_planned_passes(folder: Path, name: str) -> None:
    settings, (rollouts, microbatches, updates) = HEALTHY[name]
    report, _ = audited(folder, **settings)
    assert problems(report) == []
    assert report.verdict == "PASS"
    assert report.complete
    counts = report.counts
    assert (counts.rollouts, counts.microbatches, counts.updates) == (rollouts, microbatches, updates)
    assert (report.schedule.framework, report.schedule.old_logprob_source) == ("ms-swift", "at_rollout")
    assert counts.old_logprob_refreshes == rollouts


def test_the_dropout_of_adapters(folder: Path) -> None:
    """ms-swift's adapters drop 5 % unless told otherwise, so that old and new log-probs are not of the same network."""
    report, _ = audited(folder, tuner_type="lora", num_iterations=2)
    assert codes(report) == {"RLS301"}
    [finding] = [finding for finding in report.findings if finding.code == "RLS301"]
    assert finding.severity == "warning"
    assert "active dropout modules" in finding.why
    assert report.verdict == "PASS"


def test_every_link_of_a_plain_run_is_seen(folder: Path) -> None:
    report, audit = audited(folder, num_iterations=2)
    seen = {
        "RLS201",
        "RLS301",
        "RLS302",
        "RLS306",
        "RLS310",
        "RLS402",
        "RLS406",
        "RLS407",
        "RLS410",
        "RLS501",
        "RLS516",
        "RLS801",
        "RLS802",
    }
    assert not seen & set(report.not_evaluated)
    assert [values.lag for values in report.lags] == [0, 1]
    assert report.lags[0].max_abs_log_ratio < 1e-5
    assert report.lags[1].max_abs_log_ratio > 1e-4
    assert all(event.groups_intact for event in events_of(audit) if isinstance(event, Rollout))


def test_evaluation(folder: Path) -> None:
    report, audit = audited(
        folder, val_dataset=folder / "rows.jsonl", eval_strategy="steps", eval_steps=3, num_iterations=2
    )
    assert problems(report) == []
    purposes = [event.purpose for event in events_of(audit) if isinstance(event, Rollout)]
    assert purposes.count("training") == 6
    assert purposes.count("evaluation") == 4 * 12


def test_the_plans_of_launch_and_trainer_agree(folder: Path) -> None:
    settings = {"gradient_accumulation_steps": 4, "steps_per_generation": 2, "num_iterations": 2}
    words = ["swift", "rlhf", *tiny.arguments(folder, **settings)]
    of_launch = reading_of(words, Options(rows=12)).schedule
    seen: list[Any] = []
    report, _ = audited(folder, **settings, apply=lambda trainer: seen.append(rlstep_hooks.plan(trainer)))
    for schedule in (report.schedule, *seen):
        for field in (
            "framework", "version", "samples_per_rollout", "samples_per_update", "updates_per_rollout", "rollouts", "updates",
            "old_logprob_source", "lags", "ratio_one_updates", "data_epochs", "reference_source", "rows_dropped_per_epoch",
        ):  # fmt: skip
            assert getattr(schedule, field) == getattr(of_launch, field), field
    assert of_launch.updates_per_rollout == Fraction(1)


@pytest.mark.parametrize("top_k", [None, 20])
def test_top_k_is_not_off(folder: Path, top_k: int | None) -> None:
    """--top_k -1, the default: transformers' 50 acts, or what the model's generation_config says."""
    tiny.files(folder, top_k_of_model=top_k)
    audit = StepAuditCallback(log_dir=None, listeners=())
    tiny.train(folder, [audit], top_k=-1)
    [finding] = [finding for finding in audit.report.findings if finding.code == "RLS410"]
    assert finding.observed == f"top_k {top_k or 50}"
    assert explained(audit.report) == {"swift-top-k-of-the-model" if top_k else "swift-top-k-of-transformers"}
    assert codes(audit.report) == ({"RLS410"} if top_k else set())
    assert audit.report.verdict == ("FAIL" if top_k else "PASS")


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


@pytest.mark.parametrize("settings", [{}, {"tuner_type": "lora", "num_iterations": 2}], ids=["full", "lora"])
def test_bit_for_bit_the_same(folder: Path, settings: dict[str, Any]) -> None:
    plain = tiny.train(folder, **settings)
    after = torch.get_rng_state()
    audit = StepAuditCallback(log_dir=None, listeners=())
    trainer = tiny.train(folder, [audit], **settings)
    assert audit.report.counts.updates
    assert torch.equal(after, torch.get_rng_state())
    with_audit = weights(trainer)
    for name, value in weights(plain).items():
        assert torch.equal(value, with_audit[name]), name
    losses = [[entry.get("loss") for entry in one.state.log_history] for one in (plain, trainer)]
    assert losses[0] == losses[1]


def attributes(trainer: Any) -> dict[str, Any]:
    return {
        f"{name}.{key}": value
        for name, owner in (("trainer", trainer), ("accelerator", trainer.accelerator), ("model", trainer.model))
        for key, value in vars(owner).items()
        if callable(value)
    }


def test_nothing_stays_behind(folder: Path) -> None:
    before: dict[str, Any] = {}
    audit = StepAuditCallback(log_dir=None, listeners=())
    trainer = tiny.train(folder, apply=lambda trainer: before.update(attributes(trainer)))
    expected = set(attributes(trainer)) - set(before)  # what training itself leaves
    before.clear()
    trainer = tiny.train(folder, [audit], apply=lambda trainer: before.update(attributes(trainer)))
    after = attributes(trainer)
    assert set(after) - set(before) | {"trainer.train"} == expected | {"trainer.train"}
    assert not [name for name in before if name in after and after[name] is not before[name]]
    assert "train" not in vars(trainer)
    assert not trainer.optimizer.optimizer._optimizer_step_post_hooks
