"""The events that observers emit, and their wire form: one JSON object a line.

An event states what happened at the moment it happened and holds only integers, names and times. Numbers that a device has
to compute (log ratios, whether weights changed) come later in a `Measured` event, with a rollout or a second later, so that recording
never waits for the device.
"""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from operator import or_
from typing import Any, Literal, cast, get_args

import msgspec

from rlstep_hooks.planning.finding import Finding, Verdict
from rlstep_hooks.planning.schedule import Schedule, decode_fraction, encode_fraction
from rlstep_hooks.record.columns import Columns

FORMAT_VERSION = 1
"""Raised when a reader of older files could misunderstand newer ones."""

Purpose = Literal["training", "evaluation"]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field="event"):
    """What all events carry."""

    at: float = 0.0
    """Seconds since this process began recording."""


class RunStarted(Event, frozen=True, kw_only=True, gc=False, tag="run_started"):
    """A process attached its audit. The first line of every file."""

    format: int = FORMAT_VERSION
    run: str
    """Identifies the run; all its processes share it."""
    rank: int
    world_size: int
    local_world_size: int = 1
    """Processes on this machine."""
    host: str = ""
    pid: int = 0
    started: float = 0.0
    """Unix time."""
    schedule: Schedule | None
    """The plan; None where the configuration could not be read."""
    start_updates: int = 0
    """Updates already made when training began (a resumed run)."""
    facts: dict[str, Any] = {}
    """What the observer read from the live trainer: precision, dropout, framework counters."""
    versions: dict[str, str] = {}
    """Releases of the packages involved."""


class Rollout(Event, frozen=True, kw_only=True, gc=False, tag="rollout"):
    """One generation phase on this process."""

    index: int
    """Counts rollouts of this process from 0, evaluation included."""
    samples: int
    policy_version: int
    sampler_version: int | None = None
    """Version of the weights that the sampler held; None where it cannot be seen."""
    purpose: Purpose = "training"
    reference: bool | None = False
    """Whether reference log-probs came with it; None where the run did not come so far."""
    groups_intact: bool | None = None
    """Whether every prompt's samples stand together and are complete; None where groups span processes."""
    due: int | None = None
    """Samples that are due where the data decide and not the plan; None where the plan says it."""
    own_samples: int | None = None
    """Samples that this process follows by identity, where a controller generates for all; None where `samples` says it."""
    digest: int = 0
    """Running checksum of this process's events, equal on all ranks of a healthy run; 0 where there is one rank."""


class Attached(Event, frozen=True, kw_only=True, gc=False, tag="attached"):
    """A process attached its audit in a run that another process controls. The first line of its file."""

    format: int = FORMAT_VERSION
    run: str
    process: str
    """Its name in the run, such as "rank0" (a trainer) or "engine1"; the same in the name of its file."""
    world_size: int = 1
    """Trainers of the run, where this is one of them."""
    host: str = ""
    pid: int = 0
    started: float = 0.0
    """Unix time."""
    versions: dict[str, str] = {}
    """Releases of the packages involved."""


class FactsRead(Event, frozen=True, kw_only=True, gc=False, tag="facts_read"):
    """What a trainer's observer read from its live model and optimizer, once they are built."""

    facts: dict[str, Any]


PhaseName = Literal["refresh", "reference", "values", "policy_updates", "critic_updates", "sync"]


class Phase(Event, frozen=True, kw_only=True, gc=False, tag="phase"):
    """One call of the controller to all its trainers.

    The controller writes it when the call has returned, a trainer when it begins: what follows in the trainer's file up to the
    next phase happened within the call. Both count the calls of each name, so that records need no common clock.
    """

    name: PhaseName
    number: int
    """Counts calls of this name from 0."""
    purpose: Purpose = "training"


class PhaseEnded(Event, frozen=True, kw_only=True, gc=False, tag="phase_ended"):
    """A trainer has done its part of a call, and its record of the call is complete."""

    name: PhaseName
    number: int


class Generated(Event, frozen=True, kw_only=True, gc=False, tag="generated"):
    """One generation phase, as the controller of a run sees it: samples of all processes."""

    index: int
    """Counts rollouts from 0, evaluation included."""
    samples: int
    """Generated samples that go into training, without padding."""
    prompts: int
    """Prompts that were submitted for it."""
    added: int = 0
    """Padding samples."""
    due: int | None = None
    """Samples that are due by what the data asked for and the framework itself recorded; None where that is what the plan says."""
    labels: tuple[tuple[int, int], ...] = ()
    """Weight label of the engine -> samples that carry it. A label is what the framework gives the engine with each push."""
    purpose: Purpose = "training"


class Refresh(Event, frozen=True, kw_only=True, gc=False, tag="refresh"):
    """One computation of old log-probs."""

    rollout: int
    """Index of the rollout whose samples it covers."""
    samples: int
    positions: int
    """Token positions covered, padding included."""
    policy_version: int | None
    """Version that computed them; None where no forward of the policy was seen to produce them."""
    in_loss: bool = False
    """Whether it happened inside a training loss."""


