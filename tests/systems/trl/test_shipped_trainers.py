"""Every trainer that the installed TRL ships: audited and right, or refused with the reason before it trains."""

from __future__ import annotations

import dataclasses
import inspect
import zlib
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
import torch
import trl
import wrapt
from packaging.version import Version

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.record.events import MicroBatch, Rollout
from rlstep_hooks.testing.tiny_trl import (
    quiet_settings,
    tiny_model,
    tiny_reward,
    tiny_rows,
    tiny_tokenizer,
)
from rlstep_hooks.testing.trl_faults import replace_method
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import codes, events_of, explained, problems

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

REUSED = {"rows": 12, "gradient_accumulation_steps": 2, "num_iterations": 2, "num_train_epochs": 1}


def shipped(module: str, name: str) -> Any:
    """A class of trl.experimental, in a release that has it."""
    try:
        return getattr(import_module(f"trl.experimental.{module}"), name)
    except ModuleNotFoundError:
        pytest.skip(f"TRL {RELEASE} has no {module}")


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., StepAuditCallback]:
    """Trains one of TRL's experimental trainers under audit."""

    def run(trainer_class: Any, config: Any, *, rows: int = 12, reward: Any = tiny_reward, **settings: Any) -> Any:
        known = {field.name for field in dataclasses.fields(config)}
        of_trainer = {name: settings.pop(name) for name in list(settings) if name not in known}
        common = quiet_settings(tmp_path) | {
            "num_generations": 4,
            "max_completion_length": 8,
            "learning_rate": 1e-2,
            "lr_scheduler_type": "constant",
            "gradient_accumulation_steps": 2,
            "num_train_epochs": 1,
        }
        args = config(**{name: value for name, value in common.items() if name in known} | settings)
        audit = StepAuditCallback(log_dir=None, listeners=())
        tokenizer = tiny_tokenizer()
        trainer_class(
            model=tiny_model(tokenizer),
            reward_funcs=reward,
            args=args,
            train_dataset=tiny_rows(rows),
            processing_class=tokenizer,
            callbacks=[audit],
            **of_trainer,
        ).train()
        return audit

    return run


def passes(report: Report) -> None:
    assert report.verdict == "PASS", problems(report)
    assert not problems(report)
    assert report.schedule is not None
    assert (report.counts.rollouts, report.counts.updates) == (report.schedule.rollouts, report.schedule.updates)


def outcome(report: Report, code: str) -> Any:
    return next(rule for rule in report.rules if rule.code == code)


def keep_shortest(group_completions: list[list[str]], group_rewards: list[list[float]]) -> list[list[float]]:
    """A filter of GFPO: other samples in each group."""
    return [[len(text) % 5 + 0.1 * place for place, text in enumerate(group)] for group in group_completions]


@pytest.mark.parametrize("passes_over", [1, 2])
def test_gfpo(train: Callable[..., StepAuditCallback], passes_over: int) -> None:
    trainer, config = shipped("gfpo", "GFPOTrainer"), shipped("gfpo", "GFPOConfig")
    if Version("0.25") <= RELEASE:
        pytest.skip(
            "TRL 1.0's GFPOTrainer raises in its first rollout: it unpacks 5 of the 7 values that generation returns"
        )
    audit = train(trainer, config, num_remains_in_group=2, num_iterations=passes_over, group_filter_func=keep_shortest)
    report = audit.report
    schedule = report.schedule
    assert schedule is not None
    assert (schedule.samples_per_rollout, schedule.samples_dropped_per_rollout) == (8, 4)
    assert (schedule.samples_per_microbatch, schedule.samples_per_update) == (2, 4)
    events = events_of(audit)
    assert {event.samples for event in events if isinstance(event, Rollout)} == {8}
    assert {event.samples for event in events if isinstance(event, MicroBatch)} == {2}
    assert outcome(report, "RLS502").verdict == "PASS"
    if passes_over == 1:
        passes(report)
    else:  # the release that has this trainer does not filter its old log-probs
        assert (report.verdict, codes(report)) == ("FAIL", {"RLS301"}), problems(report)
        assert explained(report) == {"trl-gfpo-old-log-probs"}


