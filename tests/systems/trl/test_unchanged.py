"""Training is bit for bit the same with and without the audit, and nothing of it stays behind."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from transformers import TrainerCallback

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.testing.tiny_trl import tiny_model, tiny_tokenizer, tiny_trainer
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import problems

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SETTINGS: dict[str, dict[str, Any]] = {
    "reuse": {"gradient_accumulation_steps": 2, "num_iterations": 2, "max_steps": 6},
    "dropout": {"gradient_accumulation_steps": 2, "num_iterations": 2, "max_steps": 4},
    "evaluation": {
        "gradient_accumulation_steps": 2,
        "max_steps": 4,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "evaluation_rows": 4,
    },
    "reference": {"max_steps": 3, "beta": 0.04},
    "bfloat16": {"gradient_accumulation_steps": 2, "num_iterations": 2, "max_steps": 4, "bf16": True},
}
_TIMES = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "step_time", "runtime", "per_second")


_ADDED = "rlstep/"
"""Begins the names of what the audit adds to logs on their way to trackers."""


class Seen(TrainerCallback):  # type: ignore[misc]
    """Keeps what callbacks are given: the logs, and the metrics of an evaluation."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []
        self.given: list[dict[str, Any]] = []
        """The dictionaries themselves, as they are when training is over."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.logs.append(dict(logs))
        self.given.append(logs)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        self.given.append(metrics)


def _without_times(logs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in entry.items() if not any(part in name for part in _TIMES)} for entry in logs
    ]


def _state(trainer: Any) -> dict[str, Any]:
    optimizer = trainer.optimizer.state_dict()["state"]
    return {
        "weights": {name: value.clone() for name, value in trainer.model.state_dict().items()},
        "moments": {(i, n): v for i, entry in optimizer.items() for n, v in entry.items()},
        "torch": torch.get_rng_state(),
        "numpy": numpy.random.get_state()[1],
        "python": random.getstate(),
        "logs": _without_times(trainer.state.log_history),
    }


def _run(folder: Path, name: str, callbacks: list[Any]) -> dict[str, Any]:
    model = tiny_model(tiny_tokenizer(), dropout=0.1) if name == "dropout" else None
    seen = Seen()
    trainer = tiny_trainer(folder, callbacks=[*callbacks, seen], model=model, **SETTINGS[name])
    trainer.train()
    return _state(trainer) | {"shown": _without_times(seen.logs), "given": _without_times(seen.given)}


@pytest.mark.parametrize("name", SETTINGS)
def test_training_is_bit_for_bit_the_same(tmp_path: Path, name: str) -> None:
    audit = StepAuditCallback(log_dir=tmp_path / "log", listeners=())
    bare, audited = _run(tmp_path / "bare", name, []), _run(tmp_path / "audited", name, [audit])
    assert audit.report.counts.updates == SETTINGS[name]["max_steps"]
    for part in ("weights", "moments"):
        assert bare[part].keys() == audited[part].keys()
        for key, value in bare[part].items():
            other = audited[part][key]
            assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other, (part, key)
    assert torch.equal(bare["torch"], audited["torch"])
    assert (bare["numpy"] == audited["numpy"]).all()
    assert bare["python"] == audited["python"]
    assert bare["logs"] == audited["logs"]
    assert bare["given"] == audited["given"], "nothing is left in the dictionaries of the trainer"
    own = [{name: value for name, value in entry.items() if not name.startswith(_ADDED)} for entry in audited["shown"]]
    assert own == bare["shown"]
    assert all(f"{_ADDED}verdict" in entry for entry in audited["shown"])


def _attributes(trainer: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(trainer).items()
        if callable(value) and not isinstance(value, torch.nn.Module)
    }


def test_everything_patched_is_given_back(build: Callable[..., Any]) -> None:
    trainer, audit = build(max_steps=2)
    own = trainer.compute_loss = trainer.compute_loss  # an instance attribute of the user's own must survive as it is
    before = _attributes(trainer)
    assert "train" in before, "the audit wraps `train` when the trainer is built"
    trainer.train()
    assert audit.report.verdict == "PASS", problems(audit.report)
    after = _attributes(trainer)
    assert after.keys() == before.keys() - {"train"}
    assert trainer.compute_loss is own
    for name in ("training_step", "prediction_step", "_generate_and_score_completions", "_compute_loss"):
        assert name not in vars(trainer)
    assert "on_log" not in vars(trainer.callback_handler)
    inner = trainer.optimizer.optimizer
    assert not inner._optimizer_step_pre_hooks
    assert not inner._optimizer_step_post_hooks
    assert not trainer.model._forward_pre_hooks


class UserError(Exception):
    """Raised by a reward function."""


@pytest.mark.parametrize("place", ["reward", "callback"])
def test_an_exception_of_the_user_passes_unchanged(build: Callable[..., Any], place: str) -> None:
    raised = UserError("mine")

    def reward(completions: Any, **kwargs: Any) -> list[float]:
        raise raised

    class Failing(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            raise raised

    trainer, audit = build(max_steps=2, **({"reward": reward} if place == "reward" else {}))
    if place == "callback":
        trainer.add_callback(Failing())
    with pytest.raises(UserError) as caught:
        trainer.train()
    assert caught.value is raised
    assert not audit.report.complete
    assert not problems(audit.report), "an exception of the user's is no finding"
    assert "training_step" not in vars(trainer)
    assert not trainer.optimizer.optimizer._optimizer_step_post_hooks


HOOKS = (
    "microbatches.MicroBatchHooks._emit_microbatch",
    "rollouts.RolloutHooks._emit_rollout",
    "microbatches.MicroBatchHooks._measure_loss",
    "identities.SampleIdentities.trained",
    "settings.SettingsWatch.changes",
    "settings.optimizer_settings",
    "rlstep_hooks.observe.steps.WeightProbe.before_step",
    "updates.UpdateObserver._emit_update",
    "numbers.NumberCollector._work_up",
    "numbers.NumberCollector._emit",
    "trackers.scalars",
    "sampling.SamplingWatch._record",
    "updates.optimizer_tensors",
    "updates.GradientWatch.before_step",
    "advantages.RewardWatch.misplaced",
)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_raises_costs_an_observation_and_nothing_else(
    tmp_path: Path, hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("broken on purpose")

    bare = _run(tmp_path / "bare", "reuse", [])
    monkeypatch.setattr(
        hook if hook.startswith("rlstep_hooks.") else f"rlstep_hooks.systems.trl.observe.{hook}", broken
    )
    audit = StepAuditCallback(log_dir=None, listeners=())
    audited = _run(tmp_path / "audited", "reuse", [audit])
    for key, value in bare["weights"].items():
        assert torch.equal(value, audited["weights"][key])
    assert torch.equal(bare["torch"], audited["torch"])
    assert any("broken on purpose" in reason for reason in audit.report.not_evaluated.values())
    assert not problems(audit.report), "what was not observed is no finding"


def test_the_release_under_test_is_supported() -> None:
    from rlstep_hooks.systems.trl.releases import installed_release

    release = installed_release()
    assert release is not None
    assert release.supported
    assert release.trl == str(RELEASE)
