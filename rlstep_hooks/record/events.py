"""The events that observers emit; `record.wire` writes and reads them.

An event states what happened at the moment it happened; it holds only integers, names and times. Numbers that a device must
compute (log ratios, whether weights changed) follow in a `Measured` event, one rollout or a few seconds later, so that recording never
waits for the device.

This module is the one that others import. It defines the events of a process's own training; `controlled_events` those that only runs
with a controller have, `weight_events` those of weights and engines, `gradient_events` those of gradients over several processes.
`numbers` has the numbers that events carry, and `values` their other parts.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rlstep_hooks.planning.finding import Finding, Verdict
from rlstep_hooks.planning.schedule import Schedule
from rlstep_hooks.record.controlled_events import Attached as Attached
from rlstep_hooks.record.controlled_events import Carried as Carried
from rlstep_hooks.record.controlled_events import FactsRead as FactsRead
from rlstep_hooks.record.controlled_events import Generated as Generated
from rlstep_hooks.record.controlled_events import Inspected as Inspected
from rlstep_hooks.record.controlled_events import Phase as Phase
from rlstep_hooks.record.controlled_events import PhaseEnded as PhaseEnded
from rlstep_hooks.record.controlled_events import PhaseName as PhaseName
from rlstep_hooks.record.controlled_events import QueueStep as QueueStep
from rlstep_hooks.record.controlled_events import QueueStepName as QueueStepName
from rlstep_hooks.record.controlled_events import Received as Received
from rlstep_hooks.record.controlled_events import Rewarded as Rewarded
from rlstep_hooks.record.controlled_events import TurnsJoined as TurnsJoined
from rlstep_hooks.record.event_base import FORMAT_VERSION as FORMAT_VERSION
from rlstep_hooks.record.event_base import Event as Event
from rlstep_hooks.record.event_base import Purpose as Purpose
from rlstep_hooks.record.gradient_events import GradientParts as GradientParts
from rlstep_hooks.record.gradient_events import TensorParts as TensorParts
from rlstep_hooks.record.numbers import MicroBatchValues as MicroBatchValues
from rlstep_hooks.record.numbers import RolloutValues as RolloutValues
from rlstep_hooks.record.numbers import UpdateValues as UpdateValues
from rlstep_hooks.record.replica_events import Moment as Moment
from rlstep_hooks.record.replica_events import Replica as Replica
from rlstep_hooks.record.replica_events import ReplicaSums as ReplicaSums
from rlstep_hooks.record.values import TOPICS as TOPICS
from rlstep_hooks.record.values import CarriedPart as CarriedPart
from rlstep_hooks.record.values import Probe as Probe
from rlstep_hooks.record.values import Queued as Queued
from rlstep_hooks.record.values import Role as Role
from rlstep_hooks.record.values import SampleRows as SampleRows
from rlstep_hooks.record.weight_events import UNSENT as UNSENT
from rlstep_hooks.record.weight_events import AdapterUsed as AdapterUsed
from rlstep_hooks.record.weight_events import KeysReused as KeysReused
from rlstep_hooks.record.weight_events import WeightsHeld as WeightsHeld
from rlstep_hooks.record.weight_events import WeightsSent as WeightsSent
from rlstep_hooks.record.weight_events import WeightSync as WeightSync


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
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    """What the observer read from the live trainer: precision, dropout, framework counters."""
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    """Installed releases of the packages involved."""


NEVER_SEEN = "never_seen"
"""Name of the fact that has the topics which nothing of a run shows, with the reason: what an export leaves out."""


ENTROPY_SHARE = "entropy_share"
"""Name of the fact that has the share of all processes' tokens that are trained, where these are those with the highest entropies."""


SAME_ON_RANKS = "same_on_ranks"
"""Name of the fact that has what must be the same on all data-parallel processes, by its name: settings, seeds, and the rows."""
ROWS_OF_DATA_SET = "rows of the data set"
"""The name in it of a checksum of the rows."""


SAVED: dict[Role, str] = {"policy": "saved_checkpoints", "critic": "saved_checkpoints_of_the_critic"}
"""Names of the facts that have how many parts of a role's checkpoints were compared with what it held when they had been made, and
those that were others: the updates before it, None where nobody counted them there, and which part."""


LOADED: dict[Role, str] = {"policy": "policy_loaded", "critic": "critic_loaded"}
"""Names of the facts that say whether a role's model had the weights of its files when the framework had loaded it: "as saved",
"others" or "unknown"."""


