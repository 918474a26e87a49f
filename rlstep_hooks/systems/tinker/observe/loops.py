"""StepAuditTinker: audits a loop of one's own over Tinker's client; and what `rlstep run` does in a program that has such a loop."""

from __future__ import annotations

import atexit
import os
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from rlstep_hooks.observe.options import LEFT_OUT, LeftOut
from rlstep_hooks.observe.versions import versions_of
from rlstep_hooks.record.events import NEVER_SEEN
from rlstep_hooks.session.session import Options, Run, Session
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.own_loop.attached import AttachedAudit
from rlstep_hooks.systems.tinker.loop_plan import NO_PLAN, plan_of_loop
from rlstep_hooks.systems.tinker.observe import boundary
from rlstep_hooks.systems.tinker.observe.boundary import RUNNING
from rlstep_hooks.systems.tinker.observe.client_audit import NOTHING_TRAINED, ClientAudit, Told
from rlstep_hooks.systems.tinker.observe.losses import NAMED
from rlstep_hooks.systems.tinker.system import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from rlstep_hooks.observe.hooks import Call
    from rlstep_hooks.observe.options import OnFail
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.session.recorder import Listener, Recorder

CLIENTS = ("0.38", "0.39")
"""The releases of the client whose methods were read: the first, and the first that is not."""
_CLIENT = "tinker"
_PARAMETERS = ("beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")
_NOT_TOLD = "a loop of one's own keeps {} to itself: they never reach the client"
_NOT_COMPARED = {
    "RLS515": _NOT_TOLD.format("its rewards"),
    "RLS508": _NOT_TOLD.format("its rewards"),
    "RLS516": "nothing says by which formula a loop of one's own computes advantages, and from which rewards",
    "RLS517": "a loop of one's own may normalise advantages anew for each mini-batch, and hands them over only there",
}
_KEPT = 16
"""Training clients that are followed until one of them trains what a sampler drew."""


