"""Why an engine's log-probs are far from the trainer's: each cause in real training is named, and none where nothing explains it.

The engine is a stand-in with weights of its own, which generates token by token; the real one is in tests/systems/trl_vllm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from rlstep_hooks.observe.engine_distance import alternatives, closest
from tests.faults.mistakes.weights import EngineStandIn
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import codes, problems

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks import StepAuditCallback

needs_engine = pytest.mark.skipif(
    RELEASE.release < (1, 0),
    reason="earlier releases have vLLM's own client in the trainer, which no stand-in replaces",
)


def kept(log_probs: Tensor, which: Tensor) -> Tensor:
    return log_probs.masked_fill(~which, -torch.inf).log_softmax(-1)


def top_k(log_probs: Tensor, k: int) -> Tensor:
    return kept(log_probs, log_probs >= log_probs.topk(k).values[-1])


def top_p(log_probs: Tensor, p: float) -> Tensor:
    ordered, order = log_probs.exp().sort(descending=True)
    inside = torch.empty_like(order, dtype=torch.bool)
    inside[order] = ordered.cumsum(0) - ordered < p
    return kept(log_probs, inside)


def min_p(log_probs: Tensor, p: float) -> Tensor:
    return kept(log_probs, log_probs.exp() >= p * log_probs.exp().max())


def twice(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    return log_probs, log_probs


class Engine(EngineStandIn):
    """An engine that draws and tells by other rules than the trainer scores."""

    def __init__(self, trainer: Any, distributions: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__(trainer)
        self._other = distributions
        self.answer: Callable[[list[Any]], list[Any]] = list
        self.stale = False

    def load(self, weights: dict[str, Any]) -> None:
        if not self.stale:
            super().load(weights)

    def _distributions(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return self._other(logits)

    def generate(self, **kwargs: Any) -> Any:
        first, tokens, log_probs, last = super().generate(**kwargs)
        return first, tokens, self.answer(log_probs), last


def healthy(logits: Tensor) -> tuple[Tensor, Tensor]:
    return twice(logits.log_softmax(-1))


@pytest.fixture
def trained(build: Callable[..., Any]) -> Callable[..., tuple[Engine, StepAuditCallback]]:
    """Train with an engine; `change` is applied to it before."""

    def train(
        distributions: Callable[[Tensor], tuple[Tensor, Tensor]] = healthy,
        change: Callable[[Engine], None] = lambda engine: None,
        **settings: Any,
    ) -> tuple[Engine, StepAuditCallback]:
        # Two passes, so that old log-probs are planned also without an engine.
        trainer, audit = build(**{"max_steps": 4, "num_iterations": 2} | settings)
        with torch.no_grad():
            trainer.model.model.norm.weight.mul_(6)  # a model that is sure of some tokens, as trained ones are
        trainer.use_vllm = True
        trainer.vllm_importance_sampling_correction = True
        engine = Engine(trainer, distributions)
        trainer.vllm_generation = engine
        trainer._last_loaded_step = -1
        change(engine)
        trainer.train()
        return engine, audit

    return train


@needs_engine
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"num_iterations": 3}], ids=str)
def test_an_engine_that_tells_what_the_trainer_computes_is_no_finding(
    trained: Callable[..., Any], settings: dict[str, Any]
) -> None:
    temperature = settings.get("temperature", 1.0)
    _, audit = trained(lambda logits: twice((logits / temperature).log_softmax(-1)), **settings)
    assert not problems(audit.report)
    (rule,) = (rule for rule in audit.report.rules if rule.code == "RLS403")
    assert rule.verdict == "PASS"
    assert rule.checks >= 2


def others_first(answers: list[Any]) -> list[Any]:
    """The answers of the samples in the order in which they were not asked."""
    return answers[::-1]


def one_late(answers: list[Any]) -> list[Any]:
    """Each log-prob at the token after its own."""
    return [[answer[0], *answer[:-1]] for answer in answers]


def one_early(answers: list[Any]) -> list[Any]:
    return [[*answer[1:], answer[-1]] for answer in answers]


def answered(change: Callable[[list[Any]], list[Any]]) -> Callable[[Engine], None]:
    return lambda engine: setattr(engine, "answer", change)


CAUSES: dict[str, tuple[dict[str, Any], str]] = {
    "cooler": ({"distributions": lambda x: twice((x / 0.6).log_softmax(-1))}, "temperature 0.6"),
    "warmer": ({"distributions": lambda x: twice((x / 1.35).log_softmax(-1))}, "temperature 1.35"),
    "raw": (
        {"distributions": lambda x: ((x / 0.7).log_softmax(-1), x.log_softmax(-1)), "temperature": 0.7},
        "temperature 1",
    ),
    "temperature twice": (
        {"distributions": lambda x: twice((x / 0.49).log_softmax(-1)), "temperature": 0.7},
        "temperature 0.49",
    ),
    "top_k": ({"distributions": lambda x: twice(top_k(x.log_softmax(-1), 10))}, "top_k 10"),
    "top_p": ({"distributions": lambda x: twice(top_p(x.log_softmax(-1), 0.8))}, "top_p 0.8"),
    "min_p": ({"distributions": lambda x: twice(min_p(x.log_softmax(-1), 0.1))}, "min_p 0.1"),
    "top_p, cooler": (
        {"distributions": lambda x: twice(top_p((x / 0.8).log_softmax(-1), 0.7)), "temperature": 0.8},
        "top_p 0.7",
    ),
    "other samples": ({"change": answered(others_first)}, "those of other samples"),
    "one late": ({"change": answered(one_late)}, "at each token that of the token before it"),
    "one early": ({"change": answered(one_early)}, "at each token that of the token after it"),
}


@needs_engine
@pytest.mark.parametrize("name", CAUSES)
def test_a_cause_is_named(trained: Callable[..., Any], name: str) -> None:
    settings, words = CAUSES[name]
    _, audit = trained(**settings)
    finding = next(finding for finding in audit.report.findings if finding.code == "RLS403")
    assert words in finding.observed
    assert finding.where.rollout == 0


def noisy(logits: Tensor) -> tuple[Tensor, Tensor]:
    own = logits.log_softmax(-1)
    return own, own + 0.3 * torch.randn_like(own)


@needs_engine
@pytest.mark.parametrize(
    "settings",
    [
        {"distributions": noisy},
        {"change": lambda engine: setattr(engine, "stale", True), "learning_rate": 1e-2},
        {"distributions": lambda x: twice(top_p((x / 0.6).log_softmax(-1), 0.8))},
    ],
    ids=["noise", "old weights", "two causes"],
)
def test_what_nothing_explains_gets_no_name(trained: Callable[..., Any], settings: dict[str, Any]) -> None:
    _, audit = trained(**settings)
    assert "RLS403" in codes(audit.report)
    finding = next(finding for finding in audit.report.findings if finding.code == "RLS403")
    assert "the engine" not in finding.observed
    assert "weights first" in finding.fix or "RLS415" in finding.fix


def test_every_cause_is_found_among_its_own_alternatives() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, tokens = 3 * torch.randn(16, 500, generator=generator), torch.randint(0, 20, (16,), generator=generator)
    names, values = alternatives(logits, tokens, 0.9)
    assert names[0] == ""
    assert torch.allclose(values[0], (logits / 0.9).log_softmax(-1).gather(1, tokens[:, None])[:, 0])
    for name, engine in zip(names[1:], values[1:], strict=True):
        distances = (values - engine).abs().mean(1)
        best = closest(("=", *names[1:]), distances.tolist())
        assert (values[names.index(best)] - engine).abs().max() < 1e-6 if best else distances[0] < 1e-6, name
