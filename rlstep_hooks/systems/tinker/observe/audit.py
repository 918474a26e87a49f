"""The audit of one run of the cookbook's loop: what the client does, in the order in which it is asked for it, as events.

tinker 0.38.0 executes requests on a training client in the order of submission, so an update counts from the call of optim_step on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.judge.timeline import PhasePosition
from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.hooks import Hooks
from rlstep_hooks.record.events import ConfigChanged, Measured, MicroBatch, Update, WeightSync
from rlstep_hooks.systems.tinker.observe.data import Sent
from rlstep_hooks.systems.tinker.observe.drawn import NOT_THE_POLICY, Samplers
from rlstep_hooks.systems.tinker.observe.groups import Arrived
from rlstep_hooks.systems.tinker.observe.rollout import Pass, Step, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.hooks import Call
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import AnyEvent
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.tinker.observe.penalty import Penalty

ADAM = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0, "grad_clip_norm": 0.0}
"""What the loop gives optim_step beside the rate: rl/train.py 0.6.1 `train_step`; what it leaves out is the client's default."""
_METRICS = "tinker_cookbook.rl.metrics"
REMEMBERED = 8
"""Rollouts whose samples are kept for data that are trained late."""


@dataclass(frozen=True)
class Asked:
    """What the configuration of a run says."""

    schedule: Schedule
    loss: str
    loss_settings: dict[str, Any]
    rate: float
    temperature: float
    penalty: Penalty | None
    """The KL penalty that is added to the advantages; None where none is."""
    without_equal: bool
    """Whether groups whose episodes all have the same reward are left out."""
    begins: int
    """The first step; above 0 in a resumed run."""

    @property
    def updates_before(self) -> int:
        """The updates that the plan has before the first step of this run."""
        return math.ceil(self.begins * self.schedule.updates_per_rollout)


@dataclass
class _Counts:
    """What was counted so far."""

    version: int
    rollouts: int
    microbatches: int = 0
    updates: int = 0
    window: int = 0
    told: set[str] = field(default_factory=set)
    """Settings that were found changed."""


