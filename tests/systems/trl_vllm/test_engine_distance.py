"""Why the log-probs of a real vLLM engine are far from the trainer's: each cause is named in real training, and none where none fits.

The causes are settings of vLLM itself, or of TRL on its way to it. In tests/systems/trl/test_engine_distance.py a stand-in has the same
in more releases.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rlstep_hooks import StepAuditCallback
from tests.systems.trl.helpers import codes, problems
from tests.systems.trl_vllm.run import colocated, prepare

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

prepare()


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., StepAuditCallback]:
    """Train with an engine that computes in float32; `change` is applied to the trainer before."""

    def train(
        change: Callable[[Any], None] = lambda trainer: None, dtype: str = "float32", **settings: Any
    ) -> StepAuditCallback:
        import trl.generation.vllm_generation as module

        # TRL leaves the dtype to vLLM, which takes a float32 model as bfloat16.
        monkeypatch.setattr(module, "LLM", functools.partial(module.LLM, dtype=dtype, kv_cache_memory_bytes=1 << 26))
        audit = StepAuditCallback(log_dir=None, listeners=())
        trainer = colocated(tmp_path, sure=True, callbacks=[audit], **{"max_steps": 4} | settings)
        change(trainer)
        trainer.train()
        return audit

    return train


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0.7}, {"num_iterations": 2}, {"dtype": "bfloat16"}, {"lora": True}],
    ids=str,
)
def test_an_engine_that_computes_what_the_trainer_does_is_no_finding(
    trained: Callable[..., StepAuditCallback], settings: dict[str, Any]
) -> None:
    audit = trained(**settings)
    assert not problems(audit.report)
    (rule,) = (rule for rule in audit.report.rules if rule.code == "RLS403")
    assert rule.verdict == "PASS"
    assert rule.checks >= 2


def engine_setting(**changed: Any) -> Callable[[Any], None]:
    """Settings that TRL hands to vLLM, and that the trainer does not have."""

    def change(trainer: Any) -> None:
        for name, value in changed.items():
            assert hasattr(trainer.vllm_generation, name)
            setattr(trainer.vllm_generation, name, value)

    return change


def raw(trainer: Any) -> None:
    """vLLM's own default for log-probs: those before the temperature."""
    runner = trainer.vllm_generation.llm.llm_engine.model_executor.driver_worker.model_runner
    assert runner.sampler.logprobs_mode == "processed_logprobs"
    runner.sampler.logprobs_mode = runner.sampler.topk_topp_sampler.logprobs_mode = "raw_logprobs"


def answered(change: Callable[[list[Any]], list[Any]]) -> Callable[[Any], None]:
    """The log-probs in vLLM's answers stand in other places."""

    def on(trainer: Any) -> None:
        generation = trainer.vllm_generation
        generate = generation.generate

        def changed(*args: Any, **kwargs: Any) -> Any:
            prompts, tokens, log_probs, last = generate(*args, **kwargs)
            return prompts, tokens, change(log_probs), last

        generation.generate = changed

    return on


CAUSES: dict[str, tuple[dict[str, Any], str]] = {
    "cooler": ({"change": engine_setting(temperature=0.6)}, "temperature 0.6"),
    "warmer": ({"change": engine_setting(temperature=1.35)}, "temperature 1.35"),
    "temperature twice": ({"change": engine_setting(temperature=0.49), "temperature": 0.7}, "temperature 0.49"),
    "raw log-probs": ({"change": raw, "temperature": 0.7}, "temperature 1"),
    "top_k": ({"change": engine_setting(top_k=10)}, "top_k 10"),
    "top_k, configured": ({"top_k": 5}, "top_k 5"),
    "top_p": ({"change": engine_setting(top_p=0.8)}, "top_p 0.8"),
    "top_p, configured, cooler": ({"top_p": 0.7, "temperature": 0.8}, "top_p 0.7"),
    "other samples": ({"change": answered(lambda rows: rows[::-1])}, "those of other samples"),
    "one late": ({"change": answered(lambda rows: [[row[0], *row[:-1]] for row in rows])}, "the token before it"),
    "one early": ({"change": answered(lambda rows: [[*row[1:], row[-1]] for row in rows])}, "the token after it"),
    "in bfloat16, cooler": ({"change": engine_setting(temperature=0.6), "dtype": "bfloat16"}, "temperature 0.6"),
}


@pytest.mark.parametrize("name", CAUSES)
def test_a_cause_is_named(trained: Callable[..., StepAuditCallback], name: str) -> None:
    settings, words = CAUSES[name]
    audit = trained(**settings)
    found = [finding for finding in audit.report.findings if finding.code == "RLS403"]
    assert found, "the distance is a finding"
    assert words in found[0].observed
    assert all(words in finding.observed or "the engine" not in finding.observed for finding in found), (
        "nor another one"
    )


def noisy(rows: list[Any]) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [
        [[value + 0.3 * float(torch.randn((), generator=generator)) for value in token] for token in row]
        for row in rows
    ]


def test_what_nothing_explains_gets_no_name(trained: Callable[..., StepAuditCallback]) -> None:
    audit = trained(answered(noisy))
    assert "RLS403" in codes(audit.report)
    finding = next(finding for finding in audit.report.findings if finding.code == "RLS403")
    assert "the engine" not in finding.observed
    assert "the weights that were compared are equal" in finding.why
