"""An audit that a script puts around its own loop over a framework's trainer: `with StepAudit...(trainer) as audit:`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.hooks import Hooks
from rlstep_hooks.observe.optimizer_tensors import optimizer_tensors
from rlstep_hooks.observe.options import LEFT_OUT, LeftOut
from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.observe.versions import versions_of
from rlstep_hooks.session.session import Options, Session
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.own_loop.loop import LoopAudit

if TYPE_CHECKING:
    import os
    from types import TracebackType

    from typing_extensions import Self

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.observe.options import OnFail
    from rlstep_hooks.observe.settings import SettingsWatch
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.session.recorder import Listener
    from rlstep_hooks.systems.own_loop.recorder import LoopObserver


class AttachedAudit(ABC):
    """The life of such an audit: refused or begun when the block is entered, ended with it.

    Args:
        trainer: What the loop trains with.
        on_fail: "warn" and "stop" only report, since the loop is the script's; "raise" raises `StepAuditError` out of the trainer's
            call. Default: RLSTEP_ON_FAIL, else "warn".
        log_dir: Folder for the record, never overwritten. None keeps everything in memory. Default: RLSTEP_DIR, else None.
        listeners: Views that follow the run; by default plan and verdict are printed on stderr.

    Raises:
        ValueError: `on_fail` is none of the three.
    """

    _audit: LoopAudit | None = None

    def __init__(
        self,
        trainer: Any,
        *,
        on_fail: OnFail | None = None,
        log_dir: str | os.PathLike[str] | LeftOut | None = LEFT_OUT,
        listeners: tuple[Listener, ...] | None = None,
    ) -> None:
        self._trainer = trainer
        self._session = Session(Options.asked(on_fail, log_dir, listeners), index.deviations_of)

    @property
    def report(self) -> Report:
        """The report; while the loop runs, it covers what was seen so far."""
        return self._session.report

    def __enter__(self) -> Self:
        """Place the hooks, or say why there is no audit."""
        with self._session.beginning():
            refusal = self._refusal()
            if refusal:
                self._session.refuse(refusal)
            else:
                self._attach()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the hooks off and judge; an exception of the loop goes on."""
        self._session.end(error)

    @abstractmethod
    def _refusal(self) -> str:
        """Why the trainer cannot be audited; empty where it can."""

    @abstractmethod
    def _attach(self) -> None:
        """Plan the run where that is known, and place the hooks."""

    # What attaching is made of

    def _begin_run(
        self,
        name: str,
        schedule: Schedule,
        module: Any,
        optimizer: Any,
        *,
        apart: tuple[str, ...] = (),
        max_grad_norm: float | None = None,
        settings: SettingsWatch | None = None,
        more: dict[str, Any] | None = None,
    ) -> LoopObserver:
        """Write the plan, and follow the steps of the policy's optimizer.

        Args:
            name: The name of the framework.
            schedule: The plan.
            module: What is trained.
            optimizer: The optimizer of the policy.
            apart: Beginnings of the names of tensors on which the policy's log-probs do not depend.
            max_grad_norm: The configured limit of the gradient norm.
            settings: Compares what the optimizer steps with; None where that is not compared.
            more: Further facts of the run.
        """
        system = index.system_of(name)
        facts = facts_of(name) | {"optimizer_tensors": optimizer_tensors(module.parameters(), optimizer)}
        facts |= ({} if settings is None else {"compares_settings": True}) | (more or {})
        self._audit = audit = LoopAudit(
            schedule,
            optimizer=optimizer,
            facts=facts,
            versions=versions_of(system.package, "gymnasium", "torch"),
            max_grad_norm=max_grad_norm,
            rate_of_rollout=True,
            session=self._session,
        )
        audit.begin()
        if audit.observer is None:
            raise RuntimeError("the audit has not begun")
        if settings is not None:
            audit.observer.updates.compare_settings(settings)
        audit.observer.updates.set_apart(of for own, of in module.named_parameters() if own.startswith(apart))
        self._hooks = Hooks(audit)
        self._session.take_off(self._hooks.take_off)
        return audit.observer

    def _raise_from(self, owner: Any, name: str) -> None:
        """Carry out "raise" once this call of the loop has returned: hooks contain every error."""

        def around(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            result = wrapped(*args, **kwargs)
            self._session.raise_if_asked()
            return result

        patches = Patches()
        patches.wrap(owner, name, around)
        self._session.take_off(patches.restore)


def facts_of(name: str) -> dict[str, Any]:
    """What is known of every run of a framework, as facts of its record."""
    facts = dict[str, Any](index.link_facts(name))
    return facts if index.system_of(name).links["reference"].exists else facts | {"reference_log_probs": "none"}
