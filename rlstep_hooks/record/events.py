"""The events that observers emit; `record.wire` writes and reads them.

An event states what happened at the moment it happened; it holds only integers, names and times. Numbers that a device must
compute (log ratios, whether weights changed) follow in a `Measured` event, one rollout or a few seconds later, so that recording never
waits for the device.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rlstep_hooks.planning.finding import Finding, Verdict
from rlstep_hooks.planning.schedule import Schedule
from rlstep_hooks.record.values import TOPICS as TOPICS
from rlstep_hooks.record.values import CarriedPart as CarriedPart
from rlstep_hooks.record.values import MicroBatchValues as MicroBatchValues
from rlstep_hooks.record.values import Probe as Probe
from rlstep_hooks.record.values import RolloutValues as RolloutValues
from rlstep_hooks.record.values import SampleRows as SampleRows
from rlstep_hooks.record.values import UpdateValues as UpdateValues

FORMAT_VERSION = 1
"""Increased when a reader of older files could misunderstand newer ones."""

Purpose = Literal["training", "evaluation"]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field="event"):
    """The field that every event has."""

    at: float = 0.0
    """Seconds since this process began recording."""


class RunStarted(Event, frozen=True, kw_only=True, gc=False, tag="run_started"):
    """A process attached its audit. The first line of its file."""

    format: int = FORMAT_VERSION
    run: str
    """Identifies the run; the same in all its processes."""
    rank: int
    world_size: int
    local_world_size: int = 1
    """Processes on this machine."""
    host: str = ""
    pid: int = 0
    started: float = 0.0
    """Unix time."""
    schedule: Schedule | None
    """The plan; None if the configuration could not be read."""
    start_updates: int = 0
    """Updates made before this training began (a resumed run)."""
    facts: dict[str, Any] = {}
    """What the observer read from the live trainer: precision, dropout, framework counters."""
    versions: dict[str, str] = {}
    """Installed releases of the packages involved."""


class Queued(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Prompts between their submission and their training, since the rollout before; where a queue lies between both."""

    waiting: int = 0
    """Prompts that were submitted and not taken yet."""
    lost: int = 0
    """Prompts that were submitted, and are neither taken nor dropped nor in the queue."""
    again: int = 0
    """Samples taken whose prompt was taken before, or that were taken twice."""
    unasked: int = 0
    """Samples taken whose prompt was never submitted, or was dropped."""
    behind: int = 0
    """Samples of weights that are older than those synced before their prompt was submitted."""
    dropped: tuple[tuple[str, int], ...] = ()
    """Why prompts were dropped -> how many."""
    ahead: int = 0
    """Samples that say they are of weights which no engine had when they were finished."""
    waited: tuple[tuple[int, int], ...] = ()
    """Syncs between a prompt's way into the queue and its training -> prompts; empty if that was not observed."""


class Rollout(Event, frozen=True, kw_only=True, gc=False, tag="rollout"):
    """One generation phase on this process."""

    index: int
    """Counts rollouts of this process from 0, evaluation included."""
    samples: int
    policy_version: int
    sampler_version: int | None = None
    """Version of the weights that the sampler held; None if it cannot be observed. Negative if they have no version (`UNSENT`: no sync
    of the run had them)."""
    purpose: Purpose = "training"
    reference: bool | None = False
    """Whether reference log-probs were computed for it; None if the run ended before that was known."""
    groups_intact: bool | None = None
    """Whether each prompt's samples are complete and stand together; None if groups span processes."""
    repeated: int | None = None
    """Rows in it that came more often than the passes of the loader allow; None if rows are unknown."""
    foreign: int | None = None
    """Rows of the validation set in it; None if rows are unknown."""
    rewards_intact: bool | None = None
    """Whether each sample still has the reward it got when it was generated; None if not observed."""
    repeats: int | None = None
    """Index of an earlier rollout with exactly the same samples, which sampling cannot repeat; None if there is none."""
    repeats_random: int | None = None
    """Index of an earlier rollout that began with the same state of the random generator; negative if there is none, None if that was
    not looked at."""
    copied: tuple[int, float] | None = None
    """Completions that stand in it before, and -log-prob of the least probable of them in nats; None if that was not looked at."""
    signal: bool | None = None
    """Whether rewards differ within the groups that advantages compare; None if not observed."""
    reference_intact: bool | None = None
    """Whether the reference model still has its first weights; None if not observed."""
    sampling: tuple[dict[str, float], ...] = ()
    """Sampling settings of the engine, each combination once; empty if not observed."""
    due: int | None = None
    """Samples expected, if the data decide it; None if the plan does."""
    all_drawn: bool | None = None
    """Whether its counted tokens are all that were drawn for it, each from the whole distribution of the weights that sampled it; None
    if that is not known."""
    queue: Queued | None = None
    """What became of its prompts in the queue; None if there is none, or it was not observed."""
    own_samples: int | None = None
    """Samples that this process tracks by identity when one controller generates for all; None if that is `samples`."""
    digest: int = 0
    """Running checksum of this process's events, equal on all ranks of a healthy run; 0 if there is one rank."""


