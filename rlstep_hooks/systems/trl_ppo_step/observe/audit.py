"""StepAuditPPO: audits TRL's first PPOTrainer, whose `step()` a script calls itself."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from packaging.version import Version

from rlstep_hooks.observe.hooks import Hooks, LateRecorder
from rlstep_hooks.observe.sharding.zero import wrapped_optimizer
from rlstep_hooks.observe.versions import versions_of
from rlstep_hooks.systems.engine import index, reader
from rlstep_hooks.systems.own_loop.attached import AttachedAudit
from rlstep_hooks.systems.own_loop.loop import LoopAudit
from rlstep_hooks.systems.trl_ppo_step.system import SYSTEM

if TYPE_CHECKING:
    from rlstep_hooks.observe.hooks import Call
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.own_loop.recorder import LoopObserver

FIRST, FIRST_UNSUPPORTED = Version("0.9"), Version("0.12")
"""Releases whose `step()` was read (0.9.6, 0.11.4); 0.11.4 was trained for real (tests/systems/trl_step)."""


class StepAuditPPO(AttachedAudit):
    """Records the loop of a script that calls `PPOTrainer.step()` (TRL 0.9 to 0.11), judges it while it trains, and reports.

        with StepAuditPPO(ppo_trainer) as audit:
            for batch in ppo_trainer.dataloader:
                ...
                ppo_trainer.step(queries, responses, scores)
        audit.report.verdict

    Each call of `step` is one rollout. How often the script calls it, and how it samples, is the script's own affair and is not
    judged. Hooks sit on the trainer object and are gone when the block ends. With several processes each audits itself.
    """

    _steps = 0
    _waits_for_old = False

    def _refusal(self) -> str:
        return _refusal(self._trainer)

    def _attach(self) -> None:
        # There is no record before the first call of `step`, which plans the run.
        self._hooks = hooks = Hooks(LateRecorder(lambda: self._session.recorder))
        self._session.take_off(hooks.take_off)
        # One rollout and its updates (trl/trainer/ppo_trainer.py `step`, 0.9.6 and 0.11.4).
        hooks.wrap(self._trainer, "step", before=self._step_begins, topics=("order", "refresh"))
        # Old log-probs: its first forward without gradients.
        hooks.wrap(self._trainer, "batched_forward_pass", after=self._forwarded, topics=("order", "refresh"))
        # One micro-batch, backward and optimizer step included.
        hooks.wrap(self._trainer, "train_minibatch", before=self._minibatch, topics=("order", "samples", "log_ratio"))
        self._raise_from(self._trainer, "train_minibatch")

    def _begin(self) -> None:
        """Plan at the first call, which shows whether the script goes through the trainer's loader."""
        with self._session.beginning():
            audit = self._planned()
            audit.begin()
            self._audit = audit

    def _planned(self) -> LoopAudit:
        trainer = self._trainer
        return LoopAudit(
            plan_trainer(trainer, version("trl")),
            optimizer=wrapped_optimizer(trainer),
            session=self._session,
            facts={"nominal_updates_per_rollout": _nominal(trainer.config)} | index.link_facts("trl_ppo_step"),
            versions=versions_of("trl", "transformers", "accelerate", "torch"),
        )

    def _step_begins(self, call: Call) -> None:
        if self._audit is None and not self._session.refused:
            self._begin()
        audit, observer = self._audit, self._observer
        if audit is None or observer is None:
            return
        self._compare_place(audit)
        self._steps += 1
        observer.rollout_begins()
        observer.rollout_ended(len(call.argument("queries", 0, ())), None)
        self._waits_for_old = True

    @property
    def _observer(self) -> LoopObserver | None:
        return None if self._audit is None else self._audit.observer

    def _compare_place(self, audit: LoopAudit) -> None:
        """Compare the place in the loader, as accelerate knows it, with the plan: if they differ, the order cannot be judged."""
        flush = audit.schedule.flush
        at_end = bool(self._trainer.accelerator.gradient_state.end_of_dataloader)
        if audit.schedule.window > 1 and at_end != (flush is not None and flush.covers(self._steps)):
            audit.cannot(
                "order", "the script goes through its prompts in another way than one batch for each call of step()"
            )

    def _forwarded(self, call: Call) -> None:
        if self._waits_for_old and self._observer is not None and not torch.is_grad_enabled():
            self._waits_for_old = False
            self._observer.refreshed(None)

    def _minibatch(self, call: Call) -> None:
        if self._observer is not None:
            given = call.named(*_MINIBATCH)
            self._observer.microbatch(
                samples=None,
                indices=None,
                role="policy",
                old_logprobs=given.get("old_logprobs"),
                new_logprobs=given.get("logprobs"),
                mask=given.get("mask"),
                advantages=given.get("advantages"),
                targets=given.get("returns"),
            )


_MINIBATCH = ("old_logprobs", "values", "logprobs", "logits", "vpreds", "mask", "advantages", "returns")
"""Parameters of `train_minibatch`, in their order."""


def plan_trainer(trainer: Any, release: str) -> Schedule:
    """The Schedule of one process of a script that calls `step()`; the number of calls is not known.

    Args:
        trainer: The PPOTrainer. Its place in a loader that accelerate has prepared decides where a pass over the prompts ends.
        release: Release of TRL.

    Raises:
        PlanError: The trainer fails on these sizes.
    """
    loader = trainer.accelerator.gradient_state.active_dataloader
    batch = trainer.config.batch_size
    config = {name: getattr(trainer.config, name) for name in SYSTEM.settings if hasattr(trainer.config, name)}
    rows = len(loader) * batch if loader is not None else None
    schedule = reader.read_config(SYSTEM, config, rows=rows, world_size=1, version=release).schedule
    # The reference model's log-probs and the end of a pass are not observed here.
    return msgspec.structs.replace(schedule, reference_source="none", epoch_ends_between_rollouts=False)


def _nominal(config: Any) -> int:
    """Updates for each call of `step`, as the sizes say."""
    return int(config.ppo_epochs * config.batch_size // (config.mini_batch_size * config.gradient_accumulation_steps))


def _refusal(trainer: Any) -> str:
    """Why a trainer cannot be audited; empty where it can."""
    release = version("trl")
    if not (hasattr(trainer, "step") and hasattr(trainer, "train_minibatch")):
        return f"{type(trainer).__name__} is not supported (a PPOTrainer with step() is)"
    if not FIRST <= Version(Version(release).base_version) < FIRST_UNSUPPORTED:
        return f"TRL {release} is not supported (0.9 to 0.11 are)"
    if getattr(trainer.accelerator.state, "deepspeed_plugin", None) is not None:
        return "DeepSpeed makes the updates inside its own engine"
    return ""
