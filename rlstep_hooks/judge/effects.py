"""What the cause of a finding brings with it: rules declare it as data, and `rlstep_hooks.judge.causes` folds findings by it."""

from __future__ import annotations

import msgspec

ORDER = ("RLS201", "RLS202", "RLS203", "RLS204", "RLS207", "RLS208", "RLS211")
"""Events that come at another time, or of another size, than planned."""

LENGTHS = ("RLS205", "RLS206", "RLS209")
"""Data epochs and training that end elsewhere, because what was counted before differs."""

RATE = ("RLS601", "RLS602", "RLS603", "RLS604", "RLS605")
"""The learning rate, whose schedule counts updates."""

LAG = ("RLS303", "RLS304", "RLS307")
"""Old log-probs that are computed at another time, and used another number of updates later."""

SAMPLES = ("RLS502", "RLS507", "RLS512")
"""Samples that are trained another number of times."""

OTHER_FORWARD = ("RLS301", "RLS313", "RLS314")
"""A loss whose log-probs are not those of the sampling, or of the same row alone."""

STANDING_STILL = ("RLS302", "RLS310", "RLS401", "RLS406")
"""Weights that do not move, and so the ratio."""

LOSS = ("RLS801", "RLS805")
"""The loss and its factor, which the size of a window and what goes into it decide."""


class Effects(msgspec.Struct, frozen=True):
    """Findings that a cause can bring about, and how far away from it."""

    codes: tuple[str, ...]
    """Codes of the rules that find these effects; a variant stands behind a space where only its findings are meant."""
    first: int | None = 0
    """The earliest rollout, counted from each rollout of the cause; None if the cause was there from the beginning of the run."""
    last: int | None = 0
    """The latest rollout of an effect, counted from each rollout of the cause too; None if the cause works on to the end of the
    run."""
    within: bool = False
    """Whether the cause lies before everything that is done with its rollout, wherever in it the cause is seen."""


def lasting(*codes: str) -> Effects:
    """Effects at the cause and at any time after it."""
    return Effects(codes, last=None)


def here(*codes: str) -> Effects:
    """Effects in the rollouts of the cause, at it and after it."""
    return Effects(codes)


def of_rollout(*codes: str) -> Effects:
    """Effects of a rollout that was wrong before anything was trained on it."""
    return Effects(codes, within=True)


DISAGREEMENT = "RLS902"
"""The rule that compares processes with each other."""

MADE_DIFFERENTLY = (*ORDER, *LAG, "RLS205", "RLS206", "RLS210")
"""The rules that compare the same things, in each process, with the plan: where one of them finds something, processes disagree."""

UPDATES_SHIFTED = (Effects(("RLS602", "RLS605"), last=1), lasting(*LENGTHS, "RLS601", "RLS603"))
"""What follows from more or fewer updates than planned: the next tick of the rate, and where epochs, rate and training end."""