UNSENT = -2
"""Version of weights in an engine that no sync of the run had."""


class Attached(Event, frozen=True, kw_only=True, gc=False, tag="attached"):
    """A process attached its audit in a run that another process controls. The first line of its file."""

    format: int = FORMAT_VERSION
    run: str
    process: str
    """Its name in the run, such as "rank0" (a trainer) or "engine1"; its file has the same name."""
    world_size: int = 1
    """Number of trainers in the run, if this process is one of them."""
    host: str = ""
    pid: int = 0
    started: float = 0.0
    """Unix time."""
    versions: dict[str, str] = {}
    """Installed releases of the packages involved."""


class FactsRead(Event, frozen=True, kw_only=True, gc=False, tag="facts_read"):
    """What a trainer's observer read from its live model and optimizer once they were built."""

    facts: dict[str, Any]


PhaseName = Literal["refresh", "reference", "values", "policy_updates", "critic_updates", "sync"]


class Phase(Event, frozen=True, kw_only=True, gc=False, tag="phase"):
    """One call of the controller to all its trainers.

    The controller writes it when the call has returned; a trainer writes it when the call begins, and its events up to the next phase
    happened within the call. Both count the calls of each name, so that their records can be matched without a common clock.
    """

    name: PhaseName
    number: int
    """Counts calls of this name from 0."""
    purpose: Purpose = "training"


class PhaseEnded(Event, frozen=True, kw_only=True, gc=False, tag="phase_ended"):
    """A trainer has done its part of a call; its record of the call is complete."""

    name: PhaseName
    number: int


class Generated(Event, frozen=True, kw_only=True, gc=False, tag="generated"):
    """One generation phase as the controller of a run sees it: the samples of all processes."""

    index: int
    """Counts rollouts from 0, evaluation included."""
    samples: int
    """Generated samples to be trained on, without padding."""
    prompts: int
    """Prompts submitted for it."""
    added: int = 0
    """Padding samples."""
    due: int | None = None
    """Samples expected from what the data asked for and the framework recorded; None if the plan decides it."""
    repeated: int | None = None
    """Rows submitted for it more often than the passes of the loader allow; None if rows are unknown."""
    foreign: int | None = None
    """Rows of the validation set submitted for it; None if rows are unknown."""
    labels: tuple[tuple[int, int], ...] = ()
    """Weight label of the engine -> number of samples with it. The framework gives the engine a new label at each sync."""
    parts: tuple[int, ...] = ()
    """Samples of the parts in which it was trained, padding included; empty if it was trained at once."""
    queue: Queued | None = None
    """As in `Rollout`."""
    sampling: tuple[dict[str, float], ...] = ()
    """Sampling settings of the engines, each combination once; empty if not observed."""
    all_drawn: bool | None = None
    """As in `Rollout`."""
    purpose: Purpose = "training"


QueueStepName = Literal["submitted", "putting", "put", "pushed", "done"]
"""Generation begins, the samples are about to go into the queue, they are in it, they are in it and have pushed out the oldest ones,
and the process that generates is done with them."""


class QueueStep(Event, frozen=True, kw_only=True, gc=False, tag="queue_step"):
    """What a process that generates by itself did with one prompt on its way into the queue."""

    prompt: str
    step: QueueStepName
    syncs: int = 0
    """Syncs of weights that the process had been told of."""


class Rewarded(Event, frozen=True, kw_only=True, gc=False, tag="rewarded"):
    """Whether the advantages of one rollout agree with its rewards, as the controller has them."""

    rollout: int
    """Index of the rollout."""
    groups: int
    """Groups of at least two samples."""
    mixed: int = 0
    """Groups whose samples have different prompts."""
    unordered: int = 0
    """Groups in which a higher reward has no higher advantage, although the estimator compares samples within groups."""
    off_centre: int = 0
    """Groups whose advantages do not sum to 0, although the estimator's should."""
    advantages_off: float | None = None
    """As in `RolloutValues`, where the controller holds rewards and advantages."""
    advantages_fit: str = ""
    altered: int | None = None
    """Samples whose advantages were others once they were trained than when they were computed; None if that was not compared."""
    rewards_moved: int | None = None
    """Samples whose advantages were computed from other rewards than they have; None if that was not compared."""
    targets_altered: int | None = None
    """The same for the values that advantages were computed with, and the returns; None without a critic."""
    samples: int = 0
    """Samples whose masks were compared."""
    masks_wrong: int | None = None
    """As in `RolloutValues`."""
    weights_off: float | None = None
    """Largest distance of an importance weight from the documented one, in units of what rounding explains; None if that was not
    compared."""
    weights_like: str = ""
    """What the weights are instead, if something known gives them."""
    weights_cut: float | None = None
    """Fraction of tokens whose documented weight is outside of its bounds."""


