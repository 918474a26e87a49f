"""What hooks take of a process's time, and how often numbers are recomputed so that they stay within a share of it.

The first cycles of rollouts are all recomputed. How long hooks take there, and how long later, where nothing is recomputed, says how
many of the cycles after those a share of the time pays for: with rollouts that take minutes all of them.

Processes that record one run together must recompute the same cycles, because their records are joined, and they cannot agree on a
number without a message. So a share is spent where one process is the whole run; elsewhere one cycle of `cadence.ONE_OF` is recomputed.
"""

from __future__ import annotations

import math
import statistics
import threading
import time

from rlstep_hooks.observe.options import SHARE, share_asked
from rlstep_hooks.record import cadence

COSTLY = range(2, cadence.ALL_OF_FIRST)
"""Cycles whose recomputation is timed: not the first two, in which much is done once."""
SLOPED = max(cadence.SLOPES_AT)
"""Cycle whose measurement of a slope is timed: a forward and backward passes of one row cost much more than all that is recomputed."""
PLAIN = range(cadence.PROBED_OF_FIRST, cadence.PROBED_OF_FIRST + 8)
"""Cycles that are timed without anything being recomputed in them."""
SHARE_OF_SLOPES = 0.1
"""The part of what is left of the share that measured slopes may take."""


def one_of(more: float, left: float, most: int) -> int:
    """How many cycles go by until one is looked at again in more detail, so that this takes no more than what is left.

    Args:
        more: Seconds by which hooks take longer in such a cycle.
        left: Seconds of each cycle that may be spent on it.
        most: The answer where nothing is left, and the largest one.
    """
    if left <= 0:
        return most
    return min(max(math.ceil(more / left), 1), most)


class Spending:
    """Times the hooks of this process in its first cycles, and then says which later ones are recomputed."""

    def __init__(self) -> None:
        self.measures = False
        """Whether hooks are timed: from the beginning of an audit until enough is known."""
        self.latest = -1
        """The latest cycle that was asked about."""
        try:
            self._share = share_asked()
        except ValueError:
            self._share = SHARE  # said where an audit is attached; another process recomputes as if nothing was asked
        self.all = math.isinf(self._share)
        """Whether everything is recomputed."""
        self.one_of = 1 if self.all else cadence.ONE_OF
        """Later cycles of which one is recomputed."""
        self.whole_one_of = 1 if self.all else cadence.WHOLE_ONE_OF
        """Later cycles of which one has the numbers of the whole model recomputed: fewer, where nobody asked for more."""
        self.slope_one_of = 1 if self.all else cadence.SLOPE_ONE_OF
        """Later cycles of which one has the slope of the model's layers measured."""
        self._seconds = 0.0
        self._depth = 0
        self._entered = 0.0
        self._thread = 0
        self._began: dict[int, tuple[float, float]] = {}

    @property
    def in_parts(self) -> bool:
        """Whether later cycles are recomputed more often than by default, so that a large model is read in parts there too."""
        return self.one_of < cadence.ONE_OF and not self.all

    def begin(self, *, alone: bool) -> None:
        """An audit begins.

        Args:
            alone: Whether this process is the whole run.
        """
        self.__init__()  # type: ignore[misc]  # all that was known is of an earlier run
        self.measures, self._thread = alone and not self.all, threading.get_ident()

    def enter(self) -> None:
        """A hook begins to look."""
        if threading.get_ident() != self._thread:
            return  # what another thread does meanwhile does not make training wait
        if not self._depth:
            self._entered = time.perf_counter()
        self._depth += 1

    def leave(self) -> None:
        """Note that the hook which entered last has looked."""
        if not self._depth or threading.get_ident() != self._thread:
            return
        self._depth -= 1
        if not self._depth:
            self._seconds += time.perf_counter() - self._entered

    def cycle_began(self, cycle: int) -> None:
        """A later cycle than any before begins."""
        self.latest = cycle
        if not self.measures:
            return
        # What the hook that asks has taken so far counts for the cycle that it begins.
        self._began[cycle] = (time.perf_counter(), self._seconds)
        if cycle >= PLAIN.stop:
            self.measures, self._depth = False, 0
            self._decide()
            self._began.clear()

    def _decide(self) -> None:
        known = self._began
        costly = [self._seconds_of(cycle) for cycle in COSTLY if cycle in known and cycle + 1 in known]
        plain = [self._seconds_of(cycle) for cycle in PLAIN if cycle in known and cycle + 1 in known]
        if not costly or not plain:
            return
        # Medians, because an evaluation or a checkpoint makes one of these cycles much longer.
        hooks = statistics.median(spent for spent, _ in plain)
        cycle = statistics.median(lasted - spent for spent, lasted in plain)
        left = self._share * cycle - hooks
        self.one_of = one_of(max(spent for spent, _ in costly) - hooks, left * (1 - SHARE_OF_SLOPES), cadence.ONE_OF)
        self.whole_one_of = cadence.WHOLE_ONE_OF if self.one_of == cadence.ONE_OF else self.one_of
        if SLOPED in known and SLOPED + 1 in known:
            sloped = self._seconds_of(SLOPED)[0] - hooks
            self.slope_one_of = one_of(sloped, left * SHARE_OF_SLOPES, cadence.SLOPE_ONE_OF)

    def _seconds_of(self, cycle: int) -> tuple[float, float]:
        """What hooks took of a cycle, and how long it lasted."""
        (began, before), (ended, after) = self._began[cycle], self._began[cycle + 1]
        return after - before, ended - began


SPENDING = Spending()
"""What this process spends: hooks of all audits take their time from the same run."""