def reward_without_variance(completions: list[str], trainer_state: Any, **kwargs: Any) -> list[float]:
    """The same for all in every second rollout: only then does this trainer take samples out of its buffer."""
    if trainer_state.global_step // 2 % 2:
        return [1.0] * len(completions)
    return [zlib.crc32(text.encode()) % 7 + 0.01 * place for place, text in enumerate(completions)]


def test_samples_of_older_rollouts_have_no_known_lag(train: Callable[..., StepAuditCallback]) -> None:
    trainer = shipped("grpo_with_replay_buffer", "GRPOWithReplayBufferTrainer")
    config = shipped("grpo_with_replay_buffer", "GRPOWithReplayBufferConfig")
    if Version("1.0") > RELEASE:
        pytest.skip(
            "TRL 0.24's trainer raises in its first rollout: it expects 7 values of generation, which returns 5"
        )
    audit = train(trainer, config, replay_buffer_size=8, num_iterations=2, reward=reward_without_variance)
    passes(audit.report)
    trained = [event for event in events_of(audit) if isinstance(event, MicroBatch)]
    unknown = [event.index // 4 for event in trained if event.old_version is None]
    assert set(unknown) == {1, 3, 5}  # four micro-batches to a rollout; each second one replays
    assert all(event.sampled_version is not None for event in trained if event.index // 4 in (0, 2, 4))


@pytest.mark.parametrize(
    ("module", "name", "config", "settings"),
    [
        ("gmpo", "GMPOTrainer", "GMPOConfig", {}),
        ("gspo_token", "GRPOTrainer", "", {"importance_sampling_level": "sequence_token"}),
        ("dppo", "DPPOTrainer", "DPPOConfig", {}),
        ("dppo", "DPPOTrainer", "DPPOConfig", {"divergence_type": "topk_tv", "divergence_topk": 4}),
        ("gfpo", "GFPOTrainer", "GFPOConfig", {}),
    ],
)
def test_trainers_with_a_loss_of_their_own(
    train: Callable[..., StepAuditCallback], module: str, name: str, config: str, settings: dict[str, Any]
) -> None:
    trainer = shipped(module, name)
    if module == "gfpo" and Version("0.25") <= RELEASE:
        pytest.skip("TRL 1.0's GFPOTrainer raises in its first rollout")
    kind = shipped(module, config) if config else trl.GRPOConfig
    report = train(trainer, kind, num_iterations=2, **settings).report
    passes(report)
    assert {lag.lag for lag in report.lags} == {0, 1}
    for code in ("RLS302", "RLS406", "RLS502", "RLS802"):
        assert outcome(report, code).verdict == "PASS", code
    for code in ("RLS310", "RLS809"):  # which tokens these losses train is not known
        assert outcome(report, code).verdict == ("PASS" if module == "gfpo" else "NOT_EVALUATED"), code
    assert outcome(report, "RLS801").verdict == ("PASS" if module == "gfpo" else "NOT_EVALUATED")
    assert report.schedule is not None
    assert report.schedule.old_logprob_source == ("engine" if module == "dppo" else "at_rollout")


@pytest.mark.parametrize("own_advantages", [True, False])
def test_minillm_learns_from_more_than_rewards(train: Callable[..., StepAuditCallback], own_advantages: bool) -> None:
    trainer, config = shipped("minillm", "MiniLLMTrainer"), shipped("minillm", "MiniLLMConfig")

    def constant(completions: list[str], **kwargs: Any) -> list[float]:
        return [0.0] * len(completions)

    teacher = tiny_model(tiny_tokenizer(), seed=3)
    report = train(trainer, config, reward=constant, teacher_model=teacher, rkl_advantage=own_advantages).report
    assert outcome(report, "RLS505").verdict == "NOT_EVALUATED"
    assert "the loss of MiniLLMTrainer" in report.not_evaluated["RLS505"]
    if own_advantages:
        assert (codes(report), explained(report)) == ({"RLS802"}, {"trl-minillm-advantages"})
    else:
        passes(report)


def test_a_loss_of_ones_own_with_nothing_to_learn_is_still_found(build: Callable[..., Any]) -> None:
    class Wrapped(trl.GRPOTrainer):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(*args, **kwargs)

    def constant(completions: list[str], **kwargs: Any) -> list[float]:
        return [0.0] * len(completions)

    trainer, audit = build(trainer_class=Wrapped, reward=constant, **REUSED | {"beta": 0.0})
    trainer.train()
    assert codes(audit.report) == {"RLS505"}


# Where tokens come from


@pytest.mark.parametrize("passes_over", [1, 2])
def test_tokens_from_elsewhere(build: Callable[..., Any], tmp_path: Path, passes_over: int) -> None:
    if "rollout_func" not in inspect.signature(trl.GRPOTrainer).parameters:
        pytest.skip(f"TRL {RELEASE} has no rollout_func")

    def elsewhere(prompts: list[str], trainer: Any) -> dict[str, Any]:
        draw = torch.Generator().manual_seed(trainer.state.global_step)
        completions = [torch.randint(3, 40, (6,), generator=draw).tolist() for _ in prompts]
        return {
            "prompt_ids": trainer.processing_class(prompts)["input_ids"],
            "completion_ids": completions,
            "logprobs": [[-3.0] * 6 for _ in prompts],
        }

    class Elsewhere(trl.GRPOTrainer):  # type: ignore[misc]
        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments, rollout_func=elsewhere)

    trainer, audit = build(trainer_class=Elsewhere, **REUSED | {"num_iterations": passes_over})
    trainer.train()
    passes(audit.report)
    for code in ("RLS402", "RLS403"):
        assert outcome(audit.report, code).verdict == "NOT_EVALUATED"
        assert "rollout_func" in audit.report.not_evaluated[code]


def of_a_published_model(**settings: Any) -> Any:
    """A tiny model with a generation_config of its own, as Qwen2.5's."""
    model = tiny_model(tiny_tokenizer())
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    return model


@pytest.mark.parametrize("algorithm", ["GRPO", "RLOO"])
@pytest.mark.parametrize(
    ("own", "leaks_until"),
    [({"top_p": 0.8}, Version("0.26.1")), ({"no_repeat_ngram_size": 2}, Version("2")), ({}, Version("0"))],
)
def test_generation_config_of_the_model(
    build: Callable[..., Any], algorithm: str, own: dict[str, Any], leaks_until: Version
) -> None:
    if algorithm == "RLOO" and "steps_per_generation" not in str(inspect.signature(trl.RLOOConfig)):
        pytest.skip(f"TRL {RELEASE} has an older RLOO")
    trainer, audit = build(algorithm=algorithm, model=of_a_published_model(**own), **REUSED | {"beta": 0.0})
    trainer.train()
    if leaks_until <= RELEASE or not own:
        passes(audit.report)
        assert outcome(audit.report, "RLS410").verdict == "PASS"
    else:
        assert (codes(audit.report), explained(audit.report)) == ({"RLS410"}, {"trl-generation-config-of-the-model"})
        [(name, value)] = own.items()
        assert f"{name} {value}" in audit.report.findings[0].observed


def test_configured_sampling_is_no_finding(build: Callable[..., Any]) -> None:
    trainer, audit = build(
        temperature=0.7, top_p=0.9, **REUSED, **({"top_k": 20} if Version("0.16") <= RELEASE else {})
    )
    trainer.train()
    assert outcome(audit.report, "RLS410").verdict == "PASS", problems(audit.report)


# Trainers that are not audited


def refused(trainer_class: Any, config: Any, folder: Path, **arguments: Any) -> tuple[Any, StepAuditCallback]:
    known = {field.name for field in dataclasses.fields(config)}
    settings = {name: value for name, value in quiet_settings(folder).items() if name in known}
    audit = StepAuditCallback(log_dir=None, listeners=())
    tokenizer = tiny_tokenizer()
    trainer = trainer_class(
        model=tiny_model(tokenizer),
        args=config(**settings, max_steps=2),
        processing_class=tokenizer,
        callbacks=[audit],
        **arguments,
    )
    return trainer, audit


def test_a_trainer_without_rollouts_is_left_alone_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from datasets import Dataset

    pairs = Dataset.from_dict(
        {"prompt": ["add 1 and 2"] * 8, "chosen": [" is 3"] * 8, "rejected": [" is the sum of two"] * 8}
    )
    text = Dataset.from_dict({"text": ["add 1 and 2 is 3"] * 8})
    for name, rows in (("DPO", pairs), ("SFT", text)):
        capfd.readouterr()
        reference = {"ref_model": tiny_model(tiny_tokenizer())} if name == "DPO" else {}
        trainer, audit = refused(
            getattr(trl, f"{name}Trainer"), getattr(trl, f"{name}Config"), tmp_path, train_dataset=rows, **reference
        )
        said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("rlstep:")]
        assert said == [
            f"rlstep: not evaluated: {name}Trainer makes no rollouts, so there is nothing to audit. "
            "Training goes on without an audit."
        ]
        trainer.train()
        assert not any(isinstance(value, wrapt.FunctionWrapper) for value in vars(trainer).values())
        assert audit.report.verdict == "NOT_EVALUATED"
        assert not [line for line in capfd.readouterr().err.splitlines() if line.startswith("rlstep:")]


