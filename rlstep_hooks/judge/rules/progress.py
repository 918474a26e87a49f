"""What the rules of one run share: how far the run is, and what they still need of it. Its size is bounded."""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from rlstep_hooks.judge.rules.precision import precision_class
from rlstep_hooks.planning.finding import Where
from rlstep_hooks.record.events import (
    Carried,
    MicroBatch,
    Refresh,
    Rewarded,
    RunStarted,
    TurnsJoined,
    Update,
    never_seen,
)

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import (
        MicroBatchValues,
        Rollout,
        RolloutValues,
        UpdateValues,
    )


RECENT_UPDATES = 4096
"""Updates whose values are kept for comparison with later micro-batches; far above any lag a run has."""


WAITING = 65_536
"""How many events may wait for their numbers; no rollout has as many."""


Value = TypeVar("Value")


Place = tuple[int, int, int]
"""The place of an event, in a small form: training rollouts that had begun, the number of the update under way, the data epoch."""


class Progress:
    """What the judge knows of the run so far; shared by all rules and bounded in size."""

    def __init__(self, schedule: Schedule, started: RunStarted) -> None:
        self.schedule = schedule
        self.started = started
        self._read(started)
        self.events = 0
        self.rollouts = 0
        self.trained = False
        """Whether the policy was trained on a micro-batch."""
        self.updates = 0
        self.update = started.start_updates
        """Number of the next update in the whole run."""
        self.applied = 0
        self.evaluations = 0
        self.epoch = 0
        self.first_epoch = 0
        """The data epoch in which the run began."""
        self.place: Place = (0, self.update, 0)
        """The current place."""
        self.shown: object = started
        """What the rules are shown: an event, or a difference from the plan."""
        self.place_shown = self.place
        """The place of the event that rules are shown."""
        self.rollouts_before = 0
        """Rollouts before a resume."""
        self.open_microbatches: dict[int, tuple[MicroBatch, Place]] = {}
        self.open_of_critic: dict[int, tuple[MicroBatch, Place]] = {}
        """The latest micro-batches of the critic, few of which get numbers."""
        self.open_updates: dict[tuple[str, int], tuple[Update, Place]] = {}
        self.open_rollouts: dict[int, tuple[Rollout, Place]] = {}
        self.update_values: dict[int, UpdateValues] = {}
        self._recent: deque[int] = deque()
        self._numbers: OrderedDict[int, int] = OrderedDict()

    def add_facts(self, facts: dict[str, Any]) -> None:
        """Add facts that the observer read after the run had begun."""
        self.started = msgspec.structs.replace(self.started, facts=self.started.facts | facts)
        self._read(self.started)

    def _read(self, started: RunStarted) -> None:
        self.compute_dtype = str(started.facts.get("compute_dtype", "unknown"))
        """The dtype of the model's forward, as torch names it; "unknown" where the observer did not say."""
        self.precision = precision_class(self.compute_dtype)
        """The class of tolerances of that dtype."""
        self.rounds_log_probs = str(started.facts.get("log_prob_dtype", "float32")) in ("bfloat16", "float16")
        """Whether log-probs themselves are kept in two to three digits, as where FSDP casts what its model gives."""

    @property
    def own_rollouts(self) -> int:
        """Training rollouts since this run began, without those before a resume."""
        return self.rollouts - self.rollouts_before

    @property
    def exported(self) -> bool:
        """Whether rollouts are all that is known of the run, those of all processes together."""
        return "updates" in never_seen(self.started)

    @property
    def resumed(self) -> bool:
        """Whether training began from a checkpoint."""
        return self.started.start_updates > 0

    def where(self, *, rollout: int | None = None, update: int | None = None, microbatch: int | None = None) -> Where:
        """A place in the run; a number that is left out is the current one. Training rollouts count from 0."""
        return Where(
            rollout=max(self.rollouts - 1, 0) if rollout is None else rollout,
            update=self.update if update is None else update,
            microbatch=microbatch,
            epoch=self._epoch(self.epoch),
            resumed=self.resumed and microbatch is not None,
        )

    @property
    def rollout_shown(self) -> int:
        """The training rollout of the event that is shown, counted from 0; -1 before the first."""
        return self.place_shown[0] - 1

    def where_shown(self) -> Where:
        """The place of what the rules are shown, as a finding shows it. Of an export nobody knows updates and data epochs."""
        where = self._where_shown()
        return Where(rollout=where.rollout) if self.exported else where

    def _where_shown(self) -> Where:
        shown = self.shown
        if isinstance(shown, RunStarted):
            return Where()
        # Only of a run, not of a plan, which does not wait for what matches events to load.
        from rlstep_hooks.judge.conformance import Difference

        if isinstance(shown, Difference):
            return shown.where
        if isinstance(shown, Refresh | Rewarded | Carried | TurnsJoined):
            return self.where(rollout=self.rollout_number(shown.rollout))
        return self.where_at(self.place_shown, shown)

    def where_at(self, place: Place, event: object) -> Where:
        """The place of an event as a finding shows it."""
        rollouts, update, epoch = place
        of_policy = getattr(event, "role", "policy") == "policy"
        return Where(
            rollout=max(rollouts - 1, 0),
            update=event.index if isinstance(event, Update) and of_policy else update,
            microbatch=event.index if isinstance(event, MicroBatch) else None,
            epoch=self._epoch(epoch),
            resumed=self.resumed and isinstance(event, MicroBatch),
        )

    def _epoch(self, epoch: int) -> int | None:
        return epoch if self.schedule.has_data_epochs else None

    def begin(self, *, rollouts: int, epoch: int) -> None:
        """Begin at the rollout and the data epoch at which the run begins, which a resume decides."""
        self.rollouts, self.epoch, self.first_epoch = rollouts, epoch, epoch
        self.rollouts_before = rollouts
        self.place = rollouts, self.update, epoch

    def end_epoch(self, epoch: int) -> None:
        """Record that this many passes of the loader are done."""
        self.epoch = epoch
        self.place = self.rollouts, self.update, epoch

    def count_update(self, *, applied: bool) -> None:
        """Count an update of the policy, which was made or skipped."""
        self.updates += 1
        self.update += 1
        self.applied += applied
        self.place = self.rollouts, self.update, self.epoch

    def forget_waiting(self) -> None:
        """Forget the older half of each kind of event if more than `WAITING` events wait for numbers, which may never come."""
        if len(self.open_rollouts) + len(self.open_microbatches) + len(self.open_updates) <= WAITING:
            return
        for waiting in (self.open_rollouts, self.open_microbatches, self.open_updates):
            _forget_older_half(waiting)

    def number_rollout(self, index: int) -> None:
        """Give the training rollout of this index its number."""
        self._numbers[index] = self.rollouts
        self.rollouts += 1
        self.place = self.rollouts, self.update, self.epoch
        if len(self._numbers) > RECENT_UPDATES:
            self._numbers.popitem(last=False)

    def rollout_number(self, index: int) -> int | None:
        """Which training rollout has this index, counted from 0; None for one of an evaluation."""
        return self._numbers.get(index)

    def remember(self, version: int, values: UpdateValues) -> None:
        """Keep the values of the update that made `version`."""
        self.update_values[version] = values
        self._recent.append(version)
        if len(self._recent) > RECENT_UPDATES:
            self.update_values.pop(self._recent.popleft(), None)


