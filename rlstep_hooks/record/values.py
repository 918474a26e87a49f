"""What events carry beside numbers: roles, topics, words that findings share, and small parts such as probes and rows of samples."""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["policy", "critic"]
"""The model whose update, micro-batch or loss is meant."""

TOPICS = (
    "plan",
    "order",
    "updates",
    "versions",
    "samples",
    "mask",
    "log_ratio",
    "refresh",
    "loss",
    "formula",
    "critic_loss",
    "weights",
    "optimizer",
    "gradient",
    "reduction",
    "replicas",
    "trained_tokens",
    "sampler",
    "sampler_weights",
    "drawn",
    "entropies",
    "drawn_log_probs",
    "clean_forward",
    "clean_reference",
    "layer_slope",
    "delivery",
    "prefix_cache",
    "engine_distance",
    "learning_rate",
    "ranks",
    "checkpoints",
    "rewards",
    "timesteps",
    "reference",
    "advantages",
    "rows",
    "queue",
    "correction",
    "recording",
    "settings",
    "release",
)
"""What a process can fail to observe; each rule names the topics it needs."""


SHIFTED_DONES = "those of dones that say whether an episode ended before a timestep, and not with it"
"""What a loop's advantages are where a shift of the `dones` that it hands over explains them."""
MORE_ENDS = "those of episodes that end at more timesteps than dones has"
"""What a loop's advantages are where it takes a few more timesteps for ends than its `dones` do."""
KEPT_AT_ENDS = "those that add something at ends of episodes, and are right everywhere else"
"""What a loop's advantages are where only those of timesteps with an end differ."""


class SampleRows(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Identified samples: their rows in one rollout of this process."""

    rollout: int
    rows: tuple[int, ...]


class Probe(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A few elements of one tensor."""

    name: str
    """The tensor's name in the policy."""
    dtype: str
    """The dtype of the tensor, as torch names it."""
    bits: tuple[int, ...]
    """The elements as float32, each as the integer of its bits: JSON has no NaN, and equal bits are equal values."""


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
    """How many samples say that they are of weights which no engine had when the samples were finished."""
    waited: tuple[tuple[int, int], ...] = ()
    """Syncs between a prompt's way into the queue and its training -> prompts; empty if that was not observed."""


SLOPE_EXPLAINED = 0.003
"""Distance of the slopes that a backward pass and the layers' outputs tell, over the size of the gradient, which rounding explains
beside the doubt about the latter. In float32 those of healthy layers are 0.0001 to 0.001 apart."""

CARRIED = (
    *("tokens", "labels", "mask", "engine log-probs", "old log-probs", "reference log-probs", "rewards"),
    *("advantages", "targets", "old values"),
)
"""What samples hold, by the names that findings have for it."""


class CarriedPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some samples of a rollout that are carried together."""

    samples: int
    checksums: dict[str, int]
    """A checksum of each thing that the samples hold, by its name (`CARRIED`), over all of the samples in their order."""


Learns = Literal["", "yes", "no", "unknown"]
"""Whether the policy's term of a loss surely has a gradient at some token; empty where the observer does not look at it."""
