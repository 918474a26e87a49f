"""The fault corpus: mistakes out of real reports, each made on a built GRPOTrainer before it trains.

Each module of `mistakes` ends with a table of its faults: how it is made, the rule that must find it, the place of its first event, and
the report that it reproduces (numbers as in the reports' own trackers). Most begin in mid-run, so that a rule which only says
"somewhere" does not pass.

The common settings give six rollouts of eight samples in one data epoch. With two passes (`REUSED`) rollout r is trained by
micro-batches 4r..4r+3 and updates 2r and 2r+1; with one (`ONCE`) by micro-batches 2r, 2r+1 and update r. TRL 0.16 makes two
rollouts of four samples where later releases make one of eight.
"""

from __future__ import annotations

from rlstep_hooks.systems.trl.releases import installed_release
from tests.faults.mistakes import data, gradients, losses, order, rewards, sampling, weights

RELEASE = installed_release()

FAULTS = tuple(fault for part in (order, weights, data, rewards, losses, gradients, sampling) for fault in part.FAULTS)

EXPRESSIBLE = [fault for fault in FAULTS if RELEASE is not None and fault.expressible(RELEASE)]
"""The faults that can be made in the installed release."""