def seeing(model: Any) -> Any:
    """The tiny model with a stand-in for its eyes: the mean of an image is added to the embeddings."""

    class Seeing(type(model)):  # type: ignore[misc]
        def forward(self, input_ids: Any = None, pixel_values: Any = None, **settings: Any) -> Any:
            if pixel_values is None:
                return super().forward(input_ids=input_ids, **settings)
            seen = self.get_input_embeddings()(input_ids) + pixel_values.mean((1, 2, 3))[:, None, None]
            return super().forward(inputs_embeds=seen, **settings)

    model.__class__ = Seeing
    return model


def test_papo(tmp_path: Path) -> None:
    """Its schedule is judged; its loss has two sets of log-probs, so nothing is said of ratio and loss. No vision model trains here,
    so the images are tensors that the rollouts get, and the model a text model that adds them."""
    kind, config = shipped("papo", "PAPOTrainer"), shipped("papo", "PAPOConfig")
    audit, tokenizer = StepAuditCallback(log_dir=None, listeners=()), tiny_tokenizer()
    settings = quiet_settings(tmp_path) | {"num_generations": 4, "max_completion_length": 8, "num_train_epochs": 1}
    trainer = kind(
        model=seeing(tiny_model(tokenizer)),
        reward_funcs=tiny_reward,
        args=config(**settings, gradient_accumulation_steps=2, loss_type="grpo"),
        train_dataset=tiny_rows(12),
        processing_class=tokenizer,
        callbacks=[audit],
    )

    def with_images(original: Callable[..., Any], rows: Any) -> Any:
        output = original(rows)
        return output | {"pixel_values": torch.rand(len(rows), 3, 8, 8)}

    replace_method(trainer, "_generate_and_score_completions", with_images)
    trainer.train()
    passes(audit.report)
    assert "2 sets of log-probs" in outcome(audit.report, "RLS301").reason
    assert outcome(audit.report, "RLS516").verdict == "PASS"


