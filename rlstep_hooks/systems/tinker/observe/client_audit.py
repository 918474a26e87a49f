"""The audit of a loop of one's own over Tinker's client: what the client is asked for, in that order, as events.

tinker 0.38.0 executes requests on a training client in the order of submission, so an update counts from the call of optim_step on.
Nobody says where a rollout begins. It begins with the first data that were drawn after an update of the rollout before; where samples
are drawn ahead, with the first new data after samplers got weights, or once the rollout before has all the samples of the plan.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.hooks import LateRecorder
from rlstep_hooks.record.events import ConfigChanged, Measured, MicroBatch, SampleRows, Update, WeightSync
from rlstep_hooks.record.logger import not_evaluated
from rlstep_hooks.systems.tinker.observe.drawn import NOT_THE_POLICY, Samplers
from rlstep_hooks.systems.tinker.observe.found import Found
from rlstep_hooks.systems.tinker.observe.losses import BETA, NAMED
from rlstep_hooks.systems.tinker.observe.origins import Origins
from rlstep_hooks.systems.tinker.observe.rollout import Pass
from rlstep_hooks.systems.tinker.observe.rounds import Round
from rlstep_hooks.systems.tinker.observe.scores import Scores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rlstep_hooks.observe.hooks import Call
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import AnyEvent, OldSource
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.tinker.observe.drawn import Drawn

REMEMBERED = 8
"""Rollouts whose samples are kept for data that are trained late."""
WAITING = 4
"""Rollouts that may wait for results of the service."""
CUSTOM = "a loss of the loop's own"
NOT_DRAWN = "data are trained that no sampler of this process drew"
NOTHING_TRAINED = "no forward_backward trained what a sampler of this process drew"


@dataclass(frozen=True)
class Told:
    """What a loop says of itself. What it leaves out is not compared."""

    schedule: Schedule | None = None
    """The plan."""
    loss: str | None = None
    loss_settings: Mapping[str, Any] | None = None
    rate: Callable[[int, int], float] | None = None
    """The learning rate of an update, by its rollout and its number, both counted from 0."""
    adam: Mapping[str, float] = field(default_factory=dict)
    """Parameters of optim_step beside the rate."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Settings that samples are drawn with."""

    @property
    def samples(self) -> int | None:
        """Samples of a rollout; None where the data decide."""
        return None if self.schedule is None or self.filters else self.schedule.samples_per_rollout

    @property
    def filters(self) -> bool:
        """Whether the loop leaves samples out by what they are."""
        return self.schedule is not None and self.schedule.remainder == "data_dependent"

    @property
    def updates(self) -> int:
        """Updates of a rollout, at the least."""
        return 1 if self.schedule is None else int(self.schedule.updates_per_rollout)

    @property
    def draws_ahead(self) -> bool:
        """Whether samples may be drawn while older ones are trained."""
        return self.schedule is not None and self.schedule.max_age != 0


@dataclass
class _Counts:
    """What was counted so far."""

    made: int = 0
    """Updates of the training client."""
    before: int = 0
    """Updates before the first rollout: a warm-up."""
    rollouts: int = 0
    microbatches: int = 0
    updates: int = 0
    window: int = 0
    synced: int = -1
    """The latest weights that samplers got."""
    said: set[str] = field(default_factory=set)
    """What was told already."""


