"""Runs that other people made: healthy ones that were accused once, and wrong ones that passed."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from packaging.version import Version
from transformers import Qwen2ForCausalLM, TrainerCallback

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.systems.trl.observe.settings import of_copies, of_training
from rlstep_hooks.testing.tiny_trl import tiny_architecture, tiny_tokenizer, tiny_trainer
from tests.faults.trl_faults import FAULTS
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import problems

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

SINCE_1_16 = pytest.mark.skipif(Version("1.16") > RELEASE, reason="the setting came with a later release")


def audited(folder: Path, *before: Any, **settings: Any) -> Report:
    """The report of a small run.

    Args:
        folder: Where the trainer writes.
        before: Callbacks that are called before the audit.
        settings: Of the configuration; `pads_with_end` has the tokenizer pad with its end, as many do, and `fault` is done to the
            trainer before it trains.
    """
    audit = StepAuditCallback(log_dir=None, listeners=())
    pads_with_end, fault = settings.pop("pads_with_end", False), settings.pop("fault", None)
    trainer = tiny_trainer(folder, callbacks=[*before, audit], rows=settings.pop("rows", 8), **settings)
    if pads_with_end:
        tokenizer = trainer.processing_class
        tokenizer.pad_token = tokenizer.eos_token
        trainer.pad_token_id = tokenizer.pad_token_id
    if fault is not None:
        fault(trainer)
    trainer.train()
    return audit.report


class TakesTheOptimizer(TrainerCallback):  # type: ignore[misc]
    """Takes the optimizer from those that the trainer tells it."""

    trainer: Any = None

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        frame = inspect.currentframe()
        while frame is not None and not hasattr(frame.f_locals.get("self"), "callback_handler"):
            frame = frame.f_back
        assert frame is not None
        self.trainer = frame.f_locals["self"]

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.callback_handler.optimizer = None


def test_updates_are_counted_where_callbacks_get_no_optimizer(tmp_path: Path) -> None:
    report = audited(tmp_path, TakesTheOptimizer(), num_iterations=2)
    assert problems(report) == []
    assert report.verdict == "PASS"
    assert report.counts.updates == report.schedule.updates


@SINCE_1_16
@pytest.mark.parametrize("multiple", [8, 16])
def test_padding_with_the_end_token_is_no_end(multiple: int, tmp_path: Path) -> None:
    report = audited(tmp_path, pads_with_end=True, pad_to_multiple_of=multiple, max_completion_length=6, rows=16)
    assert problems(report) == []


@pytest.mark.parametrize("scheduler", ["reduce_lr_on_plateau"])
def test_a_scheduler_that_does_not_tick_with_updates(scheduler: str, tmp_path: Path) -> None:
    report = audited(
        tmp_path,
        lr_scheduler_type=scheduler,
        eval_strategy="steps",
        eval_steps=3,
        evaluation_rows=4,
        metric_for_best_model="eval_loss",
        rows=16,
        num_iterations=2,
    )
    assert problems(report) == []


@SINCE_1_16
@pytest.mark.parametrize(
    "settings",
    [
        {"off_policy_mask_threshold": 1e-9, "num_iterations": 3, "learning_rate": 0.05},
        {"top_entropy_quantile": 0.001, "num_iterations": 2},
    ],
    ids=["off-policy mask", "entropy mask"],
)
def test_masks_that_leave_no_token(settings: dict[str, Any], tmp_path: Path) -> None:
    assert problems(audited(tmp_path, **settings)) == []


@SINCE_1_16
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_neftune_is_named_and_no_error(beta: float, tmp_path: Path) -> None:
    report = audited(tmp_path, neftune_noise_alpha=5.0, beta=beta, num_iterations=2)
    assert [finding for finding in report.findings if finding.severity == "error"] == []
    assert any("NEFTune" in finding.why for finding in report.findings), problems(report)


@SINCE_1_16
def test_a_change_below_the_resolution_of_the_log_probs(tmp_path: Path) -> None:
    report = audited(tmp_path, bf16=True, learning_rate=1e-7, num_iterations=2, gradient_accumulation_steps=1, rows=16)
    assert [finding.code for finding in report.findings if finding.severity == "error"] == []


HEAD_IN_FLOAT32 = {"bf16": True, "cast_lm_head_to_fp32": True, "learning_rate": 1e-3, "rows": 16}
"""Settings of a model in bf16 with a head in float32, so that the factor of the clip is rounded in two dtypes."""


def model_in_bf16(*, tied: bool) -> Any:
    """The tiny model with weights in bf16; tied, its embedding becomes float32 with the head."""
    torch.manual_seed(0)
    architecture = tiny_architecture(tiny_tokenizer(), layers=2, tie_word_embeddings=tied)
    return Qwen2ForCausalLM(architecture).to(torch.bfloat16)


@SINCE_1_16
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("norm", [0.05, 1.0])
@pytest.mark.parametrize("accumulation", [1, 8])
def test_a_head_in_float32(tied: bool, norm: float, accumulation: int, tmp_path: Path) -> None:
    sizes = {"max_grad_norm": norm, "gradient_accumulation_steps": accumulation}
    report = audited(tmp_path, model=model_in_bf16(tied=tied), **sizes, **HEAD_IN_FLOAT32)
    assert problems(report) == []
    assert next(rule.verdict for rule in report.rules if rule.code == "RLS810") == "PASS"


def scale_head(trainer: Any) -> None:
    """A hook takes 20 % off the gradients of the head in float32."""
    trainer.model.lm_head.weight.register_hook(lambda gradient: gradient * 0.8)


def add_noise_to_head(trainer: Any) -> None:
    """A hook adds noise to the gradients of the head in float32."""
    trainer.model.lm_head.weight.register_hook(lambda gradient: gradient + 0.3 * gradient.std() * noise_like(gradient))


def noise_like(gradient: torch.Tensor) -> torch.Tensor:
    """Noise of the same shape, the same each time."""
    return torch.randn(gradient.shape, generator=torch.Generator().manual_seed(1))


OF_THE_CORPUS = {
    "one_gradient_scaled_by_a_hook": "11 times as much in model.layers.1",
    "embedding_frozen_by_a_hook": "0 times as much in model.embed_tokens",
    "gradients_clipped_by_value": "",
    "gradients_cleared_between_micro_batches": "",
    "further_backward_pass": "4",
}


@SINCE_1_16
@pytest.mark.parametrize(
    ("fault", "observed"),
    [
        (scale_head, "0.8 times as much in lm_head.weight"),
        (add_noise_to_head, "lm_head.weight"),
        *((fault.apply, OF_THE_CORPUS[fault.name]) for fault in FAULTS if fault.name in OF_THE_CORPUS),
    ],
    ids=lambda of: getattr(of, "__name__", ""),
)
def test_faults_beside_a_head_in_float32(fault: Any, observed: str, tmp_path: Path) -> None:
    settings = HEAD_IN_FLOAT32 | {"max_grad_norm": 0.05, "gradient_accumulation_steps": 2}
    report = audited(tmp_path, model=model_in_bf16(tied=False), fault=fault, **settings)
    found = [finding for finding in report.findings if finding.code == "RLS810"]
    assert any(observed in finding.observed for finding in found), problems(report)
    assert not any(finding.observed.startswith("1 times") for finding in found)


@SINCE_1_16
@pytest.mark.parametrize(("name", "value"), [("num_iterations", 4), ("epsilon_low", 0.4), ("temperature", 0.7)])
def test_what_the_trainer_computes_with_is_compared_with_its_arguments(name: str, value: Any, tmp_path: Path) -> None:
    audit = StepAuditCallback(log_dir=None, listeners=())
    trainer = tiny_trainer(tmp_path, callbacks=[audit], rows=8, num_iterations=2)
    setattr(trainer, name, value)
    trainer.train()
    [changed] = [finding for finding in audit.report.findings if finding.code == "RLS101"]
    assert name in changed.observed + changed.expected
    assert audit.report.verdict == "FAIL"


class HalvesTheRate(TrainerCallback):  # type: ignore[misc]
    """Halves the base rate of the schedule after four updates; `at_once` also the rate of the next update."""

    def __init__(self, *, at_once: bool) -> None:
        self._at_once = at_once

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 4:
            scheduler = kwargs["lr_scheduler"]
            scheduler.base_lrs = [rate / 2 for rate in scheduler.base_lrs]
            for group in kwargs["optimizer"].param_groups if self._at_once else ():
                group["lr"] /= 2


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("kind", ["linear", "constant"])
def test_a_callback_may_change_the_base_rate(kind: str, at_once: bool, tmp_path: Path) -> None:
    report = audited(tmp_path, HalvesTheRate(at_once=at_once), lr_scheduler_type=kind, rows=12, learning_rate=1e-3)
    [found] = [finding for finding in report.findings if finding.severity != "info"]
    assert (found.code, found.severity, found.where.update, found.occurrences) == ("RLS605", "warning", 4, 1)
    assert "base_lrs" in found.why
    assert "0.001" in found.expected
    assert "0.0005" in found.observed
    assert report.verdict == "PASS"


class ReplacesTheScheduler(TrainerCallback):  # type: ignore[misc]
    """Puts a scheduler of its own in the place of the trainer's after four updates."""

    trainer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 4:
            ticks = self.trainer.lr_scheduler.last_epoch
            self.trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(kwargs["optimizer"], lambda tick: 0.5)
            self.trainer.lr_scheduler.last_epoch = ticks


