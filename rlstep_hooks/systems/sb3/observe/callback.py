"""StepAuditSB3Callback: attaches the audit to PPO, A2C, MaskablePPO or RecurrentPPO through Stable-Baselines3's callbacks."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback

from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.hooks import Call, Hooks, LateRecorder
from rlstep_hooks.observe.optimizer_tensors import optimizer_tensors
from rlstep_hooks.observe.options import LEFT_OUT, LeftOut
from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.observe.seeds import seed_facts
from rlstep_hooks.observe.versions import versions_of
from rlstep_hooks.record import suite
from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.events import FactsRead
from rlstep_hooks.record.ledger import BELOW
from rlstep_hooks.record.logger import not_evaluated
from rlstep_hooks.session.session import Options, Session
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.own_loop.loop import LoopAudit, RolloutBlock
from rlstep_hooks.systems.sb3.observe import built, sampled, settings
from rlstep_hooks.systems.sb3.observe.acting import ActingWatch
from rlstep_hooks.systems.sb3.observe.buffer import buffered
from rlstep_hooks.systems.sb3.observe.followed import followed, refusal
from rlstep_hooks.systems.sb3.observe.rate import rate_facts
from rlstep_hooks.systems.sb3.observe.timesteps import TimestepsWatch
from rlstep_hooks.systems.sb3.observe.training import TrainingWatch, limit_facts
from rlstep_hooks.systems.sb3.plan import plan_model

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from types import TracebackType

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.observe.guard import GapRecorder
    from rlstep_hooks.observe.options import OnFail
    from rlstep_hooks.observe.settings import SettingsWatch
    from rlstep_hooks.session.recorder import Listener
    from rlstep_hooks.systems.own_loop.recorder import LoopObserver


_CRITIC_ALONE = ("value_net.", "mlp_extractor.value_net.", "vf_features_extractor.", "lstm_critic.", "critic.")
"""Beginnings of the names of tensors that only the critic uses (common/policies.py 2.7.0 and 2.9.2; sb3-contrib 2.9.2,
common/recurrent/policies.py)."""


class StepAuditSB3Callback(BaseCallback):  # type: ignore[misc]  # Stable-Baselines3 is not here when types are checked
    """Records a run of Stable-Baselines3's PPO or A2C, or of sb3-contrib's MaskablePPO or RecurrentPPO, judges it against its own
    configuration while it trains, and reports.

        audit = StepAuditSB3Callback()
        model.learn(total_timesteps=1_000_000, callback=audit)
        audit.report.verdict

    `learn` tells callbacks about its end, but not about an exception. `with StepAuditSB3Callback() as audit:` around it also ends the
    record after an exception; otherwise the record is unfinished, like that of a killed run.

    The hooks sit on the rollout buffer, the policy and its optimizer. Nothing is put on the model itself, so that `model.save`
    works while it trains.

    Args:
        on_fail: "warn" only reports; "stop" ends `learn` cleanly at the next rollout after an error; "raise" raises
            `StepAuditError` out of it. Default: RLSTEP_ON_FAIL, else "warn".
        log_dir: Folder for the record, never overwritten. None keeps everything in memory. Default: RLSTEP_DIR, else `rlstep/` in
            the model's `tensorboard_log`, else in the working directory.
        listeners: Views that follow the run; by default plan and verdict are printed on stderr.

    Raises:
        ValueError: `on_fail` is none of the three.
    """

    def __init__(
        self,
        on_fail: OnFail | None = None,
        log_dir: str | os.PathLike[str] | LeftOut | None = LEFT_OUT,
        *,
        listeners: tuple[Listener, ...] | None = None,
    ) -> None:
        super().__init__()
        self._log_dir = log_dir
        self._options = Options.asked(on_fail, log_dir, listeners)
        self._session = Session(self._options, index.deviations_of)
        self._audit: LoopAudit | None = None
        self._rollout: RolloutBlock | None = None
        self._began_at = 0
        self._stops = False
        self._timesteps = TimestepsWatch()
        self._acting = ActingWatch()
        self._rollouts = 0
        self._training: TrainingWatch | None = None
        self._settings: SettingsWatch | None = None
        self._held: dict[str, int] = {}
        """The policy's tensors, and those of its optimizer."""
        self._last_values: Any = None
        """The critic's after the last timestep, as the buffer was given them."""
        self._discount: tuple[float, float] = 0.0, 0.0
        """Gamma and lambda when the rollout began."""

    @property
    def report(self) -> Report:
        """The report of the latest call of `learn`; while it runs, it covers what was seen so far."""
        return self._session.report

    @property
    def recorder(self) -> GapRecorder:
        """Learns what is not observed."""
        return LateRecorder(lambda: self._audit)

    def __enter__(self) -> StepAuditSB3Callback:
        """Let the record end when `learn` raises, as well as when it returns."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """An exception of `learn` goes on."""
        self._end(error)

    # Stable-Baselines3's events

    def _on_training_start(self) -> None:
        self._end(None)
        options = replace(self._options, log_dir=self._record_folder())
        session = self._session = Session(options, index.deviations_of)
        self._audit = None
        refused = refusal(self.model)
        if refused:
            session.refuse(refused)
            return
        with session.beginning():
            self._settings = settings.of_training(self.model)
            audit = self._planned(session)
            audit.begin()
            self._attach(session, audit)
            self._audit = audit
            if session.recorder is not None:
                settings.of_copies(self.model).tell(session.recorder)

    def _record_folder(self) -> str | os.PathLike[str] | None:
        """The folder that was asked for, else `rlstep/` beside what Stable-Baselines3 itself writes."""
        if self._options.log_dir is not None or not isinstance(self._log_dir, LeftOut):
            return self._options.log_dir
        return Path(getattr(self.model, "tensorboard_log", None) or ".") / BELOW

    def _planned(self, session: Session) -> LoopAudit:
        return LoopAudit(
            plan_model(self.model, self._asked_for(), version("stable-baselines3")),
            optimizer=self.model.policy.optimizer,
            versions=versions_of("stable-baselines3", "sb3-contrib", "gymnasium", "torch"),
            facts={"compares_settings": True, "reference_log_probs": "none"}
            | index.link_facts("sb3")
            | rate_facts(self.model)
            | limit_facts(self.model)
            | sampled.facts_of(self.model)
            | self._built()
            | seed_facts(self.model.seed)
            | suite.facts_of(self.model),
            max_grad_norm=lambda: self.model.max_grad_norm,
            rate_of_rollout=True,
            session=session,
        )

    def _asked_for(self) -> int:
        """Timesteps that this call of `learn` should make. Its local variable includes those of earlier calls, which it counts on from
        unless it was asked to begin at 0 (common/base_class.py `_setup_learn`, 2.7.0 and 2.9.2)."""
        before = 0 if self.locals.get("reset_num_timesteps", False) else int(self.model.num_timesteps)
        return max(int(self.locals["total_timesteps"]) - before, 0)

    def _built(self) -> dict[str, Any]:
        try:
            return built.facts_of(self.model)
        except Exception as error:  # noqa: BLE001 - a network that cannot be compared keeps nothing from being audited
            not_evaluated(f"how the network is built: {describe(error)}")
            return {}

    def _attach(self, session: Session, audit: LoopAudit) -> None:
        self._timesteps, self._acting, self._rollouts = TimestepsWatch(), ActingWatch(), 0
        self._held = {}
        hooks, patches, policy = Hooks(audit), Patches(), self.model.policy
        session.take_off(hooks.take_off)
        session.take_off(patches.restore)
        self._look_at_tensors()
        # What was kept of the environment's steps, before anything is computed from it.
        buffer, computes = self.model.rollout_buffer, "compute_returns_and_advantage"
        hooks.wrap(buffer, computes, before=self._rollout_is_made, topics=("rewards", "timesteps"))
        # What the environment gets: the loop's own variables say only what it meant to hand over.
        hooks.wrap(self.model.env, "step", before=self._environment_acts, topics=("timesteps",))
        if audit.observer is not None:
            audit.observer.updates.follow_gradients(policy.named_parameters())
            audit.observer.updates.set_apart(
                tensor for name, tensor in policy.named_parameters() if name.startswith(_CRITIC_ALONE)
            )
            self._training = TrainingWatch(self.model, audit, audit.observer, self._timesteps)
            self._training.attach(hooks, patches, session.take_off)

    def _on_rollout_start(self) -> None:
        if self._audit is None:
            return
        self._passes_ended()
        self._stops = self._audit.should_stop
        self._discount = self.model.gamma, self.model.gae_lambda
        self._rollout, self._began_at = self._audit.rollout(), self.model.num_timesteps
        self._rollout.__enter__()
        self._timesteps_begin()
        self._rollouts += 1

    @contained("rewards", "timesteps")
    def _timesteps_begin(self) -> None:
        """Look at the environments and the policy before the first timestep of a rollout."""
        compared = is_compared(self._rollouts)
        self._timesteps.begin(self.model, compared=compared)
        self._acting.begin(self.model, compared=compared)

    def _on_step(self) -> bool:
        if self._audit is not None:
            self._see_timestep()
        return not self._stops

    @contained("rewards", "timesteps")
    def _see_timestep(self) -> None:
        """Look at one step of the environments."""
        self._timesteps.step(self.model, self.locals)
        self._acting.step(self.model, self.locals)

    def _environment_acts(self, call: Call) -> None:
        self._timesteps.act(call.argument("actions", 0))

    def _rollout_is_made(self, call: Call) -> None:
        self._last_values = call.argument("last_values", 0)
        observer = None if self._audit is None else self._audit.observer
        if observer is not None:
            observer.moved(self._timesteps.moved(self.model) | self._acting.take())

    def _on_rollout_end(self) -> None:
        if self._audit is None or self._rollout is None:
            return
        rollout = self._rollout
        if self._audit.schedule.old_logprob_source != "none":
            self._audit.refresh(self._old_log_probs())
        rollout.samples = self.model.num_timesteps - self._began_at
        self._rollout = None
        rollout.__exit__(None, None, None)
        self._see_model()
        if self._training is not None:
            self._training.rollout_ended(self._compare_rollout())

    @contained("order", "refresh", "log_ratio")
    def _old_log_probs(self) -> torch.Tensor:
        """Take the log-probs of the buffer in the order of the places of samples: all steps of the first environment, then of the
        next."""
        buffer = self.model.rollout_buffer
        return torch.as_tensor(buffer.swap_and_flatten(buffer.log_probs).reshape(-1), device=self.model.device)

    @contained("order", "refresh", "log_ratio")
    def _see_model(self) -> None:
        """Compare the settings in force, and look which tensors the optimizer holds."""
        if self._settings is not None and self._session.recorder is not None:
            self._settings.tell(self._session.recorder)
        self._look_at_tensors()

    def _look_at_tensors(self) -> None:
        """Which of the policy's tensors its optimizer holds, whenever that changes: a layer that is put in another's place is not
        among them."""
        recorder, policy = self._session.recorder, self.model.policy
        held = optimizer_tensors(policy.parameters(), policy.optimizer)
        if recorder is not None and held != self._held:
            self._held = held
            recorder.emit(FactsRead(at=recorder.now(), facts={"optimizer_tensors": held}))

    def _compare_rollout(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Compare the advantages of the rollout that ended.

        Returns:
            The critic's targets and values, by place; None where they are not compared.
        """
        observer = None if self._audit is None else self._audit.observer
        if observer is None or not observer.compares:
            return None
        held = self._targets_and_values()
        if held is not None:
            self._compare_advantages(observer)
        return held

    @contained("advantages")
    def _targets_and_values(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the critic's targets and values of the buffer in the order of the places of samples, as the old log-probs."""
        buffer = self.model.rollout_buffer
        targets, values = (
            torch.as_tensor(buffer.swap_and_flatten(of).reshape(-1).copy(), device=self.model.device)
            for of in (buffer.returns, buffer.values)
        )
        return targets, values

    @contained("advantages")
    def _compare_advantages(self, observer: LoopObserver) -> None:
        """Compare the advantages of the buffer with those that its rewards and values give."""
        buffer = self.model.rollout_buffer
        flat = torch.as_tensor(buffer.swap_and_flatten(buffer.advantages).reshape(-1), device=self.model.device)
        off: torch.Tensor | None = None
        fit: Callable[[], str] = str
        if isinstance(buffer, RolloutBuffer) and self._discount == (self.model.gamma, self.model.gae_lambda):
            # common/on_policy_algorithm.py `collect_rollouts`: the locals of the loop, once the buffer is complete.
            found = followed(self.model)
            shown = found is not None and found.tells_last
            last = self.locals["values"] if shown else self._last_values
            rows = buffered(self.model, last, self.locals["dones"])
            off, fit = rows.off(), rows.fit
        observer.compare_advantages(off, fit, flat)

    def _passes_ended(self) -> None:
        if self._training is not None and self._session.recorder is not None:
            self._training.passes_ended(self._session.recorder)

    def _on_training_end(self) -> None:
        self._passes_ended()
        # A callback that ended training did so within a rollout.
        self._end(None, stopped=self._rollout is not None)

    def _end(self, error: BaseException | None, *, stopped: bool = False) -> None:
        self._rollout = self._training = None
        self._session.end(error, stopped=stopped)
