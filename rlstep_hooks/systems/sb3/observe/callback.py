"""StepAuditSB3Callback: attaches the audit to PPO or A2C through Stable-Baselines3's own callback interface."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback

from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.observe.contained import Contained
from rlstep_hooks.observe.module_hooks import ModuleHookWatch
from rlstep_hooks.observe.optimizer_tensors import optimizer_tensors
from rlstep_hooks.observe.options import LEFT_OUT, LeftOut
from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.observe.surprise import surprises
from rlstep_hooks.observe.versions import versions_of
from rlstep_hooks.record import suite
from rlstep_hooks.record.events import ConfigChanged, FactsRead
from rlstep_hooks.session.session import Options, Session
from rlstep_hooks.systems import index
from rlstep_hooks.systems.own_loop.loop import LoopAudit, RolloutBlock
from rlstep_hooks.systems.sb3.observe import drawn
from rlstep_hooks.systems.sb3.observe.buffer import buffered
from rlstep_hooks.systems.sb3.observe.loss import MiniBatch, Settings, read_settings
from rlstep_hooks.systems.sb3.observe.rate import due_rate, own_function, rate_facts
from rlstep_hooks.systems.sb3.observe.timesteps import TimestepsWatch
from rlstep_hooks.systems.sb3.plan import plan_model
from rlstep_hooks.systems.sb3.releases import SUPPORTED, installed_release

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from types import TracebackType

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.observe.options import OnFail
    from rlstep_hooks.session.recorder import Listener


_SETTINGS = (
    "gamma",
    "gae_lambda",
    "vf_coef",
    "max_grad_norm",
    "normalize_advantage",
    "target_kl",
    "clip_range",
    "clip_range_vf",
    "ent_coef",
)
"""What `train` and the rollouts compute with."""
_CRITIC_ALONE = ("value_net.", "mlp_extractor.value_net.", "vf_features_extractor.")
"""Beginnings of the names of tensors that only the critic uses (common/policies.py 2.7.0 and 2.9.2)."""
_BY_DESIGN = ("ent_coef",)
"""Those of them that callbacks lower on purpose, though not below 0. The loss is compared with the value in force."""


class StepAuditSB3Callback(BaseCallback):  # type: ignore[misc]  # Stable-Baselines3 is not here when types are checked
    """Records a run of Stable-Baselines3's PPO or A2C, judges it against its own configuration while it trains, and reports.

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
        log_dir: Folder for the record, never overwritten. None keeps everything in memory. Default: RLSTEP_DIR, else None.
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
        self._options = Options.asked(on_fail, log_dir, listeners)
        self._session = Session(self._options, index.deviations_of)
        self._audit: LoopAudit | None = None
        self._rollout: RolloutBlock | None = None
        self._began_at = 0
        self._stops = False
        self._timesteps = TimestepsWatch()
        self._rollouts = 0
        self._targets: tuple[torch.Tensor, torch.Tensor] | None = None
        """The critic's targets and the values of the latest rollout, as its buffer had them; None where they are not compared."""
        self._minibatch: tuple[Any, Any] | None = None
        self._log_probs: torch.Tensor | None = None
        self._entropies: torch.Tensor | None = None
        self._drawn_cap: float | None = None
        """The cut of -log p where actions are tested against the policy's distributions; None where they are not."""
        self._is_first = False
        """Whether the mini-batch that comes is the rollout's first, whose weights are those that sampled it."""
        self._trained: int | None = None
        """Samples of the latest mini-batch that have a log-prob."""
        self._altered: torch.Tensor | None = None
        """Numbers of the mini-batch's observations and actions that are others; None where that is not known."""
        self._followed: MiniBatch | None = None
        """The mini-batch whose gradients are followed."""
        self._arrived: torch.Tensor | None = None
        """The largest gradient at a log-prob of the latest mini-batch."""
        self._settings: Settings | None = None
        """The settings of the loss, read when the latest rollout is first trained."""
        self._rate: Any = None
        """The learning-rate schedule where it is a function of the user's that may be called once more."""
        self._asked = False
        """Whether it was, for the latest rollout."""
        self._hooks: ModuleHookWatch | None = None
        self._replaced: list[tuple[str, torch.Tensor]] = []
        """Modules whose backward hooks replaced gradients of the latest mini-batch."""
        self._held: dict[str, int] = {}
        """The policy's tensors, and those of its optimizer."""
        self._in_force: dict[str, Any] = {}
        """The settings that were looked at last."""
        self._limited = False
        """Whether a divergence ends the updates on a rollout."""
        self._discount: tuple[float, float] = 0.0, 0.0
        """Gamma and lambda when the rollout began."""

    @property
    def report(self) -> Report:
        """The report of the latest call of `learn`; while it runs, it covers what was seen so far."""
        return self._session.report

    def __enter__(self) -> StepAuditSB3Callback:
        """Also end the record when `learn` raises."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """An exception of `learn` goes on."""
        self._end(error)

    # Stable-Baselines3's events

    def _on_training_start(self) -> None:
        self._end(None)
        session = self._session = Session(self._options, index.deviations_of)
        self._audit = None
        refusal = _refusal(self.model)
        if refusal:
            session.refuse(refusal)
            return
        with session.beginning():
            self._in_force = self._settings_now()
            self._limited = bool(_limit_facts(self.model))
            self._rate = own_function(self.model)
            self._drawn_cap = drawn.facts_of(self.model).get("surprise_cap")
            audit = self._planned(session)
            audit.begin()
            self._attach(session, audit)
            self._audit = audit

    def _planned(self, session: Session) -> LoopAudit:
        return LoopAudit(
            plan_model(self.model, int(self.locals["total_timesteps"]), version("stable-baselines3")),
            optimizer=self.model.policy.optimizer,
            versions=versions_of("stable-baselines3", "gymnasium", "torch"),
            facts={"compares_settings": True}
            | rate_facts(self.model)
            | _limit_facts(self.model)
            | drawn.facts_of(self.model)
            | suite.facts_of(self.model),
            max_grad_norm=lambda: self.model.max_grad_norm,
            rate_of_rollout=True,
            session=session,
        )

    def _attach(self, session: Session, audit: LoopAudit) -> None:
        self._guard = Contained(audit, ("order", "refresh", "log_ratio"))
        self._advantage_guard = Contained(audit, ("advantages",))
        self._timesteps_guard = Contained(audit, ("rewards", "timesteps"))
        self._timesteps, self._rollouts = TimestepsWatch(), 0
        self._loss_guard = Contained(audit, ("formula",))
        self._hooks = ModuleHookWatch(Contained(audit, ("gradient",)))
        self._rate_guard = Contained(audit, ("learning_rate",))
        self._drawn_guard = Contained(audit, ("drawn",))
        self._held = {}
        patches, policy = Patches(), self.model.policy
        if audit.observer is not None:
            audit.observer.follow_gradients(policy.named_parameters())
            audit.observer.set_apart(
                tensor for name, tensor in policy.named_parameters() if name.startswith(_CRITIC_ALONE)
            )
        self._look_at_tensors()
        session.take_off(patches.restore)
        # Each mini-batch, with the places of its samples in the rollout (common/buffers.py `get`, 2.7.0 and 2.9.2).
        patches.wrap(self.model.rollout_buffer, "_get_samples", self._around_get_samples)
        # Its log-probs under the current weights.
        patches.wrap(policy, "evaluate_actions", self._around_evaluate_actions)
        # A mini-batch that is trained: `train` calls this right before the backward; target_kl may end it before.
        patches.wrap(policy.optimizer, "zero_grad", self._around_zero_grad)
        # What was kept of the environment's rewards, before anything is computed from it.
        patches.wrap(self.model.rollout_buffer, "compute_returns_and_advantage", self._around_advantages)
        # torch's own hook: the backward is over, and the gradients of the mini-batch have arrived.
        handle = policy.optimizer.register_step_pre_hook(self._before_step)
        session.take_off(handle.remove)

    def _on_rollout_start(self) -> None:
        if self._audit is None:
            return
        self._stops = self._audit.should_stop
        self._discount = self.model.gamma, self.model.gae_lambda
        self._rollout, self._began_at = self._audit.rollout(), self.model.num_timesteps
        self._rollout.__enter__()
        with self._timesteps_guard:
            self._timesteps.begin(self.model, compared=is_compared(self._rollouts))
        self._rollouts += 1

    def _on_step(self) -> bool:
        if self._audit is not None:
            with self._timesteps_guard:
                self._timesteps.step(self.model, self.locals)
        return not self._stops

    def _around_advantages(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        observer = None if self._audit is None else self._audit.observer
        if observer is not None:
            with self._timesteps_guard:
                observer.moved(self._timesteps.moved(self.model.rollout_buffer))
        return wrapped(*args, **kwargs)

    def _on_rollout_end(self) -> None:
        if self._audit is None or self._rollout is None:
            return
        buffer, rollout, old = self.model.rollout_buffer, self._rollout, None
        if self._audit.schedule.old_logprob_source != "none":
            with self._guard:
                # In the order of the places above: all steps of the first environment, then of the next.
                flat = buffer.swap_and_flatten(buffer.log_probs).reshape(-1)
                old = torch.as_tensor(flat, device=self.model.device)
            self._audit.refresh(old)
        rollout.samples = self.model.num_timesteps - self._began_at
        self._rollout, self._is_first = None, True
        rollout.__exit__(None, None, None)
        with self._guard:
            self._compare_settings()
            self._look_at_tensors()
        self._compare_rollout()

    def _look_at_tensors(self) -> None:
        """Which of the policy's tensors its optimizer holds, whenever that changes: a layer that is put in another's place is not
        among them."""
        recorder, policy = self._session.recorder, self.model.policy
        held = optimizer_tensors(policy.parameters(), policy.optimizer)
        if recorder is not None and held != self._held:
            self._held = held
            recorder.emit(FactsRead(at=recorder.now(), facts={"optimizer_tensors": held}))

    def _settings_now(self) -> dict[str, Any]:
        """The settings of the model, and of its optimizer but its rate and its tensors."""
        of_model = {name: getattr(self.model, name, None) for name in _SETTINGS}
        groups = enumerate(self.model.policy.optimizer.param_groups)
        return of_model | {
            f"{name} of the optimizer" + (f", group {number}" if number else ""): value
            for number, group in groups
            for name, value in group.items()
            if name not in ("params", "lr", "initial_lr")
        }

    def _compare_settings(self) -> None:
        """Settings that are not what they were; they take effect when this rollout is trained. A schedule is the object that it was."""
        before, now, recorder = self._in_force, self._settings_now(), self._session.recorder
        self._in_force = now
        for name, value in now.items():
            known = before.get(name, value)
            if recorder is not None and known is not value and (callable(known) or callable(value) or known != value):
                recorder.emit(
                    ConfigChanged(
                        at=recorder.now(),
                        name=name,
                        before=_shown(known),
                        after=_shown(value),
                        since="train_begin",
                        by_design=name in _BY_DESIGN and value >= 0,
                    )
                )

    def _compare_rollout(self) -> None:
        """Compare the advantages of the rollout that ended."""
        observer = None if self._audit is None else self._audit.observer
        self._settings, self._asked, self._targets = None, False, None
        if observer is None or not observer.compares:
            return
        with self._advantage_guard:
            buffer = self.model.rollout_buffer
            # In the order of the places of samples, as the old log-probs.
            targets, values = (
                torch.as_tensor(buffer.swap_and_flatten(of).reshape(-1).copy(), device=self.model.device)
                for of in (buffer.returns, buffer.values)
            )
            self._targets = targets, values
            flat = torch.as_tensor(buffer.swap_and_flatten(buffer.advantages).reshape(-1), device=self.model.device)
            off: torch.Tensor | None = None
            fit: Callable[[], str] = str
            if isinstance(buffer, RolloutBuffer) and self._discount == (self.model.gamma, self.model.gae_lambda):
                # common/on_policy_algorithm.py `collect_rollouts`: the locals of the loop, once the buffer is complete.
                rows = buffered(self.model, self.locals["values"], self.locals["dones"])
                off, fit = rows.off(), rows.fit
            observer.compare_advantages(off, fit, flat)

    def _on_training_end(self) -> None:
        # A callback that ended training did so within a rollout.
        self._end(None, stopped=self._rollout is not None)

    def _end(self, error: BaseException | None, *, stopped: bool = False) -> None:
        self._rollout = self._minibatch = self._log_probs = self._followed = self._settings = None
        if self._hooks is not None:
            self._hooks.end()
        self._session.end(error, stopped=stopped)

    # Hooks

    def _around_get_samples(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        samples = wrapped(*args, **kwargs)
        observer = None if self._audit is None else self._audit.observer
        if self._rate is not None and not self._asked and observer is not None:
            self._asked = True
            with self._rate_guard:
                observer.rate_is_due(due_rate(self._rate, self.model))
        self._minibatch = (args[0] if args else kwargs.get("batch_inds"), samples)
        return samples

    def _around_evaluate_actions(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        # A module's backward hooks are taken at its forward.
        with self._loss_guard:
            self._replaced = self._hooks_of_policy()
        try:
            result = wrapped(*args, **kwargs)
        finally:
            if self._hooks is not None:
                self._hooks.end()
        with self._guard:
            self._log_probs, self._entropies = result[1].detach(), result[2]
            self._trained = len(result[1])
        with self._timesteps_guard:
            self._compare_inputs(*args, **kwargs)
        with self._loss_guard:
            self._followed = self._follow(*result)
            if result[1].requires_grad:
                result[1].register_hook(self._keep_gradient)
        return result

    def _compare_inputs(self, observations: Any, actions: torch.Tensor) -> None:
        """The loss is that of the observations and actions of its samples."""
        if self._minibatch is not None:
            places, _ = self._minibatch
            with torch.no_grad():
                self._altered = self._timesteps.differing(places, observations, actions)

    def _hooks_of_policy(self) -> list[tuple[str, torch.Tensor]]:
        """Look at the backward hooks of its modules, through the forward that comes."""
        observer = None if self._audit is None else self._audit.observer
        if self._hooks is None or observer is None or not observer.compares_whole:
            return []
        return self._hooks.begin(self.model.policy)

    def _keep_gradient(self, gradient: torch.Tensor) -> None:
        """What arrives at the log-probs in the backward: the optimizer is shared with the critic, and may leave the policy alone."""
        self._arrived = gradient.detach().abs().max()

    def _follow(self, values: torch.Tensor, log_probs: torch.Tensor, entropy: torch.Tensor | None) -> MiniBatch | None:
        """The mini-batch of these samples, with hooks on its gradients; None if its loss is not compared."""
        audit = self._audit
        if audit is None or audit.observer is None or not audit.observer.compares or not log_probs.requires_grad:
            return None
        if self._settings is None:
            self._settings = read_settings(self.model, ratio=audit.schedule.old_logprob_source != "none")
        found = MiniBatch(self._settings, log_probs.detach(), values.detach(), entropy is not None)
        found.follow(values, log_probs, entropy)
        return found

    def _around_zero_grad(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        minibatch, self._minibatch = self._minibatch, None
        if minibatch is not None and self._audit is not None:
            places, samples = minibatch
            if self._trained in (None, len(places)):
                self._train_minibatch(self._audit, places, samples)
            else:
                # Code between the buffer and the loop changed how many there are, and nobody knows which.
                self._followed = None
                self._audit.microbatch(self._trained)
        result = wrapped(*args, **kwargs)
        if minibatch is not None and self._audit is not None and self._audit.observer is not None:
            self._audit.observer.cleared()
        return result

    def _train_minibatch(self, audit: LoopAudit, places: Any, samples: Any) -> None:
        """A mini-batch is trained.

        Args:
            audit: Takes it.
            places: (B,) its samples in the rollout.
            samples: What the buffer gave for them.
        """
        audit.microbatch(
            indices=places,
            # A2C has no ratio; its one update still begins with the policy that sampled.
            old_logprobs=samples.old_log_prob,
            new_logprobs=self._log_probs,
            advantages=samples.advantages,
            targets=samples.returns,
        )
        self._compare_targets(places, samples)
        self._add_surprise(audit)
        if self._altered is not None and audit.observer is not None:
            audit.observer.add_columns({"timesteps_differ": self._altered})
        if self._followed is not None:
            self._followed.samples = samples
            self._add_divergence(samples)

    def _compare_targets(self, places: Any, samples: Any) -> None:
        """The critic's targets of a mini-batch, and where its loss clips them the old values, are those that the rollout came with."""
        observer = None if self._audit is None else self._audit.observer
        if observer is None or self._targets is None:
            return
        with self._advantage_guard, torch.no_grad():
            targets, values = (of[torch.as_tensor(places, device=of.device)] for of in self._targets)
            differing = (targets != samples.returns).sum()
            if getattr(self.model, "clip_range_vf", None) is not None:
                differing = differing + (values != samples.old_values).sum()
            observer.add_columns({"targets_differ": differing})

    def _add_surprise(self, audit: LoopAudit) -> None:
        """How surprising the actions of a rollout's first mini-batch are, whose log-probs are those of the weights that sampled it."""
        first, self._is_first = self._is_first, False
        if (
            not first
            or self._drawn_cap is None
            or self._entropies is None
            or self._log_probs is None
            or audit.observer is None
        ):
            return
        with self._drawn_guard, torch.no_grad():
            log_probs, entropies = self._log_probs.reshape(1, 1, -1), self._entropies.detach().reshape(1, 1, -1)
            found = surprises(log_probs, entropies, torch.ones_like(log_probs), self._drawn_cap)
            audit.observer.add_columns({name: of[0] for name, of in found.items()})

    def _add_divergence(self, samples: Any) -> None:
        """The estimate of the KL divergence that `train` compares with target_kl (ppo/ppo.py 2.7.0 and 2.9.2)."""
        observer = None if self._audit is None else self._audit.observer
        if observer is None or self._log_probs is None or not self._limited:
            return
        with self._loss_guard, torch.no_grad():
            log_ratio = self._log_probs - samples.old_log_prob
            observer.add_columns({"divergence": ((log_ratio.exp() - 1) - log_ratio).mean()})

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        followed, self._followed = self._followed, None
        arrived, self._arrived = self._arrived, None
        replaced, self._replaced = self._replaced, []
        observer = None if self._audit is None else self._audit.observer
        if observer is None:
            return
        with self._loss_guard, torch.no_grad():
            observer.add_replaced(replaced)
            if arrived is not None:
                observer.add_columns({"log_prob_gradient": arrived})
            if followed is not None and followed.samples is not None:
                observer.add_columns(followed.columns(), followed.like)


def _shown(value: Any) -> Any:
    """A setting as it is recorded: a schedule by its name."""
    return getattr(value, "__name__", type(value).__name__) if callable(value) else value


def _limit_facts(model: Any) -> dict[str, Any]:
    """The divergence at which `train` ends the updates on a rollout: 1.5 times target_kl (ppo/ppo.py 2.7.0 and 2.9.2)."""
    target = getattr(model, "target_kl", None)
    return {} if target is None else {"kl_limit": 1.5 * float(target)}


def _refusal(model: Any) -> str:
    """Why a model cannot be audited; empty where it can."""
    name, release = type(model).__name__, installed_release()
    trained = next((kind for kind in (PPO, A2C) if isinstance(model, kind)), None)
    if trained is None or type(model).train is not trained.train:
        return f"{name} is not supported (PPO and A2C with their own `train` are)"
    if release is None or not release.supported:
        return (
            f"Stable-Baselines3 {release.sb3 if release else 'of unknown release'} is not supported ({SUPPORTED} are)"
        )
    return ""
