"""Events that only a run with a controller has: one process, the controller, calls the trainers, and each writes a record."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rlstep_hooks.planning.token_row import TokenRow
from rlstep_hooks.record.event_base import FORMAT_VERSION, Event, Purpose
from rlstep_hooks.record.values import CarriedPart, Queued, Role


class Attached(Event, frozen=True, kw_only=True, gc=False, tag="attached"):
    """A process attached its audit in a run that another process controls. The first line of its file."""

    format: int = FORMAT_VERSION
    run: str
    process: str
    """The name of the process in the run, such as "rank0" (a trainer) or "engine1"; its file has the same name."""
    world_size: int = 1
    """Number of trainers in the run, if this process is one of them."""
    host: str = ""
    pid: int = 0
    started: float = 0.0
    """Unix time."""
    versions: dict[str, str] = msgspec.field(default_factory=dict)
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
    """How many prompts the controller submitted for the rollout."""
    added: int = 0
    """Padding samples."""
    due: int | None = None
    """Samples expected from what the data asked for and the framework recorded; None if the plan decides it."""
    repeated: int | None = None
    """How many rows were submitted for the rollout more often than the passes of the loader allow; None if rows are unknown."""
    foreign: int | None = None
    """Rows of the validation set submitted for it; None if rows are unknown."""
    labels: tuple[tuple[int, int], ...] = ()
    """Weight label of the engine -> number of samples with it. The framework gives the engine a new label at each sync."""
    parts: tuple[int, ...] = ()
    """Samples of each part in which the rollout was trained, padding included; empty if it was trained at once."""
    queue: Queued | None = None
    """What became of the rollout's prompts in a queue, as in `Rollout`."""
    sampling: tuple[dict[str, float], ...] = ()
    """Sampling settings of the engines, each combination once; empty if not observed."""
    all_drawn: bool | None = None
    """Whether the counted tokens are all that were drawn for the rollout, as in `Rollout`; None if that is not known."""
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
    """How far advantages are from the documented ones, as in `RolloutValues`, where the controller holds rewards and advantages."""
    advantages_fit: str = ""
    altered: int | None = None
    """Samples whose advantages were others once they were trained than when they were computed; None if that was not compared."""
    rewards_moved: int | None = None
    """Samples whose advantages were computed from other rewards than they have; None if that was not compared."""
    scores_compared: int | None = None
    """Samples whose rewards were compared with what the processes that score them gave; None where that was not looked for."""
    scores_unseen: int = 0
    """Samples of which no such process told its score."""
    scores_moved: int = 0
    """Samples that have another reward than they were given, or have it at another token than the last."""
    asked_wrong: int = 0
    """Samples whose reward function was asked about something else than their text and the ground truth of their row, or whose score
    is not its answer."""
    asked_like: str = ""
    """What is wrong with the first of those, in words."""
    targets_altered: int | None = None
    """Samples whose returns, or values behind advantages, were others once they were trained; None without a critic."""
    samples: int = 0
    """Samples whose masks were compared."""
    masks_wrong: int | None = None
    """Samples whose mask does not count the tokens that the documentation counts; None if masks were not compared."""
    masks_like: str = ""
    """What is wrong with them, where a rejection of the configuration takes tokens out of masks."""
    weights_off: float | None = None
    """Largest distance of an importance weight from the documented one, in units of what rounding explains; None if that was not
    compared."""
    weights_like: str = ""
    """What the weights are instead, if something known gives them."""
    weights_cut: float | None = None
    """Fraction of tokens whose documented weight is outside of its bounds."""
    reward_mean: float | None = None
    """Mean reward of the rollout's samples; None where rewards were not seen. The next two are as in `RolloutValues`."""
    reward_deviation: float | None = None
    equal_groups: int | None = None


class TurnsJoined(Event, frozen=True, kw_only=True, gc=False, tag="turns_joined"):
    """What agent loops sampled for one rollout was compared, turn by turn, with the rows that they gave."""

    rollout: int
    """Index of the rollout."""
    rows: int
    """Rows that were compared."""
    turns: int = 0
    """Sampled turns of the compared rows."""
    sampled: int = 0
    """Tokens of the compared completions that were sampled."""
    written: int = 0
    """Tokens of the compared completions that a tool or the chat template wrote."""
    tokens_moved: int = 0
    """Rows with other tokens than their turns, or with turns that were asked for behind other tokens."""
    tokens_like: str = ""
    """What is wrong with the tokens of the first such row, in words."""
    tokens_at: str = ""
    """The place of that difference, with the texts."""
    masks_wrong: int = 0
    """Rows that train other tokens than the sampled ones."""
    masks_like: str = ""
    """What is wrong with the mask of the first such row, in words."""
    masks_at: str = ""
    """The place of that difference, with the text."""
    log_probs_compared: int = 0
    """Rows of which log-probs of the sampling were compared."""
    log_probs_moved: int = 0
    """Rows whose log-probs of the sampling stand at other tokens."""
    log_probs_like: str = ""
    """What is wrong with the log-probs of the first such row, in words."""
    rewards_compared: int = 0
    """Rows whose rewards were compared with what was given for them, and for what."""
    rewards_moved: int = 0
    """Rows with other rewards, or whose rewards were given for something else."""
    rewards_like: str = ""
    """What is wrong with the reward of the first such row, in words."""
    rewards_unseen: int = 0
    """Rows with rewards of which nobody saw what they were given for."""
    prompts_encoded: int = 0
    """Rows whose prompt was encoded again from the row of the data set."""
    prompts_wrong: int = 0
    """Rows that begin with other tokens than their prompt was encoded to."""
    wrong_row: TokenRow | None = None
    """The first row that is wrong, token by token."""
    left_out: int = 0
    """Sessions whose rows were not compared."""
    left_out_why: str = ""
    """Why the first of them was not."""


class Inspected(Event, frozen=True, kw_only=True, gc=False, tag="inspected"):
    """What a controller observed of the latest rollout once its advantages were computed; fields as in `Rollout`."""

    groups_intact: bool | None = None
    rewards_intact: bool | None = None
    repeats: int | None = None
    copied: tuple[int, float] | None = None
    signal: bool | None = None
    reference_intact: bool | None = None
    reference_gap: float | None = None
    reference_clean_gap: float | None = None
    reference_clean_max: float | None = None
    reference_clean_like: str = ""
    reward_model_intact: bool | None = None
    reward_clean_gap: float | None = None
    reward_clean_like: str = ""
    filtered: tuple[int, int, int] | None = None


class Carried(Event, frozen=True, kw_only=True, gc=False, tag="carried"):
    """Samples of a rollout were carried from one place of a controlled run to the next.

    Where one process sees both places, it says what was altered. Else the controller writes what it handed over and a trainer what
    came, and a judge compares them.
    """

    way: str
    """The two places, in words that follow "on the way"."""
    rollout: int = -1
    """Index of the rollout; a trainer does not know it."""
    role: Role = "policy"
    """The role whose trainer the samples came to."""
    compared: int = 0
    """Samples that were compared."""
    names: tuple[str, ...] = ()
    """The parts of the samples that were compared (`CARRIED`)."""
    altered: dict[str, int] = msgspec.field(default_factory=dict)
    """Name of what was compared -> samples in which it was altered."""
    parts: tuple[CarriedPart, ...] = ()
    """What was handed over, or came, part by part."""


class Received(Event, frozen=True, kw_only=True, gc=False, tag="received"):
    """Samples of the latest rollout were given to this trainer, whichever trainer computed their old log-probs."""

    samples: int
