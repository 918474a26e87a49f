"""What every format is read as: samples one after another, and what the export says of its run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.ingest.advantages import GroupEstimator
    from rlstep_hooks.planning.schedule import Schedule

SCHEMA_VERSION = 1
"""Version of the interchange schema, the value of `rlstep_export` in a header."""


class ExportError(ValueError):
    """Files that cannot be read as an export. Its text names the file, the line, the field, and what was expected."""


class Sample(msgspec.Struct, kw_only=True, gc=False):
    """One completion of one prompt: a line, or a row, of the interchange schema. Other fields are passed over."""

    rollout: int
    """The number of the rollout that the sample is of. Samples of a rollout stand together, and numbers rise: by 1, or by n where
    every n-th is written."""
    group: int | str | None = None
    """Name of its prompt in the rollout: the samples whose rewards are compared with each other."""
    sample: int | str | None = None
    """The name of the sample, which no other sample of the rollout has."""
    prompt: str | None = None
    completion: str | None = None
    prompt_ids: list[int] | None = None
    completion_ids: list[int] | None = None
    """Token ids, in the order in which the five lists below have their numbers."""
    mask: list[bool | int] | None = None
    """A number for each token, 0 where the loss does not count it; without this list the loss counts all tokens."""
    engine_log_probs: list[float | None] | None = None
    """Log-probs, in nats, that the engine gave when it drew the tokens."""
    trainer_log_probs: list[float | None] | None = None
    """Log-probs of the same tokens that the trainer computed: the old log-probs."""
    log_ratios: list[float | None] | None = None
    """Trainer's log-prob minus engine's, as the trainer used it."""
    reward: float | None = None
    """The reward that its advantage was computed from."""
    advantage: float | list[float | None] | None = None
    """The advantage of the sample, or one for each token."""
    sampler_version: int | None = None
    """Updates that the weights had had which drew it (the oldest, where several drew it)."""
    policy_version: int | None = None
    """Updates that the policy had had when it began to train on the rollout."""


class Header(msgspec.Struct, kw_only=True):
    """The first line of an interchange file, or the metadata `rlstep_export` of a parquet file: what the trainer meant to do."""

    rlstep_export: int
    """Version of the schema."""
    framework: str = "a trainer"
    version: str = ""
    algorithm: str = ""
    prompts_per_rollout: int | None = None
    samples_per_prompt: int | None = None
    rollouts: int | None = None
    """Rollouts of the whole run."""
    estimator: str | None = None
    """The name of the estimator that made the advantages, one of `advantages.NAMED`."""
    epsilon: float | None = None
    """What the estimator adds to a standard deviation; None if that is not known."""
    max_age: int | None = None
    """Rollouts by which the weights that draw a rollout may be older than those that train on it; 0 for synchronous training."""
    end_token_ids: list[int] = []
    """Tokens that end a completion. Given only where each completion is one answer, masked through its end."""


NO_LAUNCH = "nothing says how large a rollout is to be: give the launch command after `--`, or the sizes in a header"
"""Why the counts of an export are not compared."""


@dataclass(frozen=True)
class Export:
    """An export, opened."""

    title: str
    """The format in words, such as "TRL's log_completions (parquet)"."""
    framework: str
    samples: Iterable[Sample]
    """All samples, rollout by rollout; they are read while this is iterated over, once."""
    version: str = ""
    estimators: tuple[GroupEstimator, ...] = ()
    """Estimators that the run may have; one of them has to give all of its advantages. Empty where nothing is known of them."""
    unproved: str = ""
    """Where the comparison with the estimators proves less than that with one, in words that follow "never proved in"."""
    header: Header | None = None
    absent: dict[str, str] = field(default_factory=dict)
    """Topics (`rlstep_hooks.record.values.TOPICS`) that the format leaves out -> why."""
    not_compared: dict[str, str] = field(default_factory=dict)
    """Rules that the format leaves without anything to compare -> why."""
    whole_groups: bool = True
    """Whether each group that is written is whole, so that its size can be compared."""
    numbers: Literal["each", "even", "none"] = "even"
    """Which rollouts are written: each, under consecutive numbers; every n-th; or whichever."""


@dataclass(frozen=True)
class Asked:
    """What the user says of an export."""

    schedule: Schedule | None = None
    """The plan of the launch command; None without one."""
    estimator: str | None = None
    """Name of the estimator (`advantages.NAMED`); None if the user named none."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Columns that are rewards -> their weight; empty where the user named none."""
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of the launch command that its plan does not depend on; empty without one."""
