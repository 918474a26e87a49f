"""ms-swift's importance weights between engine and trainer, and what else its loss takes of the engine's log-probs.

The engine is a stand-in for a vLLM server that tells other log-probs than it draws from, so that there is something to correct.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.testing.trl_faults import replace_method
from tests.systems.swift import tiny
from tests.systems.swift.server import SETTINGS, serve
from tests.systems.trl.helpers import codes, explained, problems

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

FAR = {"RLS403"}
"""What the engine's distance is, rightly, called."""
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


@pytest.fixture
def corrected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:
    """Trains with the stand-in, after a fault, if there is one."""
    serve(monkeypatch)

    def train(fault: Callable[[Any], None] | None = None, **settings: Any) -> Report:
        def apply(trainer: Any) -> None:
            trainer.vllm_client.belongs_to(trainer)
            if fault is not None:
                fault(trainer)

        audit = StepAuditCallback(log_dir=None, listeners=())
        tiny.train(folder, [audit], apply=apply, **({"num_iterations": 2} | SETTINGS | settings))
        return audit.report

    return train


def outcome(report: Report, code: str) -> tuple[str, int]:
    [rule] = [rule for rule in report.rules if rule.code == code]
    return rule.verdict, rule.checks


@pytest.mark.parametrize("threshold", [2.0, 1.05])
@pytest.mark.parametrize("mode", MODES)
def test_the_documented_weights_are_silent(corrected: Callable[..., Report], mode: str, threshold: float) -> None:
    report = corrected(
        rollout_importance_sampling_mode=mode, rollout_importance_sampling_threshold=threshold, beta=0.04
    )
    deviates = mode == "sequence_mask"
    assert explained(report) == ({"swift-weights-of-tokens"} if deviates else set()), problems(report)
    assert codes(report) - FAR == ({"RLS312"} if deviates else set()), problems(report)
    assert report.verdict == "PASS"
    for code in ("RLS312", "RLS801"):
        assert outcome(report, code)[1] >= 12, (code, outcome(report, code))


def of_weights(change: Callable[[Any, Any], Any]) -> Callable[[Any], None]:
    """A fault: the weights are what this makes of log ratio and mask."""

    def fault(trainer: Any) -> None:
        def computes(original: Any, old: Any, engine: Any, mask: Any) -> Any:
            ratio, _ = original(old, engine, mask)
            return ratio, change(ratio, mask.float())

        replace_method(trainer, "_get_rollout_is_correction", computes)

    return fault


def without_log_probs(trainer: Any) -> None:
    """One sample of each rollout comes without the engine's log-probs."""
    infer = trainer.vllm_client.infer

    def loses(*args: Any, **kwargs: Any) -> Any:
        outputs = infer(*args, **kwargs)
        outputs[0].response.choices[0].logprobs = None
        return outputs

    trainer.vllm_client.infer = loses


def without_weights(trainer: Any) -> None:
    """The correction is configured, and switched off."""
    trainer.disable_rollout_importance_sampling = True


def weights_of_other_rows(trainer: Any) -> None:
    """The weights are those of the row before."""
    replace_method(
        trainer,
        "_get_rollout_is_correction",
        lambda original, *given: tuple(None if of is None else of.roll(1, 0) for of in original(*given)),
    )


def of_other_log_probs(trainer: Any) -> None:
    """The engine's log-probs that the weights are computed from are those of the row before."""
    replace_method(
        trainer,
        "_get_rollout_is_correction",
        lambda original, old, engine, mask: original(old, engine.roll(1, 0), mask),
    )


FAULTS: dict[str, tuple[Callable[[Any], None], str, str, str]] = {
    "all ones": (of_weights(lambda ratio, mask: torch.ones_like(ratio)), "token_truncate", "RLS312", "all of them 1"),
    "inverted": (of_weights(lambda ratio, mask: (-ratio).exp()), "token_truncate", "RLS312", "the inverse of each"),
    "bounds left out": (
        of_weights(lambda ratio, mask: ratio.exp()),
        "token_truncate",
        "RLS312",
        "without their bounds",
    ),
    "cut off and not 0": (
        of_weights(lambda ratio, mask: ratio.exp().clamp(max=1.05)),
        "token_mask",
        "RLS312",
        "cut off at their bounds, and not made 0",
    ),
    "products of sequences": (
        of_weights(lambda ratio, mask: (ratio * mask).sum(-1, keepdim=True).exp().clamp(max=1.05).expand_as(ratio)),
        "sequence_truncate",
        "RLS312",
        "products over the tokens of a sequence",
    ),
    "of tokens": (
        of_weights(lambda ratio, mask: ratio.exp().clamp(max=1.05)),
        "sequence_truncate",
        "RLS312",
        "those of a token",
    ),
    "of other rows": (weights_of_other_rows, "token_truncate", "RLS312", "others, up to "),
    "of others' log-probs": (of_other_log_probs, "token_truncate", "RLS312", "others, up to "),
    "no log-probs of the engine": (
        without_log_probs,
        "token_truncate",
        "RLS312",
        "no weights at all: the engine's log-probs did not come",
    ),
    "switched off": (without_weights, "token_truncate", "RLS312", "no weights at all: none were computed"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_other_weights_are_named(corrected: Callable[..., Report], name: str) -> None:
    fault, mode, code, words = FAULTS[name]
    threshold = 100.0 if name == "inverted" else 1.05
    report = corrected(fault, rollout_importance_sampling_mode=mode, rollout_importance_sampling_threshold=threshold)
    found = [finding for finding in report.findings if finding.code == code]
    assert found, problems(report)
    assert (found[0].severity, found[0].where.rollout) == ("error", 0)
    assert found[0].observed.startswith(words), found[0].observed


def not_in_the_loss(trainer: Any) -> None:
    """The weights are computed, and the loss takes ones."""

    def loss(original: Any, *args: Any, **kwargs: Any) -> Any:
        compute = trainer._get_rollout_is_correction
        trainer._get_rollout_is_correction = lambda *given: (compute(*given)[0], torch.ones_like(given[0]))
        try:
            return original(*args, **kwargs)
        finally:
            trainer._get_rollout_is_correction = compute

    replace_method(trainer, "_compute_loss", loss)


MASKS: dict[str, dict[str, Any]] = {
    "tokens of high entropy": {"top_entropy_quantile": 0.5, "beta": 0.04},
    "tokens of high entropy, corrected": {
        "top_entropy_quantile": 0.5,
        "rollout_importance_sampling_mode": "token_truncate",
    },
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_the_loss_are_those_of_its_formula(corrected: Callable[..., Report], name: str) -> None:
    report = corrected(**MASKS[name])
    assert codes(report) <= FAR, problems(report)
    assert outcome(report, "RLS801")[1] >= 12
    assert "RLS801" not in report.not_evaluated


def test_a_loss_without_the_weights_is_found(corrected: Callable[..., Report]) -> None:
    """Without weights the first loss is nearly 0, as its ratios are 1: the finding can say no more than how small it is."""
    report = corrected(not_in_the_loss, rollout_importance_sampling_mode="token_truncate")
    found, *_ = [finding for finding in report.findings if finding.code == "RLS801"]
    assert (found.severity, found.where.rollout) == ("error", 0), problems(report)