class TinkerAudit:
    """Observes one run. It is the `Hooks` of its session.

    Args:
        asked: What the configuration says.
        client: The run's training client.
        recorder: Where events go.
    """

    def __init__(self, asked: Asked, client: Any, recorder: Recorder) -> None:
        self._asked = asked
        self._client = client
        self.recorder = recorder
        """Where events go."""
        self._samplers = Samplers()
        self._arrived = Arrived()
        self._step: Step | None = None
        self._base: Any = None
        """What the reference said last of the tokens of each datum."""
        self._counts = _Counts(version=asked.updates_before, rollouts=asked.begins)
        self._digests: dict[bytes, int] = {}
        self._hooks = Hooks(recorder)

    # The session's hooks

    @property
    def updates_made(self) -> int:
        """Updates of the whole run."""
        return self._counts.version

    def attach(self, module: Any) -> None:
        """Place the hooks on the loop's own functions.

        Args:
            module: `tinker_cookbook.rl.train` (0.6.1); the loop finds them there when it calls them.
        """
        wrap = self._hooks.wrap
        # rl/train.py 0.6.1:2306: the episodes of a group have ended. Gives the rewards as they arrive (RLS508, RLS515).
        wrap(module, "do_group_rollout_and_filter_constant_reward", after=self._group, topics=("rewards",))
        # rl/train.py 0.6.1:2163: groups become data. Gives Rollout, its rewards and advantages.
        wrap(module, "prepare_minibatch", around=self._prepare, topics=("samples", "advantages", "mask", "rewards"))
        # rl/train.py 0.6.1:1845: advantages get a KL penalty. rl/metrics.py 0.6.1:202: the reference's log-probs that it is made of.
        if self._asked.penalty is not None:
            wrap(module, "incorporate_kl_penalty", around=self._penalise, topics=("advantages",))
            wrap(import_module(_METRICS), "score_sequences", after=self._scored, topics=("advantages",))
        # rl/train.py 0.6.1:2355: one step: groups become data, are trained, and the sampler gets new weights. Gives the step's bounds.
        wrap(module, "do_train_step_and_get_sampling_client", around=self._whole_step, topics=("order", "samples"))

    def finish(self) -> None:
        """Emit what a step that raised has left."""
        self._end_step()

    def detach(self) -> None:
        """Take all hooks off."""
        self._hooks.take_off()

    # The loop

    def _group(self, call: Call) -> None:
        if call.result is not None:
            self._arrived.add(call.result)

    def _whole_step(self, call: Call) -> Iterator[None]:
        self._step = Step(self._counts.rollouts, self._counts.version, self._samplers.drawn)
        try:
            yield
        finally:
            self._end_step()

    def _prepare(self, call: Call) -> Iterator[None]:
        step = self._step
        groups = list(call.argument("trajectory_groups_P", 1) or ())
        if step is not None:
            for group in groups:
                step.groups.add(group)
        yield
        if step is not None:
            # Only now: what changed them may stand right before the advantages.
            step.groups.intact[-len(groups) :] = [self._arrived.intact(group) for group in groups]
            step.prepared(call.result[0])

    def _penalise(self, call: Call) -> Iterator[None]:
        data, self._base = list(call.argument("data_D", 0) or ()), None
        rows = [Sent(datum) for datum in data]
        yield
        if self._step is not None and self._base is not None:
            self._step.penalised(rows, [Sent(datum).advantages for datum in data], self._base)

    def _scored(self, call: Call) -> None:
        self._base = call.result[0]

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is None or not (step.rows or step.events):
            return
        if not step.whole:
            self.recorder.cannot("samples", "data do not say of which samples they are (no provenance)")
        self._counts.rollouts += 1
        # An episode may be several data: those of the episodes that are there, and one of each that is missing.
        episodes = self._arrived.take(without_equal=self._asked.without_equal)
        due = len(step.rows) + episodes - step.trained_episodes if step.whole else None
        self.recorder.emit(step.rollout(self.recorder.now(), due=due, digests=self._digests), *step.events)
        self._measure(step)
        self._samplers.forget(older_than=self._counts.version - REMEMBERED * len(self._asked.schedule.minibatches))

    @contained("log_ratio", "advantages", "formula", "sampler", "samples", "mask")
    def _measure(self, step: Step) -> None:
        """Record the numbers of a rollout and of its micro-batches."""
        if not is_compared(step.index):
            return
        plain = self._asked.temperature == 1
        rollout = step.rollout_values(self._asked.penalty, comparable=plain)
        done = [each for each in step.passes if each.future.done() and each.future.exception() is None]
        microbatches = tuple(step.microbatch_values(each) for each in done)
        self.recorder.emit(Measured(at=self.recorder.now(), rollouts=(rollout,), microbatches=microbatches))

    # The client

    def sampled(self, call: Call) -> None:
        """A sampler was asked."""
        future = call.result.future()
        self._samplers.asked(call.owner, future, call.argument("prompt", 0), call.argument("sampling_params", 2))

    def weights_for_client(self, call: Call) -> None:
        """Weights are saved, and a sampling client is made of them."""
        if call.owner is self._client:
            self._samplers.client(call.result.future(), self._counts.version)
            self._sync(self._counts.version)

    def weights_for_path(self, call: Call) -> None:
        """Weights are saved for samplers under a path."""
        if call.owner is self._client:
            self._samplers.saved(call.result.future(), self._counts.version)

    def client_of_path(self, call: Call) -> None:
        """A sampling client is made of saved weights."""
        version = self._samplers.version_at(str(call.argument("model_path", 0)))
        self._samplers.client(call.result.future(), version)
        if version is not None and call.owner is self._client:
            self._sync(version)

    def client_of_base(self, call: Call) -> None:
        """A service makes a sampling client, of saved weights or of a base model."""
        path = call.argument("model_path", 0)
        version = NOT_THE_POLICY if path is None else self._samplers.version_at(str(path))
        self._samplers.client(call.result.future(), version)

    def _sync(self, version: int) -> None:
        # The sync before the first rollout of a resumed run is not planned (`PhasePosition.resumed`).
        if self._asked.begins and self._step is None and self._counts.rollouts == self._asked.begins:
            return
        self._emit(WeightSync(at=self.recorder.now(), policy_version=version))

    def passed(self, call: Call) -> None:
        """forward_backward was called."""
        if call.owner is not self._client:
            return
        counts, step = self._counts, self._step
        sent = tuple(Sent(datum) for datum in call.argument("data", 0))
        loss, settings = str(call.argument("loss_fn", 1)), dict(call.argument("loss_fn_config", 2) or {})
        rows = tuple(None if step is None else step.row_of(one) for one in sent)
        oldest = self._oldest(sent)
        event = MicroBatch(
            at=self.recorder.now(),
            index=counts.microbatches,
            samples=len(sent),
            trained=None if step is None else rows_of(rows, step.index),
            policy_version=counts.version,
            sampled_version=oldest,
            old_version=oldest,
            old_source="engine",
            constants=("advantages",) if loss == "cross_entropy" else ("old_logprobs", "advantages"),
        )
        counts.microbatches += 1
        counts.window += 1
        self._emit(event)
        if step is not None:
            step.passes.append(Pass(event, loss, settings, sent, call.result.future(), rows))
        self._compare("loss_fn", self._asked.loss, loss)
        self._compare("loss_fn_config", self._asked.loss_settings, settings)

    def passed_otherwise(self, call: Call) -> None:
        """forward_backward_custom was called: a loss of somebody's own."""
        if call.owner is self._client:
            self.recorder.cannot("formula", "forward_backward_custom has a loss of one's own")
            self.recorder.cannot("order", "forward_backward_custom is not part of the loop that was read")

    def stepped(self, call: Call) -> None:
        """optim_step was called."""
        if call.owner is not self._client:
            return
        given: Any = call.argument("optim_params", 0) or call.argument("adam_params", 1)
        counts = self._counts
        counts.version += 1
        window, counts.window = counts.window, 0
        self._emit(
            Update(
                at=self.recorder.now(),
                index=counts.updates,
                version=counts.version,
                microbatches=window,
                learning_rate=float(given.learning_rate),
                due_rate=self._asked.rate,
            )
        )
        counts.updates += 1
        for name, due in ADAM.items():
            self._compare(name, due, getattr(given, name, due))

    def reloaded(self, call: Call) -> None:
        """Weights of the training client were replaced."""
        if call.owner is self._client:
            self.recorder.cannot("versions", "load_state has replaced the weights while the run went on")

    def _oldest(self, sent: tuple[Sent, ...]) -> int | None:
        found = [self._samplers.drawn(piece.sequence) for one in sent for piece in one.drawn]
        versions = [None if one is None else one.version for one in found]
        known = [version for version in versions if version is not None and version >= 0]
        return min(known) if known and len(known) == len(versions) else None

    def _compare(self, name: str, due: Any, given: Any) -> None:
        """Record once that a call has another setting than the configuration says."""
        if given == due or name in self._counts.told:
            return
        self._counts.told.add(name)
        self._emit(ConfigChanged(at=self.recorder.now(), name=name, before=due, after=given, since="configuration"))

    def _emit(self, event: AnyEvent) -> None:
        if self._step is None:
            self.recorder.emit(event)
        else:
            self._step.events.append(event)


def position(asked: Asked) -> dict[str, Any]:
    """Where the run begins."""
    return msgspec.structs.asdict(
        PhasePosition(
            rollouts=asked.begins, updates=asked.updates_before, version=asked.updates_before, resumed=asked.begins > 0
        )
    )
