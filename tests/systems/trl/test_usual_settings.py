"""Settings that real runs use, beyond the tiny run's own: reduced precision, small learning rates, adapters. No false finding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.testing.tiny_trl import tiny_config, tiny_model, tiny_reward, tiny_rows, tiny_tokenizer
from tests.faults.fault import after_update
from tests.reports import claimed, unproved
from tests.systems.trl.helpers import problems

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REUSED = {"gradient_accumulation_steps": 2, "num_iterations": 2, "max_steps": 8}


@pytest.mark.parametrize(
    "settings",
    [
        {"bf16": True},
        {"bf16": True, "learning_rate": 1e-6, "lr_scheduler_type": "linear"},
        {"learning_rate": 1e-6, "lr_scheduler_type": "cosine", "warmup_steps": 3},
        {"learning_rate": 1e-9, "lr_scheduler_type": "linear"},
        {"max_grad_norm": 0.1, "weight_decay": 0.1, "optim": "sgd"},
    ],
    ids=["bf16", "bf16, small rate", "float32, small rate, warm-up", "rate below visibility", "sgd"],
)
def test_usual_settings_are_silent(build: Callable[..., Any], settings: dict[str, Any]) -> None:
    trainer, audit = build(**REUSED | settings)
    trainer.train()
    assert audit.report.verdict == "PASS", problems(audit.report)
    assert not problems(audit.report)


def test_an_optimizer_of_a_few_tensors_trains_them(build: Callable[..., Any]) -> None:
    """As optimizers for matrices alone are used. A probe of the other tensors would see that nothing changes."""
    import torch

    trainer, audit = build(**REUSED)
    trainer.optimizer = torch.optim.SGD([trainer.model.model.layers[1].mlp.up_proj.weight], lr=0.1)
    trainer.train()
    found = [(finding.code, finding.severity) for finding in audit.report.findings if finding.severity != "info"]
    assert found == [("RLS407", "warning")], problems(audit.report)
    assert next(rule for rule in audit.report.rules if rule.code == "RLS806").verdict == "PASS"


def test_callbacks_and_reward_functions_that_generate(build: Callable[..., Any]) -> None:
    """Samples for the logs, and a policy that is its own judge: these are no rollouts."""
    import torch
    from transformers import TrainerCallback

    trainer, audit = build(**REUSED)
    prompt = torch.tensor([[1, 2, 3]])

    class Samples(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trainer.model.generate(prompt, max_new_tokens=4, do_sample=True, temperature=0.1)

    def judged_by_itself(completions: list[str], **kwargs: Any) -> list[float]:
        trainer.model.generate(prompt, max_new_tokens=3, do_sample=False)
        return [float(len(text) % 3) for text in completions]

    if hasattr(trainer, "_calculate_rewards"):  # before 0.20 nothing shows when reward functions are called
        judged_by_itself.__name__ = trainer.reward_funcs[0].__name__
        trainer.reward_funcs[0] = judged_by_itself
    trainer.add_callback(Samples())
    trainer.train()
    assert not problems(audit.report)
    assert next(rule for rule in audit.report.rules if rule.code == "RLS410").verdict == "PASS"


def test_the_clip_counts_tensors_that_the_optimizer_does_not_hold(build: Callable[..., Any]) -> None:
    """Somebody trains the last layer and leaves the others out of the optimizer only. What is clipped is the model."""
    import torch

    trainer, audit = build(**REUSED | {"max_grad_norm": 0.01})
    held = [tensor for name, tensor in trainer.model.named_parameters() if "layers.1" in name]
    trainer.optimizer = torch.optim.AdamW(held, lr=trainer.args.learning_rate)
    trainer.train()
    assert {finding.code for finding in audit.report.findings} == {"RLS407"}
    assert next(rule for rule in audit.report.rules if rule.code == "RLS810").verdict == "PASS"


@pytest.mark.parametrize(("algorithm", "beta"), [("GRPO", 0.0), ("GRPO", 0.04), ("RLOO", 0.05)])
def test_adapters(tmp_path: Path, algorithm: str, beta: float) -> None:
    """PEFT generates with the model inside its wrapper, and its reference is the policy with adapters switched off."""
    peft = pytest.importorskip("peft", reason="peft is installed in the session of the newest TRL only")
    import trl

    audit = StepAuditCallback(log_dir=None, listeners=())
    tokenizer = tiny_tokenizer()
    trainer = getattr(trl, f"{algorithm}Trainer")(
        model=tiny_model(tokenizer),
        reward_funcs=tiny_reward,
        args=tiny_config(tmp_path, algorithm=algorithm, beta=beta, **REUSED),
        train_dataset=tiny_rows(36),
        processing_class=tokenizer,
        callbacks=[audit],
        peft_config=peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
    )
    trainer.train()
    assert audit.report.verdict == "PASS", problems(audit.report)
    assert not problems(audit.report)
    passed = {rule.code for rule in audit.report.rules if rule.verdict == "PASS"}
    assert passed >= {"RLS401", "RLS402"}
    assert unproved(passed, "trl", "LoRA") == {"RLS419", "RLS811", "RLS812"}, "those that compare ranks need several"
    assert claimed(audit.report, "trl") == set()


def test_adapters_that_are_scaled_in_mid_run(build: Callable[..., Any]) -> None:
    peft = pytest.importorskip("peft", reason="peft is installed in the session of the newest TRL only")
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    trainer, audit = build(**REUSED, model=peft.get_peft_model(tiny_model(tiny_tokenizer()), config))

    def rescale() -> None:
        trainer.model.base_model.model.model.layers[0].self_attn.q_proj.scaling["default"] *= 4

    after_update(trainer, 4, rescale)
    trainer.train()
    (finding,) = (finding for finding in audit.report.findings if finding.severity != "info")
    assert (finding.code, finding.where.update) == ("RLS101", 4)
    assert "scaling of the adapters" in str(finding)