def test_a_scheduler_that_is_replaced_is_named(tmp_path: Path) -> None:
    callback = ReplacesTheScheduler()
    report = audited(
        tmp_path, callback, rows=12, learning_rate=1e-3, fault=lambda trainer: setattr(callback, "trainer", trainer)
    )
    found = [finding for finding in report.findings if finding.code == "RLS605"]
    assert [(finding.severity, finding.where.update) for finding in found] == [("warning", 4)], problems(report)
    assert "replaced" in found[0].why


@SINCE_1_16
@pytest.mark.parametrize(
    ("settings", "expected", "why"),
    [
        (
            {"rows": 1, "gradient_accumulation_steps": 8, "max_steps": 5},
            "5 updates, as",
            "1 row does not fill a rollout of 8 prompts",
        ),
        (
            {"rows": 3, "gradient_accumulation_steps": 4, "max_steps": 7},
            "7 updates, as",
            "3 rows do not fill a rollout of 4 prompts",
        ),
        ({"rows": 8, "num_train_epochs": -3}, "some updates", "no update"),
        ({"rows": 8, "num_train_epochs": 0}, "some updates", "no update"),
    ],
    ids=["one row", "three rows", "negative passes", "no pass"],
)
def test_a_run_of_nothing_is_said_once(settings: dict[str, Any], expected: str, why: str, tmp_path: Path) -> None:
    report = audited(tmp_path, **settings)
    [found] = [finding for finding in report.findings if finding.severity != "info"]
    assert found.code == "RLS209"
    assert found.expected.startswith(expected)
    assert why in found.why
    assert not any(f"-{digit}" in str(finding) for finding in report.findings for digit in range(10))
    assert report.schedule is not None
    assert report.schedule.updates == 0