class SampleRows(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Samples by identity: rows of one rollout of this process."""

    rollout: int
    rows: tuple[int, ...]


Constant = Literal["old_logprobs", "advantages", "targets"]
"""What a loss takes as given: the denominator of the ratio, the advantages, and what the critic's values are drawn to."""


class MicroBatch(Event, frozen=True, kw_only=True, gc=False, tag="microbatch"):
    """One forward and backward of training."""

    index: int
    """Counts micro-batches of this process from 0."""
    samples: int
    role: Literal["policy", "critic"] = "policy"
    trained: tuple[SampleRows, ...] | None = None
    """Which samples; None where they cannot be identified."""
    policy_version: int
    sampled_version: int | None = None
    """Oldest policy version among the rollouts of these samples."""
    unknown: int = 0
    """Samples under a name that no rollout has; only where the framework names its samples."""
    old_version: int | None = None
    """Version that computed the old log-probs used; None with `old_source` "detach" or where it cannot be seen."""
    old_source: Literal["at_rollout", "recompute", "engine", "detach", "none", "unknown"] = "at_rollout"
    constants: tuple[Constant, ...] = ()
    """What of the loss's constants the observer saw."""
    with_gradient: tuple[Constant, ...] = ()
    """Those of them that a gradient flows into."""


class Update(Event, frozen=True, kw_only=True, gc=False, tag="update"):
    """One optimizer step, or one that was skipped."""

    index: int
    """Counts windows of this process from 0, skipped ones included."""
    role: Literal["policy", "critic"] = "policy"
    applied: bool = True
    by_loop: bool = True
    """Whether the framework's training loop asked for it; False for a step made elsewhere."""
    version: int
    """Policy version after it."""
    microbatches: int
    """Micro-batches since the last update of this role."""
    learning_rate: float | None = None
    lr_tick: int | None = None
    """Position of the learning-rate scheduler at this update."""
    skip_reason: str = ""


class WeightSync(Event, frozen=True, kw_only=True, gc=False, tag="weight_sync"):
    """Weights pushed to the rollout engine."""

    policy_version: int
    label: int | None = None
    """What the framework calls these weights when it hands them to the engine."""


class EpochEnd(Event, frozen=True, kw_only=True, gc=False, tag="epoch_end"):
    """The end of a pass of the loader."""

    epoch: int
    """Passes completed, this one included."""
    stopping: bool = False
    """Whether training was asked to stop before its planned end."""
    run_over: bool = False
    """Whether the framework counts its run as done, so that the pass ends for that and not for want of rows."""


class Evaluated(Event, frozen=True, kw_only=True, gc=False, tag="evaluated"):
    """One evaluation, kept apart from training."""

    batches: int
    rollouts: int


class ConfigChanged(Event, frozen=True, kw_only=True, gc=False, tag="config_changed"):
    """A setting that the plan rests on has another value than before."""

    name: str
    before: Any
    after: Any
    since: Literal["construction", "train_begin"]


class MicroBatchValues(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Numbers of one micro-batch, over real (unmasked) tokens."""

    index: int
    tokens: int
    max_abs_log_ratio: float | None = None
    mean_abs_log_ratio: float | None = None
    clipped: float | None = None
    """Fraction of tokens (of sequences, in sequence scope) whose gradient the clip removes."""
    scope: Literal["token", "sequence"] = "token"
    old_intact: bool | None = None
    """Whether the old log-probs are bit for bit those of the refresh, row by row."""
    tokens_intact: bool | None = None
    """Whether the completion tokens are those of the rollout, row by row."""
    loss_ratio: float | None = None
    """Loss over the loss that the documented formula gives for the same log-probs; None where it cannot be told."""


class UpdateValues(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Numbers of one update, from a probe of the trainable weights."""

    index: int
    probed: int
    """Weights in the probe."""
    changed: int
    """Probed weights whose value the optimizer step changed."""
    with_gradient: int
    """Probed weights with a gradient other than zero."""
    visible: int
    """Probed weights whose gradient times learning rate is large enough to change them in their dtype."""
    role: Literal["policy", "critic"] = "policy"
    max_change: float | None = None
    moved_before: int = 0
    """Probed weights that differ from their value right after the update before this one."""


class RolloutValues(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Numbers of one rollout."""

    index: int
    max_abs_advantage: float | None = None
    """Over real tokens."""
    sampler_gap_mean: float | None = None
    """Mean |trainer log-prob - engine log-prob| of the sampled tokens, where the engine returns them."""
    sampler_gap_max: float | None = None
    mean_ratio: float | None = None
    """Mean ratio of all micro-batches trained on it, masked tokens counted as 1, as the framework takes it."""
    logged_ratio: float | None = None
    """The mean ratio that the framework logged for it."""


class Measured(Event, frozen=True, kw_only=True, gc=False, tag="measured"):
    """Numbers that the device had ready, for events already written; they come with the next rollout and at the end."""

    rollouts: tuple[RolloutValues, ...] = ()
    microbatches: tuple[MicroBatchValues, ...] = ()
    updates: tuple[UpdateValues, ...] = ()


class Unobserved(Event, frozen=True, kw_only=True, gc=False, tag="unobserved"):
    """Something that could not be observed, with the reason. Rules that need it are NOT EVALUATED."""

    what: str
    """A topic of `TOPICS`."""
    why: str


class RunEnded(Event, frozen=True, kw_only=True, gc=False, tag="run_ended"):
    """Training returned or raised."""

    status: Literal["completed", "raised"]
    updates: int
    """Windows closed in the whole run, as the framework counts them."""
    error: str = ""
    """Type and text of the exception, for "raised"."""
    stopped: bool = False
    """Whether something asked for an early stop."""
    stopped_by: str = ""
    """Code of the finding for which the audit itself ended training, "another process" where that found it; empty where it did not."""
    digest: int = 0
    counts: dict[str, int] = {}


class Judged(Event, frozen=True, kw_only=True, gc=False, tag="judged"):
    """What the process itself found, so that one process can report for all. The last line of every complete file."""

    verdict: Verdict
    findings: tuple[Finding, ...] = ()


TOPICS = (
    "order",
    "samples",
    "log_ratio",
    "refresh",
    "loss",
    "weights",
    "sampler",
    "learning_rate",
    "ranks",
    "recording",
)
"""What a process can fail to observe; each rule names the topics that it needs."""

AnyEvent = (
    RunStarted
    | Attached
    | FactsRead
    | Phase
    | PhaseEnded
    | Generated
    | Rollout
    | Refresh
    | MicroBatch
    | Update
    | WeightSync
    | EpochEnd
    | Evaluated
    | ConfigChanged
    | Measured
    | Unobserved
    | RunEnded
    | Judged
)

_NAMES = {
    "rollout": "a rollout",
    "refresh": "old log-probs",
    "microbatch": "a micro-batch",
    "update": "an update",
    "weight_sync": "a push of weights to the engine",
    "epoch_end": "the end of the data epoch",
    "run_ended": "the end of training",
}

NOT_FINITE = "gradient not finite"
"""Reason of an update that the framework itself skips because of its gradient."""


def name_of(event: Any) -> str:
    """The event's kind in words, and its role where that is not the policy."""
    of = " of the critic" if getattr(event, "role", "policy") == "critic" else ""
    return _NAMES[event.__struct_config__.tag] + of


def _encode_extension(value: Any) -> Any:
    if isinstance(value, Fraction):
        return encode_fraction(value)
    return repr(value)


def _decode_extension(kind: type, value: Any) -> Any:
    if kind is Fraction:
        return decode_fraction(value)
    return value


_VALUES: dict[str, Columns[Any]] = {
    "rollouts": Columns(RolloutValues),
    "microbatches": Columns(MicroBatchValues),
    "updates": Columns(UpdateValues),
}
_MeasuredLine: Any = msgspec.defstruct(
    "MeasuredLine",
    [(name, columns.type | None, None) for name, columns in _VALUES.items()],
    bases=(Event,),
    tag="measured",
    frozen=True,
    kw_only=True,
    gc=False,
)
"""`Measured` as it is written: numbers of many micro-batches would be most of a record if each carried its names."""

_encoder = msgspec.json.Encoder(enc_hook=_encode_extension)
_lines = [_MeasuredLine, *(kind for kind in get_args(AnyEvent) if kind is not Measured)]
_decoder = msgspec.json.Decoder(reduce(or_, _lines), dec_hook=_decode_extension)


def _to_line(event: Measured) -> Any:
    rows = {name: getattr(event, name) for name in _VALUES}
    return {"event": Measured.__struct_config__.tag, "at": event.at} | {
        name: _VALUES[name].of(rows[name]) for name in rows if rows[name]
    }


def _from_line(line: Any) -> Measured:
    columns = {name: getattr(line, name) for name in _VALUES}
    return Measured(at=line.at, **{name: _VALUES[name].rows(of) for name, of in columns.items() if of is not None})


def encode(*events: Event) -> bytes:
    """Events as lines of JSON, newlines included."""
    return _encoder.encode_lines([_to_line(event) if isinstance(event, Measured) else event for event in events])


def decode(line: bytes) -> AnyEvent:
    """The inverse of `encode`.

    Raises:
        ValueError: The line is not an event.
    """
    try:
        event = _decoder.decode(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return _from_line(event) if type(event) is _MeasuredLine else cast("AnyEvent", event)


def to_json(value: Any, *, indent: int = 0) -> bytes:
    """Any of this package's data as JSON: whole fractions as numbers, others as text such as "1/2"."""
    data = _encoder.encode(value)
    return msgspec.json.format(data, indent=indent) if indent else data