def never_seen(started: RunStarted) -> dict[str, str]:
    """The topics that nothing of a run shows -> the reason."""
    topics = started.facts.get(NEVER_SEEN)
    return {str(what): str(why) for what, why in topics.items()} if isinstance(topics, dict) else {}


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
    """Whether reference log-probs were computed for the rollout; None if the run ended before that was known."""
    groups_intact: bool | None = None
    """Whether each prompt's samples are complete and stand together; None if groups span processes."""
    repeated: int | None = None
    """How many rows of the rollout came more often than the passes of the loader allow; None if rows are unknown."""
    foreign: int | None = None
    """How many rows of the rollout are of the validation set; None if rows are unknown."""
    rewards_intact: bool | None = None
    """Whether each sample still has the reward it got when it was generated; None if not observed."""
    repeats: int | None = None
    """Index of an earlier rollout with exactly the same samples, which sampling cannot repeat; None if there is none."""
    repeats_random: int | None = None
    """Index of an earlier rollout that began with the same state of the random generator; negative if there is none, None if that was
    not looked at."""
    random_state: int | None = None
    """Checksum of the state of this process's random generator before the first token was drawn, where several processes draw; None if
    that was not looked at."""
    copied: tuple[int, float] | None = None
    """Completions that stand in it before, and -log-prob of the least probable of them in nats; None if that was not looked at."""
    signal: bool | None = None
    """Whether rewards differ within the groups that advantages compare; None if not observed."""
    reference_intact: bool | None = None
    """Whether the reference model still has its first weights; None if not observed."""
    reference_gap: float | None = None
    """How far the reference is from the first policy, as in `RolloutValues`, where a controller compares it; so are the next three."""
    reference_clean_gap: float | None = None
    reference_clean_max: float | None = None
    reference_clean_like: str = ""
    reward_model_intact: bool | None = None
    """Whether a reward model still has its first weights; None if not observed."""
    reward_clean_gap: float | None = None
    """Distance of a reward that a model gave from what it gives the row alone, over the size of that; 0 where rounding explains it."""
    reward_clean_like: str = ""
    """What the reward is instead, in words; empty where that is not known."""
    filtered: tuple[int, int, int] | None = None
    """Where groups are filtered by their scores: those that were compared with the configured bounds, those of them that are trained
    although they are outside, and those that are not although they are within. None where none are filtered, or it was not observed."""
    sampling: tuple[dict[str, float], ...] = ()
    """Sampling settings of the engine, each combination once; empty if not observed."""
    due: int | None = None
    """How many samples the rollout should have, if the data decide that; None if the plan does."""
    all_drawn: bool | None = None
    """Whether its counted tokens are all that were drawn for it, each from the whole distribution of the weights that sampled it; None
    if that is not known."""
    queue: Queued | None = None
    """What became of the rollout's prompts in the queue; None if there is none, or it was not observed."""
    own_samples: int | None = None
    """Samples that this process tracks by identity when one controller generates for all; None if that is `samples`."""
    contradictions: dict[str, int] | None = None
    """What its samples contradict each other or themselves in, where an export says it -> how many of them; None if no export was
    read."""
    digest: int = 0
    """Running checksum of this process's events, equal on all ranks of a healthy run; 0 if there is one rank."""


class Refresh(Event, frozen=True, kw_only=True, gc=False, tag="refresh"):
    """One computation of old log-probs."""

    rollout: int
    """Index of the rollout whose samples got old log-probs."""
    samples: int
    positions: int
    """Token positions covered, padding included."""
    policy_version: int | None
    """The policy version that computed the old log-probs; None if no forward of the policy was seen to produce them."""
    in_loss: bool = False
    """Whether the old log-probs were computed inside a training loss."""


OldSource = Literal["at_rollout", "recompute", "engine", "detach", "none", "unknown"]
"""Where the old log-probs of a loss come from."""

Constant = Literal["old_logprobs", "advantages", "targets"]
"""What a loss treats as constant: the old log-probs, the advantages, and the targets of the critic's values."""

Taught = Literal["entropies"]
"""What a loss teaches beside log-probs: the entropies of the distributions, by a bonus."""


class MicroBatch(Event, frozen=True, kw_only=True, gc=False, tag="microbatch"):
    """One forward and backward of training."""

    index: int
    """Counts micro-batches of this process from 0."""
    samples: int
    role: Role = "policy"
    trained: tuple[SampleRows, ...] | None = None
    """The samples that the micro-batch trains; None if they cannot be identified."""
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
    detached: tuple[Taught, ...] = ()
    """What the loss is configured to teach, and no gradient flows into."""


class Update(Event, frozen=True, kw_only=True, gc=False, tag="update"):
    """One optimizer step, made or skipped."""

    index: int
    """Counts windows of this process from 0, including skipped ones."""
    role: Role = "policy"
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
    group_rates: tuple[float, ...] | None = None
    """The rates of all groups of the optimizer, where they differ; `learning_rate` is the largest."""
    due_group_rates: tuple[float, ...] | None = None
    """The rates that the configured schedule gives for them, where they differ; `due_rate` is the largest."""
    skip_reason: str = ""
    written: int | None = None
    """Probed tensors that torch saw written to in place since the update before, whatever their values are now; None if that was not
    observed."""