def all_trainers() -> list[type]:
    """Every trainer class that this release ships, in trl.trainer and trl.experimental."""
    import pkgutil
    import warnings

    found = {}
    for package in ("trl.trainer", "trl.experimental"):
        try:
            home = import_module(package)
        except ModuleNotFoundError:
            continue
        for module in pkgutil.walk_packages(home.__path__, f"{package}."):
            if not module.name.endswith("_trainer"):
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    loaded = import_module(module.name)
            except Exception:  # noqa: BLE001 - needs a package that is not here
                continue
            for name, kind in vars(loaded).items():
                own = isinstance(kind, type) and kind.__module__ == module.name
                if own and name.endswith("Trainer") and name not in ("BaseTrainer", "_BaseTrainer"):
                    found[kind.__module__, name] = kind
    return list(found.values())


def test_every_shipped_trainer_is_audited_or_has_a_reason() -> None:
    from rlstep_hooks.systems.trl.observe.others import why_not
    from rlstep_hooks.systems.trl_ppo.plan import is_trainer

    found = all_trainers()
    assert len(found) >= 8
    for kind in found:
        trainer = object.__new__(kind)
        if hasattr(kind, "_generate_and_score_completions") and issubclass(kind, trl.GRPOTrainer | trl.RLOOTrainer):
            continue
        reason = why_not(kind)
        # AsyncGRPOTrainer is told by its configuration, which this one does not have; tests/systems/trl_async trains it.
        if is_trainer(trainer) or kind.__name__ == "AsyncGRPOTrainer":
            continue
        assert "is not known" not in reason, reason
        assert kind.__name__ in reason