def _forget_older_half(waiting: dict[Any, Any]) -> None:
    for index in list(islice(waiting, len(waiting) // 2)):
        del waiting[index]


def remember(table: dict[int, Value], number: int, value: Value) -> None:
    """Store a value of an update or a rollout, and forget the oldest if the table grows too long."""
    table[number] = value
    if len(table) > RECENT_UPDATES:
        del table[next(iter(table))]


CERTAIN = 1e-4
"""-log-prob in nats below which a policy is certain of a token. A log-prob is the difference of numbers of about 20, so it moves in
steps of 2e-6 in float32, and stays where it is once the others' probability is as small: an update need not show."""


UNSURE = 0.1
"""Probability that a policy gives to other tokens than those of a micro-batch, added up over all of them, below which it is certain of
them: a log-prob moves by this much of a change of its logit. Where one token of many is not certain, and rounding holds that one
where it is, an update need not show (TRL at a learning rate of 10: logits of 50 000 move in steps of 0.004)."""


def is_certain(values: MicroBatchValues) -> bool:
    """Whether the policy is certain of the tokens of a micro-batch, so that its ratio can stay 1 while weights move."""
    if values.unsure is not None:
        return values.unsure < UNSURE
    return values.max_abs_log_prob is not None and values.max_abs_log_prob < CERTAIN


def teaches(values: MicroBatchValues) -> bool | None:
    """Whether a micro-batch has an advantage other than 0 whose gradient no mask or clip of the loss ends; None if that was not
    observed.

    A sample counts only if no other of its rollout has the same completion, where that was looked at: a policy that is certain of its
    answers gives equal ones, and if their rewards differ all the same (a judge's noise), their gradients cancel.
    """
    largest = values.max_abs_advantage if values.max_lone_advantage is None else values.max_lone_advantage
    if largest is None or not largest:
        return None if largest is None else False
    return {"": True, "yes": True, "no": False, "unknown": None}[values.learns]


def may_teach(values: MicroBatchValues) -> bool:
    """Whether an update on a micro-batch that moves nothing is a fault: not where every token may be left out by the loss."""
    return values.learns != "unknown" and teaches(values) is not False


def may_lack_gradient(values: MicroBatchValues) -> bool:
    """Whether the gradient of a micro-batch may be exactly 0: the loss leaves every token out, or the policy gives other tokens no
    probability that is left in float32 (OpenRLHF 0.11.2 at a learning rate of 1: log-probs of exactly 0 from the third rollout on)."""
    nothing_else = values.unsure is not None and values.unsure < CERTAIN
    return nothing_else or not may_teach(values)


class RolloutsWithSignal:
    """The latest training rollouts whose advantages are known to differ from 0, by number."""

    def __init__(self) -> None:
        self.numbers: dict[int, None] = {}
        self.any = False
        """Whether any rollout had one."""

    def add(self, values: RolloutValues, event: Rollout, number: int) -> None:
        """Look at the numbers of a rollout."""
        if event.purpose == "training" and values.max_abs_advantage:
            self.any = True
            remember(self.numbers, number, None)

    def forget_to(self, number: int) -> None:
        """Forget this rollout and those before it."""
        self.numbers = {later: None for later in self.numbers if later > number}
