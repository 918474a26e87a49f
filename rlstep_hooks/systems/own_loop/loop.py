"""`rlstep_hooks.audit`: the recorder and its judge for a loop of one's own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.options import LEFT_OUT, LeftOut
from rlstep_hooks.session.agreement import agree_on_run
from rlstep_hooks.session.session import Options, Run, Session
from rlstep_hooks.systems.engine import index
from rlstep_hooks.version import __version__

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from torch import Tensor

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.observe.options import OnFail
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.values import Role
    from rlstep_hooks.session.recorder import Listener
    from rlstep_hooks.systems.own_loop.advantages import EstimatorName
    from rlstep_hooks.systems.own_loop.recorder import LoopObserver


class RolloutBlock:
    """The context of one rollout. Leaving it without an exception is the rollout's end."""

    def __init__(self, audit: LoopAudit, samples: int | None, sampler_version: int | None) -> None:
        self.samples = samples
        """Samples of the rollout; may be set until the block ends."""
        self._audit = audit
        self._sampler_version = sampler_version

    def __enter__(self) -> RolloutBlock:
        """Sampling begins."""
        self._audit._rollout_begins()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Sampling is over, or raised; the exception goes on."""
        self._audit._rollout_ended(self.samples, self._sampler_version, raised=error is not None)


class LoopAudit:
    """Records a hand-written loop, judges it against its plan while it trains, and reports.

        with rlstep_hooks.audit(schedule, optimizer=optimizer) as audit:
            for _ in range(rollouts):
                with audit.rollout(samples=1024):
                    ...  # sample, and keep the log-probs
                    audit.refresh()
                for epoch in range(epochs):
                    for indices in minibatches:
                        ...  # the loss
                        audit.microbatch(indices=indices)
                        loss.backward()
                        optimizer.step()
        audit.report.verdict

    If it cannot observe something, it says so (`report.not_evaluated`, and a warning of the logger `rlstep`), and training goes on.
    Tensors that it is given are not changed and not kept in the graph. With several processes each audits itself.

    Args:
        schedule: The plan; `Schedule.ppo` makes one.
        optimizer: The policy's optimizer, which may train the critic too. Left out, torch's hook on all optimizers counts the
            steps of the one optimizer of this process.
        critic_optimizer: The critic's own, where it has one.
        on_fail: "warn" only reports; "stop" makes `should_stop` true; "raise" raises `StepAuditError` out of the next call.
            Default: RLSTEP_ON_FAIL, else "warn".
        log_dir: Folder for the record, never overwritten. None keeps everything in memory. Default: RLSTEP_DIR, else None.
        listeners: Views that follow the run; by default plan and verdict are printed on stderr.
        facts: Facts about the run, such as `compute_dtype="bfloat16"` where autocast is on; else read from the weights.
        versions: Releases of the packages involved, for the record.
        max_grad_norm: The limit that the loop clips the policy's gradient norm to, or a function that returns it at a step.
        learning_rate: The rate that the policy's optimizer should have, which RLS605 compares with the one it has: a number, or a
            function of rollout and update, both counted from 0, that only computes.
        rate_of_rollout: Whether the rate is set once a rollout, so that the rollout is its schedule's tick.
        model: What several processes train together, as the loop calls it: DistributedDataParallel of torch or of megatron-core. Then
            each process records what it gives to the gradients and what it gets, and the first one joins the records: all of them
            audit, with one `log_dir`. Give `optimizer` too, as the loop steps it.
        session: The session of an audit that was asked for elsewhere; its options replace those above.

    Raises:
        ValueError: `on_fail` is none of the three, or the critic's optimizer or the model is named and the policy's optimizer is not.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        optimizer: Any = None,
        critic_optimizer: Any = None,
        on_fail: OnFail | None = None,
        log_dir: str | os.PathLike[str] | LeftOut | None = LEFT_OUT,
        listeners: tuple[Listener, ...] | None = None,
        facts: dict[str, Any] | None = None,
        versions: dict[str, str] | None = None,
        max_grad_norm: float | Callable[[], float | None] | None = None,
        learning_rate: float | Callable[[int, int], float] | None = None,
        rate_of_rollout: bool = False,
        model: Any = None,
        session: Session | None = None,
    ) -> None:
        if optimizer is None and (critic_optimizer is not None or model is not None):
            given = "model" if critic_optimizer is None else "critic_optimizer"
            raise ValueError(f"{given} is given, so the policy's optimizer is needed too: optimizer=...")
        self._session = session or Session(Options.asked(on_fail, log_dir, listeners), index.deviations_of)
        self.on_fail = self._session.options.on_fail
        self.schedule = schedule
        roles: dict[Role, Any] = {"policy": optimizer, "critic": critic_optimizer}
        self._optimizers = {role: given for role, given in roles.items() if given is not None}
        self._facts = index.link_facts("own_loop") | {"reference_log_probs": "unseen"} | (facts or {})
        self._versions = versions
        self._max_grad_norm = max_grad_norm
        self._learning_rate = learning_rate
        self._rate_of_rollout = rate_of_rollout
        self._model = model
        self._observer: LoopObserver | None = None

    # What it says

    @property
    def report(self) -> Report:
        """The report; while the loop runs, it covers what was seen so far."""
        return self._session.report

    @property
    def folder(self) -> Path | None:
        """The folder of the record; None if it is kept in memory."""
        return self._session.folder

    @property
    def version(self) -> int:
        """Updates applied to the policy since the audit began."""
        return self._observer.version if self._observer is not None else 0

    @property
    def observer(self) -> LoopObserver | None:
        """The recorder that turns the loop into events; None before it begins. Adapters use it if they see more than a loop tells."""
        return self._observer

    @property
    def should_stop(self) -> bool:
        """Whether the loop should end now: `on_fail` is "stop" and an error was found."""
        return self._session.stop_if_asked()

    # What the loop says

    def rollout(self, samples: int | None = None, *, sampler_version: int | None = None) -> RolloutBlock:
        """A context around the sampling of one rollout.

        Args:
            samples: Samples (timesteps of all actors) of the rollout; or set `samples` of the context before it ends.
            sampler_version: `version` of the weights that sampled it, where actors may hold older ones.
        """
        return RolloutBlock(self, samples, sampler_version)

    def refresh(self, old_logprobs: Tensor | None = None) -> None:
        """Old log-probs were computed. Call it where the loop computes them: inside the rollout, or after it.

        Args:
            old_logprobs: The log-probs of all samples of the rollout, in the order that `indices` count. Where they are given,
                those of each micro-batch are compared with them, bit for bit.
        """
        if self._observer is not None:
            self._observer.refreshed(old_logprobs)
            self._session.raise_if_asked()

    def rewards(self, rewards: Tensor) -> None:
        """The rewards of the latest rollout, from which its advantages are computed. Call it before `advantages`.

        Args:
            rewards: (N,), one a sample; or (T, E), of T timesteps of E actors; (T,) of one actor.
        """
        if self._observer is not None:
            self._observer.rewarded(rewards)
            self._session.raise_if_asked()

    def advantages(
        self,
        advantages: Tensor,
        estimator: EstimatorName,
        *,
        group: int | None = None,
        values: Tensor | None = None,
        last_values: Tensor | None = None,
        dones: Tensor | None = None,
        last_dones: Tensor | None = None,
        final_values: Tensor | None = None,
        mask: Tensor | None = None,
        gamma: float = 1.0,
        lam: float = 1.0,
    ) -> None:
        """The advantages of the latest rollout, as the estimator gives them and before they are normalised.

        They are computed again in float64, from what `rewards` was told. Those that `microbatch` is given with `indices` are compared
        with them too: they have to be these, up to their mean and a positive factor, so a loss may normalise them.

        Args:
            advantages: The shape of the rewards. Flattened, their order is the one that `indices` count.
            estimator: "gae"; "returns" (discounted sums of rewards); "grpo" (divided by the group's standard deviation), "dr_grpo" (not
                divided) or "rloo".
            group: Samples of one prompt, which stand in a row; for the last three.
            values: The critic's, in the shape of the rewards; for "gae".
            last_values: (E,), the critic's after the last timestep; left out, they are 0.
            dones: In the shape of the rewards, not 0 where an episode ends with the timestep: `values` of the next timestep belong to
                another episode. With `last_dones`, not 0 where an episode ended before the timestep, as CleanRL and the buffer of
                Stable-Baselines3 keep them (`episode_starts`).
            last_dones: (E,), not 0 where an episode ended with the last timestep (CleanRL's `next_done`). Only beside such `dones`.
            final_values: In the shape of the rewards, for "gae": the critic's value of an episode's last observation where the loop
                counts it although the episode ends there (a time limit: `truncated`), else 0. `dones` is not 0 there.
            mask: In the shape of the rewards, not 0 where the timestep is a sample; left out, all are.
            gamma: Discount.
            lam: GAE's lambda.
        """
        if self._observer is not None:
            self._observer.advantaged(
                advantages,
                estimator,
                group=group,
                values=values,
                last_values=last_values,
                dones=dones,
                last_dones=last_dones,
                final_values=final_values,
                mask=mask,
                gamma=gamma,
                lam=lam,
            )
            self._session.raise_if_asked()

    def microbatch(
        self,
        samples: int | None = None,
        *,
        indices: Tensor | Sequence[int] | None = None,
        role: Role = "policy",
        old_logprobs: Tensor | None = None,
        new_logprobs: Tensor | None = None,
        mask: Tensor | None = None,
        advantages: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> None:
        """A forward and backward. Call it once the loss is computed, before the optimizer steps.

        Only the number of samples is needed, as `samples` or from another argument. Each other argument is compared if it is given.
        Pass the tensors that the loss gets, unchanged.

        Args:
            samples: Samples of the micro-batch.
            indices: Which samples of the rollout they are: numbers from 0, on the CPU.
            role: The role whose loss it is. If one optimizer trains policy and critic, the role is the policy.
            old_logprobs: (B,) or (B, T), the denominator of the ratio.
            new_logprobs: Log-probs of the same shape, from the current weights.
            mask: A mask of the same shape, not 0 where a token counts.
            advantages: Advantages in the loss.
            targets: The targets of the critic's values.
        """
        if self._observer is not None:
            self._observer.microbatch(
                samples=samples,
                indices=indices,
                role=role,
                old_logprobs=old_logprobs,
                new_logprobs=new_logprobs,
                mask=mask,
                advantages=advantages,
                targets=targets,
            )
            self._session.raise_if_asked()

    def skipped_update(self, role: Role = "policy", *, reason: str = "gradient scaler") -> None:
        """The loop reached its optimizer step, but a gradient scaler skipped it."""
        if self._observer is not None:
            self._observer.updates.skipped(role, reason)
            self._session.raise_if_asked()

    def cannot(self, topic: str, why: str) -> None:
        """Say that something cannot be observed: rules that need it are then NOT EVALUATED.

        Args:
            topic: One of `rlstep_hooks.record.events.TOPICS`.
            why: The reason, for the report.
        """
        if self._session.recorder is not None:
            self._session.recorder.cannot(topic, why)

    def _rollout_begins(self) -> None:
        if self._observer is not None:
            self._observer.rollout_begins()

    def _rollout_ended(self, samples: int | None, sampler_version: int | None, *, raised: bool) -> None:
        if self._observer is None:
            return
        if raised:
            self._observer.rollout_failed()
            return
        self._observer.rollout_ended(samples, sampler_version)
        self._session.raise_if_asked()

    # Life of one audit

    def __enter__(self) -> LoopAudit:
        """Begin."""
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; an exception of the loop goes on."""
        self.end(error)
        if error is None:
            self._session.raise_if_asked()

    def begin(self) -> None:
        """Write the plan and place the hooks. A loop that does not use a `with` block calls this and `end`."""
        if self._session.recorder is None:
            with self._session.beginning():
                self._begin()

    def _begin(self) -> None:
        from rlstep_hooks.systems.own_loop.ranks import processes_of
        from rlstep_hooks.systems.own_loop.recorder import LoopObserver

        processes = processes_of(self._model)
        name, agreed = agree_on_run(processes.rank, processes.world_size)
        versions = _versions() if self._versions is None else self._versions
        recorder = self._session.begin(
            Run(name=name, schedule=self.schedule, versions=versions, facts=self._facts, **processes._asdict())
        )
        if not agreed:
            recorder.cannot("ranks", "the processes could not agree on a name for the run (rank 0 has no audit?)")
        limit = self._max_grad_norm
        observer = LoopObserver(
            self.schedule,
            recorder,
            self._optimizers,
            facts=self._facts,
            interval=self._session.interval,
            max_grad_norm=limit if callable(limit) else lambda: limit,
            learning_rate=self._learning_rate,
            rate_of_rollout=self._rate_of_rollout,
        )
        self._session.follow(observer)
        observer.attach()
        if self._model is not None:
            observer.updates.follow_reduction(self._model, self._optimizers["policy"])
        self._observer = observer

    def end(self, error: BaseException | None = None, *, stopped: bool = False) -> None:
        """Take the hooks off, judge and report. Called twice, the second call does nothing.

        Args:
            error: What the loop raised.
            stopped: Whether the loop was asked to end before its plan does.
        """
        self._session.end(error, stopped=stopped)


audit = LoopAudit
"""The public name: `with rlstep_hooks.audit(schedule) as audit`."""


def _versions() -> dict[str, str]:
    """Releases of the packages that every such loop has."""
    found = {"python": sys.version.partition(" ")[0], "rlstep-hooks": __version__}
    torch = sys.modules.get("torch")
    return found if torch is None else found | {"torch": str(torch.__version__)}
