"""Every way to attach an audit, with every way in which training ends: the record has its end, and nothing stays behind."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import TrainerCallback

from rlstep_hooks import StepAuditCallback, StepAuditError
from rlstep_hooks.record.events import Judged, RunEnded
from rlstep_hooks.systems.trl.observe import injection
from rlstep_hooks.testing.tiny_trl import tiny_reward, tiny_trainer
from rlstep_hooks.testing.trl_faults import FAULTS
from tests.systems.trl.helpers import events_of, problems

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEPS = 4
SETTINGS: dict[str, Any] = {"gradient_accumulation_steps": 2, "num_iterations": 2, "max_steps": STEPS}


class UserError(Exception):
    """Raised by the user's own code."""


class Watch(TrainerCallback):  # type: ignore[misc]
    """Keeps what was there before the audit placed anything, and what trackers get; raises where it is told to."""

    def __init__(self) -> None:
        self.raises: BaseException | None = None
        self.trainer: Any = None
        self.before: dict[str, Any] = {}
        self.logged: list[dict[str, Any]] = []

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.before = attributes(self.trainer)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.raises is not None and state.global_step == 2:
            raise self.raises

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.logged.append(dict(logs))


def attributes(trainer: Any) -> dict[str, Any]:
    """What can be called on the trainer and its parts, and the hooks that torch keeps."""
    inner = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    parts = {
        "trainer": trainer,
        "handler": trainer.callback_handler,
        "accelerator": trainer.accelerator,
        "optimizer": trainer.optimizer,
        "inner optimizer": inner,
        "scheduler": trainer.lr_scheduler,
    } | {f"model.{name}": module for name, module in trainer.model.named_modules()}
    found = {
        f"{part}.{name}": value
        for part, owner in parts.items()
        for name, value in vars(owner).items()
        if callable(value) and not isinstance(value, torch.nn.Module | torch.Tensor)
    }
    kept = {
        f"{part}.{name}": sorted(value)
        for part, owner in parts.items()
        for name, value in vars(owner).items()
        if name.endswith("_hooks") and isinstance(value, dict)
    }
    return found | kept


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Attributes that are not the identical object. What the audit wraps before it trains, it gives back too."""
    return [
        name
        for name in sorted(before.keys() | after.keys())
        if name != "trainer.train"
        and before.get(name) is not after.get(name)
        and not (isinstance(before.get(name), list) and before.get(name) == after.get(name))
    ]


# Ways to attach. Each gives a trainer that is ready to train.


def by_constructor(make: Callable[..., Any], audit: StepAuditCallback) -> Any:
    return make(audit)


def later(make: Callable[..., Any], audit: StepAuditCallback) -> Any:
    trainer = make()
    trainer.add_callback(audit)
    return trainer


def by_injection(make: Callable[..., Any], audit: StepAuditCallback) -> Any:
    """What `rlstep run` does when a trainer was built."""
    trainer = make()
    injection.add_callback(trainer, lambda: audit)
    return trainer


def for_the_second_time(make: Callable[..., Any], audit: StepAuditCallback) -> Any:
    trainer = make(audit)
    trainer.args.max_steps = 2
    trainer.train()
    trainer.args.max_steps = STEPS
    return trainer


ATTACH = {function.__name__: function for function in (by_constructor, later, by_injection, for_the_second_time)}

# Ways to end. Each prepares a trainer and says what `train` raises.


def completed(trainer: Any, watch: Watch) -> type[BaseException] | None:
    return None


def raised_in_a_step(trainer: Any, watch: Watch) -> type[BaseException] | None:
    calls = []

    def reward(completions: Any, **kwargs: Any) -> list[float]:
        calls.append(1)
        if len(calls) == 2:
            raise UserError("reward")
        return tiny_reward(completions)

    trainer.reward_funcs[0] = reward
    return UserError


def raised_in_a_callback(trainer: Any, watch: Watch) -> type[BaseException] | None:
    watch.raises = UserError("callback")
    return UserError


def interrupted(trainer: Any, watch: Watch) -> type[BaseException] | None:
    watch.raises = KeyboardInterrupt()
    return KeyboardInterrupt


def raised_by_the_scheduler(trainer: Any, watch: Watch) -> type[BaseException] | None:
    """Between two steps, in a call that no hook sees."""
    create = trainer.create_scheduler

    def failing(*args: Any, **kwargs: Any) -> Any:
        scheduler = create(*args, **kwargs)
        step = scheduler.step

        def fail(*args: Any, **kwargs: Any) -> None:
            if trainer.state.global_step == 2:
                raise UserError("scheduler")
            step(*args, **kwargs)

        scheduler.step = fail
        return scheduler

    trainer.create_scheduler = failing
    return UserError


def stopped(trainer: Any, watch: Watch) -> type[BaseException] | None:
    FAULTS["regenerate_every_step"](trainer)
    return None


def raised_by_the_audit(trainer: Any, watch: Watch) -> type[BaseException] | None:
    FAULTS["regenerate_every_step"](trainer)
    return StepAuditError


END = {
    function.__name__: function
    for function in (
        completed,
        raised_in_a_step,
        raised_in_a_callback,
        interrupted,
        raised_by_the_scheduler,
        stopped,
        raised_by_the_audit,
    )
}
ON_FAIL: dict[str, Any] = {"stopped": "stop", "raised_by_the_audit": "raise"}


@pytest.mark.parametrize("end", END)
@pytest.mark.parametrize("attach", ATTACH)
def test_nothing_stays_behind_and_the_record_has_its_end(
    attach: str, end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = Watch()
    audit = StepAuditCallback(ON_FAIL.get(end, "warn"), log_dir=None, listeners=())

    def make(*callbacks: Any) -> Any:
        trainer = tiny_trainer(tmp_path, callbacks=[watch, *callbacks], evaluation_rows=4, **SETTINGS)
        watch.trainer = trainer
        return trainer

    trainer = ATTACH[attach](make, audit)
    before_training = set(vars(trainer)) - {"train"}
    raises = END[end](trainer, watch)
    if raises is None:
        trainer.train()
    else:
        with pytest.raises(raises) as caught:
            trainer.train()
        del caught

    report = audit.report
    *_, ended, judged = events_of(audit)
    assert isinstance(ended, RunEnded)
    assert isinstance(judged, Judged)
    assert (ended.status == "raised") == (raises is not None)
    unseen = end == "raised_by_the_scheduler" and attach in ("later", "for_the_second_time")
    assert ended.error.startswith("RuntimeError: training ended without" if unseen else getattr(raises, "__name__", ""))
    assert report.complete == (raises is None)
    if end in ON_FAIL:
        assert report.verdict == "FAIL"
        # The error for which training ended may stand below the finding that explains it.
        assert report.stopped_by in {finding.code for finding in report.findings if finding.severity == "error"}
        said = capsys.readouterr().err
        assert f"rlstep: on_fail={ON_FAIL[end]} ended training after " in said
        assert report.stopped_by in said
        assert trainer.state.global_step < STEPS
    else:
        assert (problems(report), report.stopped_by) == ([], "")

    assert changed(watch.before, attributes(trainer)) == []
    assert "train" not in vars(trainer)
    assert before_training <= set(vars(trainer))
    watch.logged.clear()
    trainer.evaluate()
    assert watch.logged
    assert not [name for entry in watch.logged for name in entry if name.startswith("rlstep/")]


def test_each_further_call_leaves_nothing_either(tmp_path: Path) -> None:
    watch, audit = Watch(), StepAuditCallback(log_dir=None, listeners=())
    trainer = watch.trainer = tiny_trainer(tmp_path, callbacks=[watch], evaluation_rows=4, **SETTINGS)
    trainer.add_callback(audit)
    for _ in range(3):
        trainer.train()
        assert changed(watch.before, attributes(trainer)) == []


def test_an_audit_that_outlives_its_run_keeps_no_trainer_and_no_model(tmp_path: Path) -> None:
    # vLLM freezes what is there when an engine is built (gc.freeze), the callback too: what it refers to then stays for good.
    audit = StepAuditCallback(log_dir=None, listeners=())
    trainer = tiny_trainer(tmp_path, callbacks=[audit], **SETTINGS)
    trainer.train()
    there = weakref.ref(trainer), weakref.ref(trainer.model)
    del trainer
    gc.collect()
    assert audit.report.verdict == "PASS"
    assert [of() for of in there] == [None, None]


def test_an_audit_keeps_no_trainer_that_was_never_trained(tmp_path: Path) -> None:
    audit = StepAuditCallback(log_dir=None, listeners=())
    trainer = tiny_trainer(tmp_path, callbacks=[audit], **SETTINGS)
    there = weakref.ref(trainer), weakref.ref(trainer.model)
    del trainer
    gc.collect()
    assert [of() for of in there] == [None, None]
    assert audit.report.verdict == "NOT_EVALUATED"


def test_the_classes_that_rlstep_run_hooks_have_their_own_functions_again() -> None:
    from trl.trainer import grpo_trainer

    own = vars(grpo_trainer.GRPOTrainer)["__init__"]
    injection.audit_grpo(grpo_trainer)
    assert vars(grpo_trainer.GRPOTrainer)["__init__"] is not own
    assert injection.detach() == []
    assert vars(grpo_trainer.GRPOTrainer)["__init__"] is own


class AddsTheAudit(TrainerCallback):  # type: ignore[misc]
    """Adds an audit to its trainer after three updates."""

    def __init__(self) -> None:
        self.audit = StepAuditCallback(log_dir=None, listeners=())
        self.trainer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            self.trainer.add_callback(self.audit)


def test_an_audit_that_is_added_while_training_is_under_way_says_so(tmp_path: Path) -> None:
    callback = AddsTheAudit()
    callback.trainer = trainer = tiny_trainer(tmp_path, callbacks=[callback], rows=8)
    trainer.train()
    assert callback.audit.report.verdict == "NOT_EVALUATED"
    assert "added while training was under way" in callback.audit.report.not_evaluated["order"]
    trainer.remove_callback(callback)
    trainer.train()
    assert callback.audit.report.verdict == "PASS", "the next training call is seen from its beginning"


def alive_after(folder: Path, audit: StepAuditCallback | None, **settings: Any) -> set[str]:
    """What of a trained trainer is there when nobody holds it, and no garbage was collected."""
    gc.collect()
    gc.disable()
    try:
        trainer = tiny_trainer(folder, callbacks=[] if audit is None else [audit], rows=8, **settings)
        trainer.train()
        held = {"trainer": trainer, "optimizer": trainer.optimizer.optimizer, "model": trainer.model}
        watched = {name: weakref.ref(of) for name, of in held.items()}
        del trainer, held
        return {name for name, of in watched.items() if of() is not None}
    finally:
        gc.enable()
        gc.collect()


@pytest.mark.parametrize(
    "settings",
    [{}, {"beta": 0.04, "num_iterations": 2}, {"max_grad_norm": 0.0, "gradient_accumulation_steps": 2}],
    ids=["plain", "reference", "accumulation"],
)
def test_a_trained_trainer_does_not_wait_for_the_garbage_collector(settings: dict[str, Any], tmp_path: Path) -> None:
    audit = StepAuditCallback(log_dir=None, listeners=())
    audited = alive_after(tmp_path / "audited", audit, **settings)
    assert audited == alive_after(tmp_path / "alone", None, **settings)
    assert audit.report.verdict == "PASS", "the audit outlives its trainer"
