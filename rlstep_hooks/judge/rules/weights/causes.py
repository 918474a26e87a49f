"""What explains that an engine's log-probs are far from the trainer's, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from rlstep_hooks.judge.delivery import Delivery

REMEMBERED = 64
"""Policy versions of which it is known whether the engine has held them."""

EXPLAINED = ("truncation", "rounding")
"""Causes of a distance that leave it a warning however large it is: a truncation may be configured."""


class Cause(msgspec.Struct, frozen=True):
    """Why an engine's log-probs are far from the trainer's."""

    why: str
    fix: str
    shows: str = ""
    """What was computed to find it."""
    variant: str = ""


def cause_of(fit: str) -> Cause:
    """The cause that `rlstep_hooks.observe.engine_distance` names."""
    kind = fit.partition(" ")[0]
    if kind == "temperature":
        return Cause(
            why="engine and trainer divide their logits by different temperatures, so the ratio between them is no correction",
            fix="give both the same temperature, and ask the engine for processed log-probs: raw ones are those of temperature 1",
            shows=f"the engine's log-probs are those at {fit}",
            variant="temperature",
        )
    if kind in ("top_k", "top_p", "min_p"):
        return Cause(
            why=f"the engine's log-probs are those of the tokens that {fit} leaves, the trainer's of all",
            fix="sample from all tokens, or correct with log-probs of the same distribution",
            shows=f"the engine's log-probs are those of {fit}",
            variant="truncation",
        )
    if kind in ("logits", "log-probs"):
        return Cause(
            why="the engine rounds where the trainer does not; a ratio over many tokens adds the errors up",
            fix="have the engine compute its last layer and its log-probs in float32",
            shows=f"the engine has its {fit}",
            variant="rounding",
        )
    return Cause(
        why="the engine's log-probs belong to other tokens than those that they are used for",
        fix="look at where the prompt is cut off, at padding, and at the order in which the engine's answers are put together",
        shows=f"the engine's log-probs are {fit}",
        variant="place",
    )


class EngineWeights:
    """Whether engines held the weights of the policy, version by version, as far as their tensors were compared."""

    def __init__(self) -> None:
        self._shown: dict[int, str] = {}
        """Policy version -> what was seen in the engines instead; empty if it was in them."""

    def see(self, delivery: Delivery) -> None:
        """A sync was compared."""
        if not delivery.compared:
            return
        version, wrong = delivery.sent.policy_version, len(delivery.wrong)
        shown = ""
        if wrong:
            old = delivery.kept == wrong or delivery.held.woken
            shown = f"the engine holds {'older' if old else 'other'} weights: {wrong} of {delivery.compared} tensors looked at"
        # Several engines hold them, or one that was woken up later: what was wrong in one of them counts.
        self._shown[version] = shown or self._shown.get(version, "")
        if len(self._shown) > REMEMBERED:
            del self._shown[next(iter(self._shown))]

    def rest(self, version: int) -> Cause:
        """The cause of a distance at a policy version that no computation explains."""
        shown = self._shown.get(version)
        if shown:
            return Cause(
                why="the engine samples from other weights than the trainer scores with",
                fix="mend the sync of weights (RLS415), then look whether a distance is left",
                shows=shown,
                variant="weights",
            )
        if shown is not None:
            return Cause(
                why="at the same policy version engine and trainer should give nearly the same log-probs; the weights that were"
                " compared are equal",
                fix="what is left: kernels and their precision, an adapter, a cache of an earlier version, another chat template",
            )
        return Cause(
            why="at the same policy version engine and trainer should give nearly the same log-probs",
            fix="compare weights first, then temperature, top-p and the engine's log-prob mode",
        )