class StepAuditTinker(AttachedAudit):
    """Records a loop over Tinker's client, judges it while it trains, and reports.

        with StepAuditTinker(training_client, Schedule.ppo(actors=8, steps=4, rollouts=100), learning_rate=4e-5) as audit:
            ...  # the loop
        audit.report.verdict

    What is left out is not compared, and the report says so.

    Args:
        client: The TrainingClient.
        schedule: The plan, as `Schedule.ppo` makes it: prompts and samples of a rollout, passes over them, mini-batches.
        loss: The name of the loss that each forward_backward should get.
        loss_config: Its configuration.
        learning_rate: The rate that each optim_step should get: a number, or a function of rollout and update, both counted from 0.
        adam: The parameters beside the rate that each optim_step should get: an AdamParams.
        sampling: The settings that each sample should be drawn with: temperature, top_p, top_k.
        max_age: Rollouts by which the weights that sample may be older than those that train; None where nothing bounds it.
        filtered: Whether the loop leaves out samples by what they are (groups without a signal), so that sizes are not compared.
        on_fail: "warn" and "stop" only report, since the loop is the script's; "raise" raises `StepAuditError` out of the next
            forward_backward. Default: RLSTEP_ON_FAIL, else "warn".
        log_dir: Folder for the record, never overwritten. None keeps everything in memory. Default: RLSTEP_DIR, else None.
        listeners: Views that follow the run; by default plan and verdict are printed on stderr.

    Raises:
        ValueError: `on_fail` is none of the three.
    """

    def __init__(
        self,
        client: Any,
        schedule: Schedule | None = None,
        *,
        loss: str | None = None,
        loss_config: Mapping[str, Any] | None = None,
        learning_rate: float | Callable[[int, int], float] | None = None,
        adam: Any = None,
        sampling: Mapping[str, float] | None = None,
        max_age: int | None = 0,
        filtered: bool = False,
        on_fail: OnFail | None = None,
        log_dir: str | os.PathLike[str] | LeftOut | None = LEFT_OUT,
        listeners: tuple[Listener, ...] | None = None,
    ) -> None:
        super().__init__(client, on_fail=on_fail, log_dir=log_dir, listeners=listeners)
        planned = schedule and plan_of_loop(
            schedule, _release(), max_age=max_age, filtered=filtered, supervised=loss == "cross_entropy"
        )
        self._told = Told(
            schedule=planned,
            loss=loss,
            loss_settings={} if loss is not None and loss_config is None else loss_config,
            rate=learning_rate if learning_rate is None or callable(learning_rate) else _constant(learning_rate),
            adam={} if adam is None else {name: getattr(adam, name) for name in _PARAMETERS if hasattr(adam, name)},
            sampling=dict(sampling or {}),
        )
        self._audit_of_client: ClientAudit | None = None

    def _refusal(self) -> str:
        if RUNNING.session is not None:
            return "another run of this process is audited"
        return _refusal()

    def _attach(self) -> None:
        if boundary.place():
            self._session.take_off(boundary.detach)
        self._session.take_off(_forget)
        RUNNING.session, RUNNING.raises = self._session, True
        RUNNING.audit = self._audit_of_client = ClientAudit(
            self._told, self._trainer, lambda audit: _begin(self._session, audit, self._told)
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the hooks off and judge; an exception of the loop goes on."""
        if self._audit_of_client is not None and not self._audit_of_client.begun:
            self._session.refuse(NOTHING_TRAINED)
        super().__exit__(kind, error, trace)


def observe_training(module: Any) -> None:
    """Place the hooks in a process of `rlstep run`, and look for a loop that no framework's audit follows.

    Args:
        module: `tinker.lib.public_interfaces.training_client`.
    """
    boundary.observe_training(module)
    if os.environ.get("RLSTEP_DIR"):
        RUNNING.other = _Unnamed().look


class _Unnamed:
    """Follows the training clients of a program that says nothing, until one trains what a sampler drew: that one is audited."""

    def __init__(self) -> None:
        self._audits: list[ClientAudit] = []

    def look(self, name: str, call: Call) -> None:
        """Look at a call of the client."""
        own = hasattr(call.owner, "forward_backward")
        if own and not any(audit.follows(call.owner) for audit in self._audits):
            if _refusal():
                return
            self._audits = [*self._audits, ClientAudit(Told(), call.owner, self._begin)][-_KEPT:]
        for audit in list(self._audits):
            if not audit.begun and (not own or audit.follows(call.owner)):
                getattr(audit, name)(call)

    def _begin(self, audit: ClientAudit) -> Recorder | None:
        session = Session(Options.asked(), index.deviations_of)
        recorder = _begin(session, audit, Told())
        if recorder is not None:
            RUNNING.session, RUNNING.audit, RUNNING.raises = session, audit, True
            self._audits = [audit]
            session.take_off(_forget)
            # Nothing of the program says where its loop ends.
            atexit.register(lambda: session.end(getattr(sys, "last_value", None)))
        return recorder


def _begin(session: Session, audit: ClientAudit, told: Told) -> Recorder | None:
    with session.beginning():
        facts = dict[str, Any](index.link_facts(SYSTEM.name))
        facts["not_compared"] = dict(facts.get("not_compared", {})) | _NOT_COMPARED
        if told.loss is not None and told.loss not in NAMED:
            facts["not_compared"]["RLS801"] = f"the formula of {told.loss} is not documented"
        if told.rate is None:
            facts["not_compared"]["RLS605"] = "the loop did not say which learning rate it means"
        if told.schedule is None:
            facts[NEVER_SEEN] = dict.fromkeys(("plan", "order"), NO_PLAN)
        facts["configured_sampling"] = told.sampling
        facts["reference_log_probs"] = "unseen"
        recorder = session.begin(
            Run(
                name=_CLIENT,
                schedule=told.schedule or plan_of_loop(None, _release()),
                versions=versions_of(_CLIENT, "torch"),
                facts=facts,
            )
        )
        session.follow(audit)
        return recorder
    return None


def _refusal() -> str:
    first, end = CLIENTS
    release = _release()
    if not Version(first) <= Version(Version(release).base_version) < Version(end):
        return f"tinker {release} is not supported ({first} and later, before {end}, are)"
    return ""


def _release() -> str:
    return version(_CLIENT)


def _constant(rate: float) -> Callable[[int, int], float]:
    return lambda rollout, update: float(rate)


def _forget() -> None:
    RUNNING.audit = RUNNING.session = None
    RUNNING.raises = False
