"""TRL's importance weights between engine and trainer: the documented ones are silent in each mode, and others are named (RLS312).

The engine is a stand-in that tells other log-probs than it draws from, so that there is something to correct.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from rlstep_hooks.systems.trl.observe.correction import read_correction
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import problems
from tests.systems.trl.test_engine_distance import Engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from rlstep_hooks.judge.report import Report

pytestmark = pytest.mark.skipif(
    RELEASE.release < (1, 9),
    reason="earlier releases have one bound with another name, and before 1.0 no engine that a stand-in replaces",
)

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def far(logits: Tensor) -> tuple[Tensor, Tensor]:
    """What it draws from, and what it tells: a fifth off, token by token."""
    drawn = logits.log_softmax(-1)
    return drawn, drawn + 0.2 * torch.sin(torch.arange(len(drawn)))


def corrected(
    build: Callable[..., Any], change: Callable[[dict[str, Any]], None] | None = None, **settings: Any
) -> Report:
    """The report of a run whose weights a change alters, if there is one, as soon as they are computed."""
    given = {"vllm_importance_sampling_correction": True} | settings
    trainer, audit = build(max_steps=4, num_iterations=2, **given)
    trainer.use_vllm = True
    trainer.vllm_generation, trainer._last_loaded_step = Engine(trainer, far), -1
    if change is not None:
        compute, alter = trainer._generate_and_score_completions, change

        def computed(inputs: Any) -> Any:
            output = compute(inputs)
            alter(output)
            return output

        trainer._generate_and_score_completions = computed
    trainer.train()
    report: Report = audit.report
    return report


def weighed(report: Report) -> tuple[str, int]:
    [rule] = [rule for rule in report.rules if rule.code == "RLS312"]
    return rule.verdict, rule.checks


@pytest.mark.parametrize("bounds", [(None, 3.0), (0.9, 1.1), (0.9, None)], ids=["usual", "narrow", "lower"])
@pytest.mark.parametrize("mode", MODES)
def test_the_documented_weights_are_silent(
    build: Callable[..., Any], mode: str, bounds: tuple[float | None, float | None]
) -> None:
    lower, upper = bounds
    report = corrected(
        build,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=lower,
        vllm_importance_sampling_clip_max=upper,
    )
    verdict, checks = weighed(report)
    assert verdict == "PASS"
    # Two rollouts and four losses. Weights that are all 0 have the checksum of nothing, and are not compared in the loss.
    assert checks == 6 or (mode == "sequence_mask" and 2 <= checks < 6)
    assert [finding for finding in report.findings if finding.code == "RLS312"] == []


def ones(output: dict[str, Any]) -> None:
    output["importance_sampling_ratio"] = torch.ones_like(output["importance_sampling_ratio"])


def inverted(output: dict[str, Any]) -> None:
    output["importance_sampling_ratio"] = (output["sampling_per_token_logps"] - output["old_per_token_logps"]).exp()


def unbounded(output: dict[str, Any]) -> None:
    output["importance_sampling_ratio"] = (output["old_per_token_logps"] - output["sampling_per_token_logps"]).exp()


def of_sequences(output: dict[str, Any]) -> None:
    distance = (output["old_per_token_logps"] - output["sampling_per_token_logps"]) * output["completion_mask"]
    output["importance_sampling_ratio"] = distance.sum(-1, keepdim=True).exp().clamp(0.9, 1.1)


def masked(output: dict[str, Any]) -> None:
    unbounded(output)
    ratio = output["importance_sampling_ratio"]
    output["importance_sampling_ratio"] = ratio.masked_fill((ratio < 0.9) | (ratio > 1.1), 0.0)


def shifted(output: dict[str, Any]) -> None:
    output["importance_sampling_ratio"] = output["importance_sampling_ratio"].roll(1, 0)


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "all ones": (ones, "all of them 1"),
    "inverted": (inverted, "the inverse of each"),
    "bounds left out": (unbounded, "without their bounds"),
    "of sequences": (of_sequences, "those of a sequence"),
    "masked": (masked, "made 0 outside of their bounds, and not cut off"),
    "of other rows": (shifted, "others, up to "),
}


@pytest.mark.parametrize("name", FAULTS)
def test_other_weights_are_named(build: Callable[..., Any], name: str) -> None:
    change, words = FAULTS[name]
    lower, upper = (None, 100.0) if name == "inverted" else (0.9, 1.1)
    report = corrected(
        build,
        change,
        vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_min=lower,
        vllm_importance_sampling_clip_max=upper,
    )
    [found] = [finding for finding in report.findings if finding.code == "RLS312"]
    assert (found.severity, found.where.rollout) == ("error", 0), problems(report)
    assert found.observed.startswith(words)


def test_weights_that_move_on_the_way_to_the_loss_are_named_in_its_micro_batch(build: Callable[..., Any]) -> None:
    trainer, audit = build(max_steps=4, num_iterations=2, vllm_importance_sampling_correction=True)
    trainer.use_vllm = True
    trainer.vllm_generation, trainer._last_loaded_step = Engine(trainer, far), -1
    prepare = trainer._prepare_inputs

    def prepared(batch: Any) -> Any:
        inputs = prepare(batch)
        if trainer.state.global_step == 1:
            inputs = inputs | {"importance_sampling_ratio": inputs["importance_sampling_ratio"].roll(1, 0)}
        return inputs

    trainer._prepare_inputs = prepared
    trainer.train()
    [found] = [finding for finding in audit.report.findings if finding.code == "RLS312"]
    assert (found.severity, found.where.update, found.observed) == ("error", 1, "other importance weights")


def test_a_mode_that_was_not_read_is_not_compared() -> None:
    class Settings:
        vllm_importance_sampling_mode = "geometric_truncate"

    assert read_correction(Settings()) is None
