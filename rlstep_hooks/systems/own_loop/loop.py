"""`rlstep_hooks.audit`: the recorder and its judge for a loop of one's own."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.ranks import agree_on_run
from rlstep_hooks.judge.report import Report, StepAuditError, ends_training
from rlstep_hooks.observe.deferred import INTERVAL
from rlstep_hooks.observe.options import LEFT_OUT, LeftOut, on_fail_asked
from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.events import RunEnded, RunStarted
from rlstep_hooks.record.ledger import open_ledger, rank_process
from rlstep_hooks.session.recorder import Recorder
from rlstep_hooks.systems import index
from rlstep_hooks.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from torch import Tensor

    from rlstep_hooks.observe.options import OnFail
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.session.recorder import Listener
    from rlstep_hooks.systems.own_loop.optimizers import Role
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

    What it cannot do it says (`report.not_evaluated`, and a warning on stderr), and training goes on as without it. Nothing that
    is handed over is changed or kept in the graph. With several processes each audits itself.

    Args:
        schedule: The plan; `Schedule.ppo` makes one.
        optimizer: The policy's optimizer, which may train the critic too. Left out, torch's hook on all optimizers counts the
            steps of the one optimizer of this process.
        critic_optimizer: The critic's own, where it has one.
        on_fail: "warn" only reports; "stop" makes `should_stop` true; "raise" raises `StepAuditError` out of the next call.
            Default: RLSTEP_ON_FAIL, else "warn".
        log_dir: Folder for the record, never overwritten. None keeps everything in memory. Default: RLSTEP_DIR, else None.
        listeners: Views that follow the run; by default plan and verdict are printed on stderr.
        facts: What is known of the run, such as `compute_dtype="bfloat16"` where autocast is on; else read from the weights.
        versions: Releases of the packages involved, for the record.

    Raises:
        ValueError: `on_fail` is none of the three, or the critic's optimizer is named and the policy's is not.
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
    ) -> None:
        self.on_fail = on_fail_asked(on_fail)
        if optimizer is None and critic_optimizer is not None:
            raise ValueError("critic_optimizer is given, so the policy's is needed too: optimizer=...")
        self.schedule = schedule
        self.folder: Path | None = None
        """Where the record is written; None in memory."""
        roles: dict[Role, Any] = {"policy": optimizer, "critic": critic_optimizer}
        self._optimizers = {role: given for role, given in roles.items() if given is not None}
        self._log_dir = os.environ.get("RLSTEP_DIR") if isinstance(log_dir, LeftOut) else log_dir
        self._listeners = listeners
        self._facts = facts or {}
        self._versions = versions
        self._recorder: Recorder | None = None
        self._observer: LoopObserver | None = None
        self._report: Report | None = None
        self._refused = ""
        self._error: Finding | None = None
        self._raised = False

    # What it says

    @property
    def report(self) -> Report:
        """The report; while the loop runs, of what was seen so far."""
        if self._report is not None:
            return self._report
        if self._recorder is not None:
            return self._recorder.judge.report()
        return Report(verdict="NOT_EVALUATED", not_evaluated={"order": self._refused or "the audit has not begun"})

    @property
    def version(self) -> int:
        """Updates applied to the policy since the audit began."""
        return self._observer.version if self._observer is not None else 0

    @property
    def should_stop(self) -> bool:
        """Whether the loop should end now: `on_fail` is "stop", and an error was found."""
        self._look_for_errors()
        return self.on_fail == "stop" and self._error is not None

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
            self._act()

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

        Only a number of samples is needed, as `samples` or from any of the others; each of the others is compared if it is given.
        Tensors are those that the loss gets, as it gets them.

        Args:
            samples: Samples of the micro-batch.
            indices: Which samples of the rollout they are: numbers from 0, on the CPU.
            role: Whose loss it is. One optimizer for policy and critic is the policy's.
            old_logprobs: (B,) or (B, T), the denominator of the ratio.
            new_logprobs: The same shape, from the current weights.
            mask: The same shape, not 0 where a token counts.
            advantages: Advantages in the loss.
            targets: What the critic's values are drawn to.
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
            self._act()

    def skipped_update(self, role: Role = "policy", *, reason: str = "gradient scaler") -> None:
        """The loop was at its optimizer step, and a gradient scaler left it out."""
        if self._observer is not None:
            self._observer.skipped(role, reason)
            self._act()

    def cannot(self, topic: str, why: str) -> None:
        """Say that something cannot be observed: rules that need it are then NOT EVALUATED.

        Args:
            topic: One of `rlstep_hooks.record.events.TOPICS`.
            why: The reason, for the report.
        """
        if self._recorder is not None:
            self._recorder.cannot(topic, why)

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
        self._act()

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
            self._act()

    def begin(self) -> None:
        """Write the plan, and place the hooks. A loop that is no `with` block calls this and `end`."""
        if self._recorder is not None:
            return
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - an audit that cannot begin must not keep training from it
            self._refused = f"the audit could not begin: {describe(error)}"
            self._observer = None
            print(f"rlstep: not evaluated: {self._refused}. Training goes on without an audit.", file=sys.stderr)

    def _begin(self) -> None:
        from rlstep_hooks.systems.own_loop.recorder import LoopObserver

        if self._listeners is None:
            from rlstep_hooks.show.console import ConsoleListener

            self._listeners = (ConsoleListener(),)
        run, _ = agree_on_run(0, 1)
        opened = open_ledger(self._log_dir, run, rank_process(0))
        self.folder = opened.folder
        recorder = Recorder(opened.ledger, Judge(index.deviations_of), self._listeners)
        recorder.emit(
            RunStarted(
                run=run,
                rank=0,
                world_size=1,
                host=os.uname().nodename,
                pid=os.getpid(),
                started=time.time(),
                schedule=self.schedule,
                facts=self._facts,
                versions=_versions() if self._versions is None else self._versions,
            )
        )
        recorder.settle()  # the plan is judged and shown before training begins
        if opened.trouble:
            recorder.cannot("recording", opened.trouble)
        # Who acts on findings gets numbers as early as they are there.
        interval = INTERVAL if self.on_fail == "warn" else 0.0
        observer = LoopObserver(self.schedule, recorder, self._optimizers, facts=self._facts, interval=interval)
        observer.attach()
        self._recorder, self._observer = recorder, observer

    def end(self, error: BaseException | None = None, *, stopped: bool = False) -> None:
        """Take the hooks off, judge and report. Called twice, the second call does nothing.

        Args:
            error: What the loop raised.
            stopped: Whether the loop ends before its plan because somebody wished it.
        """
        recorder, observer = self._recorder, self._observer
        if recorder is None or observer is None or self._report is not None:
            return
        observer.detach()
        observer.emit_numbers(wait=True)
        self._look_for_errors()
        self._report = recorder.finish(
            RunEnded(
                status="completed" if error is None else "raised",
                updates=observer.updates,
                error="" if error is None else describe(error),
                stopped=stopped or (self.on_fail == "stop" and self._error is not None),
            )
        )
        for listener in self._listeners or ():
            finish = getattr(listener, "finished", None)
            if finish is not None:
                finish(self._report)

    def _look_for_errors(self) -> None:
        if self._recorder is None or self._error is not None:
            return
        self._error = ends_training(self._recorder.take_findings())

    def _act(self) -> None:
        """Carry out "raise" for an error found since the last time."""
        if self.on_fail != "raise" or self._raised:
            return
        self._look_for_errors()
        if self._error is not None:
            self._raised = True
            raise StepAuditError(self._error)


audit = LoopAudit
"""The public name: `with rlstep_hooks.audit(schedule) as audit`."""


def _versions() -> dict[str, str]:
    """Releases of the packages that every such loop has."""
    found = {"python": sys.version.partition(" ")[0], "rlstep-hooks": __version__}
    torch = sys.modules.get("torch")
    return found if torch is None else found | {"torch": str(torch.__version__)}
