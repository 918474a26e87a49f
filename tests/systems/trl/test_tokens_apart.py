"""Single tokens that a mean hides: faults of +d and -d are found by the numbers of tokens, and healthy runs in bfloat16 are silent.

A model in bfloat16 that is sure of some tokens rounds as trained ones do: that of `test_scored_alone`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from packaging.version import Version

from rlstep_hooks.record.events import Measured
from tests.faults.mistakes.weights import EngineStandIn
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import codes, events_of, problems
from tests.systems.trl.test_scored_alone import sharp_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from rlstep_hooks import StepAuditCallback
    from rlstep_hooks.planning.finding import Finding

pytestmark = pytest.mark.skipif(Version("1.16") > RELEASE, reason="the faults are written for the scoring of 1.16")

FROM = 2
"""The update from which on a fault acts."""


def both_ways(log_probs: Tensor, by: float, share: float, rows: int = 8) -> Tensor:
    """Log-probs of which a share of the tokens of the first rows is off, by +`by` and by -`by` in turns: a mean of 0."""
    before = (torch.arange(log_probs.shape[1] + 1) * share).floor()
    chosen = before.diff() > 0
    off = (by * torch.where(chosen.cumsum(0) % 2 == 0, 1.0, -1.0) * chosen).repeat(log_probs.shape[0], 1)
    off[rows:] = 0.0
    return log_probs + off


def scored_with(trainer: Any, change: Callable[[Tensor], Tensor], *, in_loss: bool) -> None:
    """Have a change applied to the log-probs of the loss, or to old ones."""
    original = trainer._get_per_token_logps_and_entropies

    def scores(*args: Any, **kwargs: Any) -> Any:
        log_probs, *others = original(*args, **kwargs)
        acts = torch.is_grad_enabled() == in_loss and trainer.state.global_step >= FROM
        return change(log_probs) if acts else log_probs, *others

    trainer._get_per_token_logps_and_entropies = scores


def settings_of(**more: Any) -> dict[str, Any]:
    return {
        "model": sharp_model(),
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "max_completion_length": 48,
        "learning_rate": 1e-4,
        "max_steps": 6,
    } | more


def of_code(audit: StepAuditCallback, code: str) -> Finding:
    return next(finding for finding in audit.report.findings if finding.code == code)


def measured(audit: StepAuditCallback, of: str, *names: str) -> list[tuple[Any, ...]]:
    """Numbers of all rollouts or micro-batches that have the first of them."""
    values = [one for event in events_of(audit) if isinstance(event, Measured) for one in getattr(event, of)]
    return [tuple(getattr(one, name) for name in names) for one in values if getattr(one, names[0]) is not None]


def passed(audit: StepAuditCallback, code: str) -> None:
    """Look that a rule compared tokens and found them right."""
    [outcome] = [rule for rule in audit.report.rules if rule.code == code]
    assert (outcome.verdict, outcome.note) == ("PASS", ""), outcome


def test_healthy_bf16_leaves_tokens_outside_and_is_silent(build: Callable[..., Any]) -> None:
    trainer, audit = build(**settings_of(bf16=True, num_iterations=2))
    trainer.train()
    assert not problems(audit.report)
    passed(audit, "RLS301")
    names = ("sampling_outside", "sampling_gap_99", "sampling_gap", "max_sampling_gap", "sampling_known")
    numbers = measured(audit, "microbatches", *names)
    assert numbers
    for outside, far, mean, largest, tokens in numbers:
        assert 0 <= mean <= far <= largest
        assert 0 <= outside <= 1
        assert tokens > 0
    assert any(largest > 0 for _, _, _, largest, _ in numbers), "bfloat16 rounds otherwise in generation"
    passed(audit, "RLS313")


def test_half_of_one_rows_old_log_probs_off_by_as_much_up_as_down(build: Callable[..., Any]) -> None:
    trainer, audit = build(**settings_of(num_iterations=2))
    scored_with(trainer, lambda of: both_ways(of, 0.3, 0.5, rows=1), in_loss=False)
    trainer.train()
    finding = of_code(audit, "RLS301")
    assert "tokens are outside of [0.9, 1.1]" in finding.observed
    assert "0.3 in the 99th percentile" in finding.observed
    assert finding.where.update == FROM


def test_old_log_probs_that_the_mean_hides_in_bf16(build: Callable[..., Any]) -> None:
    trainer, audit = build(**settings_of(bf16=True, num_iterations=2))
    scored_with(trainer, lambda of: both_ways(of, 0.11, 0.4), in_loss=False)
    trainer.train()
    finding = of_code(audit, "RLS301")
    assert finding.expected.startswith("at most 26.23% of the tokens outside of [0.9, 1.1]")
    assert finding.where.update == FROM


@pytest.mark.parametrize(("bf16", "by", "share", "rows"), [(True, 0.11, 0.4, 8), (False, 0.3, 0.5, 1)])
def test_log_probs_of_the_loss_that_are_not_those_of_generation(
    build: Callable[..., Any], bf16: bool, by: float, share: float, rows: int
) -> None:
    trainer, audit = build(**settings_of(bf16=bf16))
    scored_with(trainer, lambda of: both_ways(of, by, share, rows), in_loss=True)
    trainer.train()
    finding = of_code(audit, "RLS313")
    assert "tokens are outside of [0.9, 1.1]" in finding.observed
    assert finding.expected.startswith("at most") == bf16
    assert finding.where.update == FROM


class OffEngine(EngineStandIn):
    """An engine that tells log-probs which are off."""

    change: Callable[[Tensor], Tensor] | None = None

    def generate(self, **kwargs: Any) -> Any:
        first, tokens, log_probs, last = super().generate(**kwargs)
        if self.change is not None:
            of_rows = [self.change(torch.tensor(row).reshape(1, -1)).flatten().tolist() for row in log_probs]
            log_probs = [[[value] for value in row] for row in of_rows]
        return first, tokens, log_probs, last


def with_engine(trainer: Any, change: Callable[[Tensor], Tensor] | None = None) -> None:
    trainer.use_vllm = True
    trainer.vllm_importance_sampling_correction = True
    trainer.vllm_generation = OffEngine(trainer)
    trainer.vllm_generation.change = change
    trainer._last_loaded_step = -1


def test_an_engine_beside_a_trainer_in_bf16_is_silent(build: Callable[..., Any]) -> None:
    trainer, audit = build(**settings_of(bf16=True, num_iterations=2))
    with_engine(trainer)
    trainer.train()
    assert not problems(audit.report)
    passed(audit, "RLS403")
    names = ("sampler_gap_outside", "sampler_gap_99", "sampler_gap_mean", "sampler_gap_max", "sampler_gap_tokens")
    for outside, far, mean, largest, tokens in measured(audit, "rollouts", *names):
        assert 0 < mean <= far <= largest
        assert 0 <= outside < 0.2
        assert tokens > 0


def test_an_engine_whose_log_probs_are_off_where_the_mean_shows_nothing(build: Callable[..., Any]) -> None:
    trainer, audit = build(**settings_of(num_iterations=2))
    with_engine(trainer, lambda of: both_ways(of, 0.11, 0.4))
    trainer.train()
    finding = of_code(audit, "RLS403")
    assert finding.expected.startswith("at most 26.23% of the tokens outside of [0.9, 1.1]")
    assert "tokens are outside of [0.9, 1.1]" in finding.observed
    assert finding.where.rollout == 0
    assert "RLS403" in codes(audit.report)