class Inspected(Event, frozen=True, kw_only=True, gc=False, tag="inspected"):
    """What a controller observed of the latest rollout once its advantages were computed; fields as in `Rollout`."""

    groups_intact: bool | None = None
    rewards_intact: bool | None = None
    repeats: int | None = None
    copied: tuple[int, float] | None = None
    signal: bool | None = None
    reference_intact: bool | None = None


class Carried(Event, frozen=True, kw_only=True, gc=False, tag="carried"):
    """Samples of a rollout were carried from one place of a controlled run to the next.

    Where one process sees both places, it says what was altered. Else the controller writes what it handed over and a trainer what
    came, and a judge compares them.
    """

    way: str
    """The two places, in words that follow "on the way"."""
    rollout: int = -1
    """Index of the rollout; a trainer does not know it."""
    role: Literal["policy", "critic"] = "policy"
    """Whose trainer they came to."""
    compared: int = 0
    """Samples that were compared."""
    names: tuple[str, ...] = ()
    """What of them was compared (`CARRIED`)."""
    altered: dict[str, int] = {}
    """Name of what was compared -> samples in which it was altered."""
    parts: tuple[CarriedPart, ...] = ()
    """What was handed over, or came, part by part."""


class Refresh(Event, frozen=True, kw_only=True, gc=False, tag="refresh"):
    """One computation of old log-probs."""

    rollout: int
    """Index of the rollout whose samples it covers."""
    samples: int
    positions: int
    """Token positions covered, padding included."""
    policy_version: int | None
    """Version that computed them; None if no forward of the policy was seen to produce them."""
    in_loss: bool = False
    """Whether they were computed inside a training loss."""


class Received(Event, frozen=True, kw_only=True, gc=False, tag="received"):
    """Samples of the latest rollout were given to this trainer, whichever trainer computed their old log-probs."""

    samples: int


OldSource = Literal["at_rollout", "recompute", "engine", "detach", "none", "unknown"]
"""Where the old log-probs of a loss come from."""

Constant = Literal["old_logprobs", "advantages", "targets"]
"""What a loss treats as constant: the old log-probs, the advantages, and the targets of the critic's values."""


class MicroBatch(Event, frozen=True, kw_only=True, gc=False, tag="microbatch"):
    """One forward and backward of training."""

    index: int
    """Counts micro-batches of this process from 0."""
    samples: int
    role: Literal["policy", "critic"] = "policy"
    trained: tuple[SampleRows, ...] | None = None
    """Which samples; None if they cannot be identified."""
    policy_version: int
    sampled_version: int | None = None
    """Oldest policy version among the rollouts of these samples."""
    unknown: int = 0
    """Samples whose name no rollout has; 0 if the framework does not name samples."""
    old_version: int | None = None
    """Version that computed the old log-probs; None if `old_source` is "detach" or it cannot be observed."""
    old_source: OldSource = "at_rollout"
    constants: tuple[Constant, ...] = ()
    """The constants of the loss that the observer saw."""
    with_gradient: tuple[Constant, ...] = ()
    """The constants that a gradient flows into."""


class Update(Event, frozen=True, kw_only=True, gc=False, tag="update"):
    """One optimizer step, made or skipped."""

    index: int
    """Counts windows of this process from 0, including skipped ones."""
    role: Literal["policy", "critic"] = "policy"
    applied: bool = True
    by_loop: bool = True
    """Whether the framework's training loop made the step; False if other code did."""
    version: int
    """Policy version after the update."""
    microbatches: int
    """Micro-batches since the last update of this role."""
    learning_rate: float | None = None
    lr_tick: int | None = None
    """Position of the learning-rate scheduler at this update."""
    due_rate: float | None = None
    """The learning rate that the configured schedule gives for it, where the observer asked the schedule itself."""
    skip_reason: str = ""
    written: int | None = None
    """Probed tensors that torch saw written to in place since the update before, whatever their values are now; None if that was not
    observed."""


class WeightSync(Event, frozen=True, kw_only=True, gc=False, tag="weight_sync"):
    """Weights were brought to the rollout engine."""

    policy_version: int
    label: int | None = None
    """The framework's name for these weights when it hands them to the engine."""