OTHERS = {
    "beta": 0.5,
    "entropy_coef": 0.3,
    "epsilon_high": 0.9,
    "epsilon_low": 0.01,
    "importance_sampling_level": "sequence",
    "loss_type": "sapo",
    "mask_truncated_completions": True,
    "max_completion_length": 5,
    "multi_objective_aggregation": "normalize_then_sum",
    "normalize_advantages": True,
    "num_generations": 2,
    "num_iterations": 4,
    "off_policy_mask_threshold": 0.1,
    "reward_clip_range": (-1.0, 1.0),
    "scale_rewards": "batch",
    "shuffle_dataset": False,
    "temperature": 0.3,
    "top_entropy_quantile": 0.5,
    "use_adaptive_entropy": True,
}
"""Another value of each attribute that a trainer copies from its arguments when it is built, and computes with."""

FOLLOWED_ELSEWHERE = {
    *(
        "chat_template_kwargs",
        "log_completions",
        "log_multimodal",
        "log_unique_prompts",
        "num_completions_to_print",
    ),  # not of training
    *("num_generations_eval", "pad_to_multiple_of", "use_transformers_continuous_batching"),  # not of what is learned
    *("min_p", "repetition_penalty", "top_k", "top_p"),  # of sampling: read in use, by RLS410
    *("use_vllm", "vllm_mode", "vllm_gpu_memory_utilization", "vllm_tensor_parallel_size"),  # how an engine was built
    *("tools", "environment_factory", "rollout_func"),
    *("vllm_importance_sampling_correction", "vllm_importance_sampling_mode"),  # compared where vLLM samples
    *("vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min"),
    "reward_weights",  # a tensor, which has a comparison of its own
}
"""Attributes that are copied from arguments and not compared as they are."""


@SINCE_1_16
@pytest.mark.parametrize("algorithm", ["GRPO", "RLOO"])
def test_every_attribute_that_is_copied_from_the_arguments_is_compared(algorithm: str, tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, algorithm=algorithm, rows=8)
    source = inspect.getsource(type(trainer).__init__)
    copied = {name for name, _ in re.findall(r"self\.(\w+) = .*\bargs\.(\w+)", source)} - FOLLOWED_ELSEWHERE
    assert len(copied) >= 9
    assert copied <= OTHERS.keys(), "another value of each is given above"
    assert of_copies(trainer).changes() == []
    for name in copied:
        before = getattr(trainer, name)
        setattr(trainer, name, OTHERS[name])
        assert [change[0] for change in of_copies(trainer).changes()] == [f"trainer.{name}"]
        setattr(trainer, name, before)


def test_weights_of_rewards_are_those_configured_in_float32_and_1_for_environments(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, rows=8, reward_weights=[0.1])
    assert of_copies(trainer).changes() == [], "0.1 in float32 is another number"
    followed = of_training(trainer)
    trainer.reward_weights = torch.cat(
        [trainer.reward_weights, torch.ones(1)]
    )  # an environment brings a reward of its own
    assert of_copies(trainer).changes() == []
    trainer.reward_weights = torch.tensor([0.1, 2.0])
    [(name, configured, used)] = of_copies(trainer).changes()
    assert (name, configured) == ("trainer.reward_weights", (0.1, 1.0))
    assert used[1] == 2.0
    assert [change[0] for change in followed.changes()] == ["trainer.reward_weights"]
