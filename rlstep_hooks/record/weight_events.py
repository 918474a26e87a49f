"""Events of weights on their way to a rollout engine, and of what the engine holds and uses."""

from __future__ import annotations

from rlstep_hooks.record.event_base import Event
from rlstep_hooks.record.values import Probe

UNSENT = -2
"""Version of weights in an engine that no sync of the run had."""


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
    """Probes of the policy itself, where it could be read; else of what was handed over. Of a tensor that ranks share, those elements
    are the policy's that this process holds."""
    sent_as: tuple[Probe, ...] = ()
    """Probes of the tensors that were handed over with other values than the policy has."""
    by_another: bool = False
    """Whether this process took part in gathering the tensors, and another one handed them over."""


class WeightsHeld(Event, frozen=True, kw_only=True, gc=False, tag="weights_held"):
    """What an engine holds after one sync of weights, or when it generates after it was woken up."""

    number: int
    """Counts syncs of this run from 0."""
    engine: str
    """The engine, as a finding names it."""
    arrived: int
    """Tensors that arrived."""
    before: tuple[Probe, ...]
    """Probes of the engine's own tensors before the sync."""
    after: tuple[Probe, ...]
    woken: bool = False
    """Whether nothing was synced, and the engine was woken up."""


class AdapterUsed(Event, frozen=True, kw_only=True, gc=False, tag="adapter_used"):
    """Requests of an engine to which an adapter was delivered."""

    engine: str
    requests: int
    bound: int
    """How many of these requests ran with an adapter."""
    parts: int | None = None
    """Layers that the latest adapter changes; None if that was not looked at."""
    matched: int = 0
    """How many layers of the engine found their part in the adapter."""
    empty: int = 0
    """How many of these layers hold zeros in the place of their part."""


class KeysReused(Event, frozen=True, kw_only=True, gc=False, tag="keys_reused"):
    """Requests that entered an engine after a sync of weights, and the keys and values that they took from its prefix cache."""

    number: int
    """The latest sync; counts syncs of this run from 0."""
    engine: str
    """The engine, as a finding names it."""
    requests: int
    """Requests since that sync."""
    reusing: int
    """How many of these requests took keys from the cache."""
    stale: int
    """How many of these requests took keys that weights of before the sync computed."""
    tokens: int
    """Tokens whose keys are so old, over these requests."""
    oldest: int
    """The sync whose weights computed the oldest of these keys; -1 for the weights that the engine began with."""