class WeightsSent(Event, frozen=True, kw_only=True, gc=False, tag="weights_sent"):
    """What a trainer handed over for one sync of weights."""

    number: int
    """Counts syncs of this run from 0."""
    policy_version: int
    tensors: int | None
    """Tensors that the policy has for the engine; None if that is not known."""
    sent: int
    """Tensors that were handed over."""
    policy: tuple[Probe, ...]
    """Of the policy itself, where it could be read; else of what was handed over."""
    sent_as: tuple[Probe, ...] = ()
    """Of the tensors among these that were handed over with other values than the policy has."""


class WeightsHeld(Event, frozen=True, kw_only=True, gc=False, tag="weights_held"):
    """What an engine holds after one sync of weights, or when it generates after it was woken up."""

    number: int
    """Counts syncs of this run from 0."""
    engine: str
    """The engine, as a finding names it."""
    arrived: int
    """Tensors that arrived."""
    before: tuple[Probe, ...]
    """Of the engine's own tensors before the sync."""
    after: tuple[Probe, ...]
    woken: bool = False
    """Whether nothing was synced, and the engine was woken up."""


class AdapterUsed(Event, frozen=True, kw_only=True, gc=False, tag="adapter_used"):
    """Requests of an engine to which an adapter was delivered."""

    engine: str
    requests: int
    bound: int
    """Requests among these that ran with an adapter."""
    parts: int | None = None
    """Layers that the latest adapter changes; None if that was not looked at."""
    matched: int = 0
    """Layers of the engine that found their part in it."""
    empty: int = 0
    """Layers among these that hold zeros in its place."""


class EpochEnd(Event, frozen=True, kw_only=True, gc=False, tag="epoch_end"):
    """The end of one pass of the loader."""

    epoch: int
    """Passes completed, including this one."""
    stopping: bool = False
    """Whether training was asked to stop before its planned end."""
    run_over: bool = False
    """Whether the pass ended because the framework counts its run as done, not because its rows were used up."""


class Evaluated(Event, frozen=True, kw_only=True, gc=False, tag="evaluated"):
    """One evaluation, recorded apart from training."""

    batches: int
    rollouts: int


class ConfigChanged(Event, frozen=True, kw_only=True, gc=False, tag="config_changed"):
    """A setting that the plan or the arithmetic depends on has changed."""

    name: str
    before: Any
    after: Any
    since: Literal["construction", "train_begin", "configuration"]
    """What it has changed since. "configuration": the framework computes with another value than the configuration has."""
    by_design: bool = False
    """Whether training runs change this setting on purpose, so that another value is no fault by itself."""


class Measured(Event, frozen=True, kw_only=True, gc=False, tag="measured"):
    """Numbers for events already written. They are written when the device has them: with the next rollout, and at the end."""

    rollouts: tuple[RolloutValues, ...] = ()
    microbatches: tuple[MicroBatchValues, ...] = ()
    updates: tuple[UpdateValues, ...] = ()


class Unobserved(Event, frozen=True, kw_only=True, gc=False, tag="unobserved"):
    """Something that could not be observed, with the reason. Rules that need it are NOT EVALUATED."""

    what: str
    """One of `TOPICS`."""
    why: str


class RunEnded(Event, frozen=True, kw_only=True, gc=False, tag="run_ended"):
    """Training returned or raised."""

    status: Literal["completed", "raised"]
    updates: int
    """Windows closed in the whole run, by the framework's own count."""
    error: str = ""
    """Type and text of the exception, for "raised"."""
    stopped: bool = False
    """Whether an early stop was asked for."""
    stopped_by: str = ""
    """Code of the finding for which the audit itself ended training; "another process" if the finding was made there; empty if the
    audit did not end training."""
    digest: int = 0
    counts: dict[str, int] = {}


class Judged(Event, frozen=True, kw_only=True, gc=False, tag="judged"):
    """The process's own judgement, so that one process can report for all. The last line of every complete file."""

    verdict: Verdict
    findings: tuple[Finding, ...] = ()


AnyEvent = (
    RunStarted
    | Attached
    | FactsRead
    | Phase
    | PhaseEnded
    | Generated
    | QueueStep
    | Rewarded
    | Inspected
    | Carried
    | Rollout
    | Refresh
    | Received
    | MicroBatch
    | Update
    | WeightSync
    | WeightsSent
    | WeightsHeld
    | AdapterUsed
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
    "weight_sync": "a weight sync",
    "epoch_end": "the end of the data epoch",
    "run_ended": "the end of training",
}

INTERRUPTED = "KeyboardInterrupt"
"""Name of the exception that a user's interrupt raises."""

NOT_FINITE = "gradient not finite"
"""Why the framework skipped an update."""


def name_of(event: Any) -> str:
    """The event's kind in words, with its role if that is not the policy."""
    of = " of the critic" if getattr(event, "role", "policy") == "critic" else ""
    return _NAMES[event.__struct_config__.tag] + of
