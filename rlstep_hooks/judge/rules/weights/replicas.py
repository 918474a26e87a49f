"""What all ranks of a run should hold alike. `rlstep_hooks.judge.ranks.replicas` joins the records of all ranks for it."""

from __future__ import annotations

from rlstep_hooks.judge.rules.base import Rule


class ReplicasDiffer(Rule):
    """Ranks that should hold the same tensors hold different ones.

    What it checks:
        Where each rank holds a model whole, the ranks' trained weights (adapters included) are bit for bit the same when training
        begins, and right before and right after the optimizer steps; their frozen weights, buffers and references when training
        begins. Each rank records a sum of the bits of each tensor. A rank whose sums change between two steps is the one that
        drifted. Of buffers that differ later it warns, if some rank still has those that it began with.

    Why it matters:
        Gradients are averaged over the ranks, and each rank applies the mean to its own weights. Where these differ, they stay
        different: the mean is the gradient of no model at all, nothing raises an error, and what is saved is what rank 0 holds.

    Example:
        ERROR RLS419 Ranks hold different weights · rank 1, update 3
          expected  the same weights on all 2 ranks, bit for bit
          observed  rank 1 holds others in 1 of 3 tensors: layers.1
          why       since the last step something wrote to the weights of rank 1
                    alone
          fix       look at callbacks and hooks that write to the model on one rank,
                    as those that only rank 0 runs

    What to do:
        Look at what writes to the model of that rank: weights that are loaded, synced, averaged or initialised on one rank alone, a
        step that one rank leaves out, settings or optimizer state that differ.

    Known limits:
        - It needs the records of all processes, and is judged when the run ends.
        - Sharded parameters have no replica: what FSDP cuts is compared before it is cut, and not later.
        - Ranks on devices of different kinds are compared only when training begins.
        - Where two ranks part in a step, none of them is known to be the right one; that which differs from rank 0 is named.

    Sources:
        - https://docs.pytorch.org/docs/stable/notes/ddp.html: all ranks begin with the weights of rank 0 and take the same steps
    """

    code = "RLS419"
    title = "Ranks hold different weights"
    topics = ("ranks", "replicas")
    nothing_seen = "no rank recorded what it holds, or nothing is held by several ranks"
    optional = True