class EpochEnd(Event, frozen=True, kw_only=True, gc=False, tag="epoch_end"):
    """The end of one pass of the loader."""

    epoch: int
    """Passes completed, including this one."""
    stopping: bool = False
    """Whether training was asked to stop before its planned end."""
    run_over: bool = False
    """Whether the pass ended because the framework counts its run as done, not because its rows were used up."""


class PassesEnded(Event, frozen=True, kw_only=True, gc=False, tag="passes_ended"):
    """The passes over a rollout ended before the planned last one, where a limit of the divergence may end them."""

    divergence: float | None
    """The framework's estimate on the mini-batch that was left untrained; None if each mini-batch that was looked at was trained."""


class Evaluated(Event, frozen=True, kw_only=True, gc=False, tag="evaluated"):
    """One evaluation, recorded apart from training."""

    batches: int
    rollouts: int


RATE_SCHEDULE = "the learning-rate schedule"
"""Name of the setting that is a whole schedule, as the fact `lr_schedule` has it; None where its form is not known."""


EVALUATION_MODE = "training mode of the model in an evaluation"
"""Name of the setting that is the mode of the model while it evaluates."""
DROPPING = "modules that drop something while the policy trains"
"""Name of the setting that is how many of the policy's modules with a dropout probability are in training mode when it trains."""
FORWARD_AUTOCAST = "autocast in the policy's forward"
"""Name of the setting that is the dtype of autocast while the policy computes the log-probs of its loss."""
TIED = "output embeddings that are the input embeddings"
"""Name of the setting that is whether the policy has one tensor for both, as `tie_word_embeddings` of its configuration asks."""
ROW_ORDER = "order of the training rows"
"""Name of the setting that is the order in which a loader gives its rows."""
PLANNED_EVALUATIONS = "evaluations by eval_steps"
"""Name of the setting that is when evaluations are due."""
ENDS_OF_PASSES = "end of a pass of the loader"
"""Name of the setting that is when a pass of the loader ends."""
MINIBATCH_ORDER = "order of the samples in mini-batches"
"""Name of the setting that is which samples of a rollout each of its mini-batches has."""
DUE_EVALUATIONS = "evaluations that are due"
"""Name of the setting that is after how many rollouts an evaluation comes."""
EVALUATED_ROWS = "rows of an evaluation"
"""Name of the setting that is how many rows of its set an evaluation generates for."""
DUE_CHECKPOINTS = "checkpoints that are due"
"""Name of the setting that is after how many rollouts a checkpoint is written."""


class ConfigChanged(Event, frozen=True, kw_only=True, gc=False, tag="config_changed"):
    """A setting that the plan or the arithmetic depends on has changed."""

    name: str
    before: Any
    after: Any
    since: Literal["construction", "train_begin", "configuration"]
    """The moment since which the setting has changed. "configuration": the framework computes with another value than the
    configuration has."""
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
    """What could not be observed, one of `TOPICS`."""
    why: str


class RunEnded(Event, frozen=True, kw_only=True, gc=False, tag="run_ended"):
    """Training returned or raised."""

    status: Literal["completed", "raised", "exported"]
    """"exported": what was read is an export, which does not say how training ended."""
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
    written: int = 0
    """Checksum of the lines before this one in the record; 0 if they were not written to a file."""
    counts: dict[str, int] = msgspec.field(default_factory=dict)


class Judged(Event, frozen=True, kw_only=True, gc=False, tag="judged"):
    """The process's own judgement, so that one process can report for all. The last line of every complete file."""

    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    not_compared: dict[str, tuple[int | None, str]] = msgspec.field(default_factory=dict)
    """Comparisons that could not be made, by the code of their rule: how many, None where the rule made none at all, and why."""


AnyEvent = (
    RunStarted
    | Attached
    | FactsRead
    | Phase
    | PhaseEnded
    | Generated
    | QueueStep
    | Rewarded
    | TurnsJoined
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
    | KeysReused
    | GradientParts
    | ReplicaSums
    | EpochEnd
    | PassesEnded
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
"""How the error of a run begins that somebody ended: the name of the exception that Ctrl-C raises."""

NOT_FINITE = "gradient not finite"
"""Why the framework skipped an update."""


def name_of(event: Any) -> str:
    """The event's kind in words, with its role if that is not the policy."""
    of = " of the critic" if getattr(event, "role", "policy") == "critic" else ""
    return _NAMES[event.__struct_config__.tag] + of
