"""How often the numbers of a run are recomputed, and of how much. What decides it and what says it is made of these numbers."""

from __future__ import annotations

from typing import Literal

ALL_OF_FIRST = 8
"""Cycles at the beginning, each of which is recomputed."""
ONE_OF = 41
"""Later, one cycle of this many. The number is a prime, so that it seldom divides a data epoch."""
WHOLE_ONE_OF = 2 * ONE_OF
"""Later, one cycle of this many where all gradients are read, which takes a hundredth of an update, however large the model is."""
SLOPES_AT = 1, 9
"""Cycles at the beginning in which the slope of a model's layers is measured: none of those whose hooks are timed."""
SLOPE_ONE_OF = 4 * WHOLE_ONE_OF
"""Later, one cycle of this many where it is measured, which takes a backward pass of one row and a forward of some more."""
READ_WHOLE = 8_000_000
"""Numbers of a model up to which all of it is read at each look that reads a whole model. Of a larger one all is read in the first
cycle and in later ones; in those between, which follow one on another, each look reads one part of each tensor."""
PARTS = 7
"""Parts that each tensor is divided into; the next update reads the next part. The number is a prime, so that updates seldom come
back to the same part."""
PROBED_OF_FIRST = 16
"""Cycles at the beginning whose updates are all probed. Later the updates of two neighbouring cycles are: of a cycle that is
compared, and of the cycle before it, whose last update leaves the weights that the compared one begins with."""
CARRIED_ONE_OF = 5
"""After the first `PROBED_OF_FIRST` cycles what a rollout holds is followed to its losses in one cycle of this many, and in
probed cycles."""
PROBED_TENSORS = 4
"""Tensors of a model that a probe reads around its updates."""
PROBED_PER_TENSOR = 256
"""The most weights that a probe reads of one tensor."""

WHOLE_SYNCS = 2
"""How many syncs of weights at the start of a run read all tensors: a fault that is there from the start is found at once."""
FEWEST_TURNS, MOST_TURNS = 8, 32
"""Later a tensor's turn comes once in this many syncs: the first for models with few tensors, the second for those with many."""
ADAPTER_REQUESTS = (16, 64, 256, 1024)
"""Numbers of requests since an adapter was delivered, after which an engine tells how many of all of them ran with one."""

Cadence = Literal["", "compared", "whole", "sloped", "probed", "carried"]
"""The cycles of rollouts in which something is compared: "" for all of them, else those for which the function of this name in
`rlstep_hooks.observe.compared` says so."""

WORDS: dict[Cadence, str] = {
    "": "",
    "compared": f"in the first {ALL_OF_FIRST} cycles of rollouts, and later in at least one of {ONE_OF}",
    "whole": f"in the first {ALL_OF_FIRST} cycles of rollouts, and later in at least one of {WHOLE_ONE_OF}",
    "sloped": f"in cycles {SLOPES_AT[0]} and {SLOPES_AT[1]} of rollouts, counted from 0, and later in at least one of {SLOPE_ONE_OF}",
    "probed": f"in the first {PROBED_OF_FIRST} cycles of rollouts, and later in at least one of {ONE_OF} and in the one before it",
    "carried": f"with one update on each rollout in the first {PROBED_OF_FIRST} cycles, and later in one of {CARRIED_ONE_OF} and those "
    "that are probed; with more updates in all",
}
"""What is said of each. A run of one process may have time for more (`rlstep_hooks.observe.spending`)."""