class ClientAudit:
    """Observes one training client. It is the `Hooks` of its session, which begins with the first data that a sampler drew.

    Args:
        told: What the loop says of itself.
        client: The training client, or the future of it that a service gives.
        begin: Begins the session, and gives its recorder; None if it does not begin.
    """

    def __init__(self, told: Told, client: Any, begin: Callable[[ClientAudit], Recorder | None]) -> None:
        self._told = told
        self._client = client
        self._begin = begin
        self._recorder: Recorder | None = None
        self.recorder = LateRecorder(lambda: self._recorder)
        """Learns what is not observed."""
        self._samplers = Samplers()
        self._origins = Origins(self._samplers, ahead=told.draws_ahead)
        self._scores = Scores()
        self._round: Round | None = None
        self._rows: dict[tuple[str, int], SampleRows] = {}
        """The row of each datum in its rollout."""
        self._waiting: list[Round] = []
        """Rollouts whose numbers are not recorded yet."""
        self._began: list[int] = []
        """Updates made when each of the latest rollouts began."""
        self._counts = _Counts()
        self._digests: dict[bytes, int] = {}
        self._lock = threading.RLock()

    # The session's hooks

    @property
    def begun(self) -> bool:
        """Whether something was observed."""
        return self._recorder is not None

    def follows(self, client: Any) -> bool:
        """Whether this is the training client that is followed."""
        if client is self._client:
            return True
        # `ServiceClient.create_..._training_client` gives a future that can be used as the client (0.38.0 backcompat_client_future.py).
        future = self._client.future() if hasattr(type(self._client), "future") else None
        if future is None or not future.done() or future.cancelled() or future.exception() is not None:
            return False
        self._client = future.result()
        return client is self._client

    @property
    def updates_made(self) -> int:
        """Updates since the first rollout began."""
        return self._counts.updates

    def finish(self) -> None:
        """Record the rollout under way, and the numbers that still wait."""
        with self._lock:
            self._end_round()
            self._measure(everything=True)

    def detach(self) -> None:
        """Nothing: the client's hooks are those of the process."""

    # What samplers are asked for

    def sampled(self, call: Call) -> None:
        """A sampler was asked."""
        with self._lock:
            future, given = call.result.future(), call.argument("sampling_params", 2)
            self._samplers.asked(call.owner, future, call.argument("prompt", 0), given, self._counts.made)

    def scored(self, call: Call) -> None:
        """A sampler was asked for the log-probs of a row."""
        try:
            tokens = np.asarray(call.argument("prompt", 0).to_ints())
        except ValueError:  # images
            return
        with self._lock:
            self._scores.asked(self._samplers.version_of(call.owner), tokens, call.result.future())

    def weights_for_client(self, call: Call) -> None:
        """Weights are saved, and a sampling client is made of them."""
        with self._lock:
            if not self.follows(call.owner):
                return
            fixed = call.argument("kind", 3, "snapshot") == "snapshot"
            self._samplers.client(call.result.future(), self._counts.made if fixed else None)
            self._sync()

    def weights_for_path(self, call: Call) -> None:
        """Weights are saved for samplers under a path."""
        with self._lock:
            if self.follows(call.owner):
                self._samplers.saved(call.result.future(), self._counts.made)

    def client_of_path(self, call: Call) -> None:
        """A sampling client is made of saved weights."""
        with self._lock:
            version = self._samplers.version_at(str(call.argument("model_path", 0)))
            self._samplers.client(call.result.future(), version)
            if version == self._counts.made:
                self._sync()

    def client_of_base(self, call: Call) -> None:
        """A service makes a sampling client, of saved weights or of a base model: an adapter that was not trained changes nothing."""
        with self._lock:
            path, base = call.argument("model_path", 0), call.argument("base_model", 1)
            if path is not None:
                self.client_of_path(call)
            elif self._client.get_info().model_data.model_name == base:
                self._samplers.client(call.result.future(), 0)
            else:
                self._samplers.client(call.result.future(), NOT_THE_POLICY)

    def _sync(self) -> None:
        if self._counts.synced < self._counts.made:
            self._counts.synced = self._counts.made
            if self._round is not None and self._round.updates:
                self._round.refreshed = True
            if self.begun:
                self._emit(WeightSync(at=self._now(), policy_version=self._version))

    # What the training client is asked for

    def forwarded(self, call: Call) -> None:
        """forward was called: log-probs without gradients."""
        with self._lock:
            if self.follows(call.owner):
                self._origins.collect()
                data = self._found(call.argument("data", 0), trained=False)
                self._scores.forwards(self._counts.made, data, call.result.future())

    def passed(self, call: Call) -> None:
        """forward_backward was called."""
        settings = dict(call.argument("loss_fn_config", 2) or {})
        self._passed(call, str(call.argument("loss_fn", 1)), settings)

    def passed_otherwise(self, call: Call) -> None:
        """forward_backward_custom was called. A loss that the service has is sent by forward_backward, which was seen."""
        if getattr(call.argument("loss_fn", 1), "loss_id", None) is None:
            self._passed(call, CUSTOM, {})

    def _passed(self, call: Call, loss: str, settings: dict[str, Any]) -> None:
        with self._lock:
            if not self.follows(call.owner):
                if self.begun and "another client" not in self._counts.said:
                    self._counts.said.add("another client")
                    not_evaluated("a second training client trains: it is not observed")
                return
            self._origins.collect()
            data = self._found(call.argument("data", 0), trained=True)
            drawn = any(datum.name is not None for datum in data)
            if not self.begun and drawn:
                self._counts.before = self._counts.made
                self._recorder = self._begin(self)
            if not self.begun:
                return
            self._train(data, loss, settings, call.result.future(), drawn=drawn)
            self._scores.forwards(self._counts.made, data, call.result.future())

    def _found(self, data: Iterable[Any], *, trained: bool) -> tuple[Found, ...]:
        return tuple(Found(datum, self._origins, trained=trained) for datum in data)

    def _train(self, data: tuple[Found, ...], loss: str, settings: dict[str, Any], future: Any, *, drawn: bool) -> None:
        counts = self._counts
        for datum in data:
            self._judge_old(datum)
        if self._round is None or (drawn and self._begins(self._round, data)):
            self._end_round()
            self._round = Round(counts.rollouts, self._version, self._drawn, made=counts.made)
            self._scores.next_round()
        current = self._round
        new = tuple(datum for datum in data if datum.name is None or datum.name not in self._rows)
        current.take(new)
        if not drawn:
            self._cannot(NOT_DRAWN, "order")
        for datum in new:
            row = current.row_of(datum)
            if datum.name is not None and row is not None:
                self._rows[datum.name] = SampleRows(current.index, (row,))
        oldest, (source, computed) = self._oldest(data), _source(data)
        event = MicroBatch(
            at=self._now(),
            index=counts.microbatches,
            samples=len(data),
            trained=self._trained(data),
            policy_version=self._version,
            sampled_version=oldest,
            old_version=computed,
            old_source=source,
            constants=("old_logprobs", "advantages")
            if any(datum.old is not None for datum in data)
            else ("advantages",),
        )
        counts.microbatches += 1
        counts.window += 1
        self._emit(event)
        rows = tuple(current.row_of(datum) for datum in data)
        current.passes.append(Pass(event, loss, settings, data, future, rows))
        if loss not in NAMED or (loss == "dro" and BETA not in settings):
            self._cannot(f"the formula of {loss} is not documented", "formula")
        if self._told.loss is not None:
            self._compare("loss_fn", self._told.loss, loss)
        if self._told.loss_settings is not None:
            self._compare("loss_fn_config", dict(self._told.loss_settings), settings)

    def _begins(self, current: Round, data: tuple[Found, ...]) -> bool:
        """Whether data are of another rollout than the one under way."""
        names = [datum.name for datum in data if datum.name is not None]
        # Rows that are equal may be taken for each other: most of them tell.
        if 2 * sum(name in self._rows for name in names) >= len(names):
            return False
        if self._told.samples is not None and len(current.rows) >= self._told.samples:
            return True
        if not current.updates:
            return False
        drawn = [self._samplers.drawn(name[0]) for name in names]
        if not self._told.draws_ahead and any(one is not None and one.moment > current.made for one in drawn):
            return True
        return current.refreshed and current.updates >= self._told.updates

    def _trained(self, data: tuple[Found, ...]) -> tuple[SampleRows, ...] | None:
        rows: dict[int, list[int]] = {}
        for datum in data:
            row = None if datum.name is None else self._rows.get(datum.name)
            if row is None:
                return None
            rows.setdefault(row.rollout, []).extend(row.rows)
        return tuple(SampleRows(rollout, tuple(of)) for rollout, of in rows.items())

    def _judge_old(self, datum: Found) -> None:
        """Say where the old log-probs of a datum come from, and whether they are what they should be."""
        plan = self._told.schedule
        due = None if plan is None else plan.old_logprob_source
        sampled = datum.old_as_sampled(self._samplers.drawn)
        if datum.old is None:
            datum.old_source = "none"
            return
        # Both may be the same bits; then they are what the plan says.
        if due == "recompute" or sampled is False:
            said = self._scores.computed(datum)
            if said is not None:
                # A sampler that says once more what it drew with rounds otherwise, and is still the sampler.
                version = None if said.version is None else self._relative(said.version)
                of_sampler = said.by_sampler and version == self._sampled_by(datum) and due != "recompute"
                datum.old_source, datum.computed = "engine" if of_sampler else "recompute", version
                # What the training client computed where the plan has the sampler's is another order, and no other number.
                datum.old_intact = True if of_sampler or due != "engine" else None
                return
        if sampled:
            datum.old_source, datum.computed = "engine", self._sampled_by(datum)
            datum.old_intact = True if due != "recompute" else None
        elif sampled is False and (due is not None or datum.old_like(self._samplers.drawn, self._origins)):
            datum.old_intact = False

    def _sampled_by(self, datum: Found) -> int | None:
        found = [self._drawn(piece.sequence) for piece in datum.drawn]
        versions = [None if one is None else one.version for one in found]
        known = [version for version in versions if version is not None and version >= 0]
        return min(known) if known and len(known) == len(versions) else None

    def _oldest(self, data: tuple[Found, ...]) -> int | None:
        versions = [self._sampled_by(datum) for datum in data]
        known = [version for version in versions if version is not None]
        return min(known) if known and len(known) == len(versions) else None

    def stepped(self, call: Call) -> None:
        """optim_step was called."""
        with self._lock:
            if not self.follows(call.owner):
                return
            counts = self._counts
            counts.made += 1
            if not self.begun:
                return
            given: Any = call.argument("optim_params", 0) or call.argument("adam_params", 1)
            window, counts.window = counts.window, 0
            due = None if self._told.rate is None else self._told.rate(counts.rollouts, counts.updates)
            self._emit(
                Update(
                    at=self._now(),
                    index=counts.updates,
                    version=self._version,
                    microbatches=window,
                    learning_rate=float(given.learning_rate),
                    due_rate=due,
                )
            )
            counts.updates += 1
            if self._round is not None:
                self._round.updated()
            for name, wanted in self._told.adam.items():
                self._compare(name, wanted, getattr(given, name, None))

    def reloaded(self, call: Call) -> None:
        """Weights of the training client were replaced."""
        with self._lock:
            if self.follows(call.owner) and self.begun:
                self._cannot("load_state has replaced the weights while the run went on", "versions")

    # Rollouts

    def _end_round(self) -> None:
        current, self._round = self._round, None
        if current is None or self._recorder is None:
            return
        self._counts.rollouts += 1
        due = len(current.rows) if self._told.filters or current.unknown else None
        rollout = current.rollout(self._now(), due=due, digests=self._digests)
        refresh = current.refresh(self._now())
        self._recorder.emit(rollout, *(() if refresh is None else (refresh,)), *current.events)
        self._waiting.append(current)
        self._measure(everything=False)
        self._began = [*self._began, current.made][-REMEMBERED:]
        if len(self._began) == REMEMBERED:
            self._origins.forget_asked(self._began[0])
            oldest = current.index - REMEMBERED
            self._rows = {name: row for name, row in self._rows.items() if row.rollout > oldest}

    def _measure(self, *, everything: bool) -> None:
        """Record the numbers of rollouts whose results have arrived, in their order."""
        while self._waiting and (everything or self._waiting[0].ready or len(self._waiting) > WAITING):
            self._measure_one(self._waiting.pop(0))

    @contained("log_ratio", "formula", "sampler", "samples", "mask")
    def _measure_one(self, current: Round) -> None:
        """Record the numbers of one rollout and of its micro-batches."""
        if self._recorder is None or not is_compared(current.index):
            return
        done = [each for each in current.passes if each.future.done() and each.future.exception() is None]
        rollout = current.rollout_values(None, comparable=self._plain(current))
        microbatches = tuple(current.microbatch_values(each) for each in done)
        self._recorder.emit(Measured(at=self._now(), rollouts=(rollout,), microbatches=microbatches))

    def _plain(self, current: Round) -> bool:
        """Whether the sampler's log-probs are those of the distribution that forward_backward computes."""
        drawn = [self._samplers.drawn(piece.sequence) for row in current.rows for piece in row.drawn]
        return all(one is None or one.settings == {"temperature": 1.0, "top_p": 1.0, "top_k": -1.0} for one in drawn)

    # Small things

    @property
    def _version(self) -> int:
        return self._counts.made - self._counts.before

    def _drawn(self, sequence: str) -> Drawn | None:
        """The sequence of this name, with a version that counts from the first rollout."""
        one = self._samplers.drawn(sequence)
        if one is None or one.version is None or not self._counts.before:
            return one
        return replace(one, version=self._relative(one.version))

    def _relative(self, made: int) -> int:
        """A policy version by the updates of the training client: those of a warm-up do not count."""
        return made - self._counts.before if made >= self._counts.before else NOT_THE_POLICY

    def _now(self) -> float:
        return 0.0 if self._recorder is None else self._recorder.now()

    def _cannot(self, why: str, *topics: str) -> None:
        for topic in topics:
            if self._recorder is not None and topic not in self._counts.said:
                self._counts.said.add(topic)
                self._recorder.cannot(topic, why)

    def _compare(self, name: str, due: Any, given: Any) -> None:
        """Record once that a call has another setting than the loop said."""
        if given != due and f"setting {name}" not in self._counts.said:
            self._counts.said.add(f"setting {name}")
            self._emit(ConfigChanged(at=self._now(), name=name, before=due, after=given, since="configuration"))

    def _emit(self, event: AnyEvent) -> None:
        if self._round is not None:
            self._round.events.append(event)
        elif self._recorder is not None:
            self._recorder.emit(event)


def _source(data: tuple[Found, ...]) -> tuple[OldSource, int | None]:
    """Where the old log-probs of data come from that have a token which counts, and the oldest version that computed them."""
    counting = [datum for datum in data if datum.old is None or datum.counted.any()] or list(data)
    sources = {datum.old_source for datum in counting}
    computed = [datum.computed for datum in counting]
    known = [version for version in computed if version is not None]
    source: OldSource = sources.pop() if len(sources) == 1 else "unknown"
    return source, min(known) if known and len(known) == len(computed) else None
