"""Gradients over several processes: whether they are combined and clipped as documented.

`rlstep_hooks.judge.ranks.reduction` joins the records of all ranks for both rules.
"""

from __future__ import annotations

from rlstep_hooks.judge.rules.base import Rule


class ReducedOtherwise(Rule):
    """The gradient of an update is not the mean of what all ranks computed for it.

    What it checks:
        Each rank records a few elements of up to 32 tensors, the same on all ranks: its own gradient of each backward pass before it
        is reduced, and what it holds after the reduction. Joined, the second must be the mean over the ranks of the sum over the
        micro-batches, to within two roundings and one for each part that is added, in the coarsest dtype on the way, each of the
        size of all that was added. What gradients are instead is told where a known mistake gives all of them: a rank or a
        micro-batch that is missing, each rank's own, the sum, one divided twice, that of the update before, other weights of the
        ranks. And the factor that arrives at the loss is the same on all ranks.

    Why it matters:
        A micro-batch that is dropped, a rank that is not reduced, or a sum in the place of a mean raises no error: the loss goes
        down, and less, or something else, is learned than was paid for.

    Example:
        ERROR RLS811 Gradients not reduced as documented · rank 1, update 0 · 2
        times
          expected  the mean over 2 ranks of the gradients of 3 micro-batches
          observed  the gradient of micro-batch 0 of 3 of rank 1 is missing, in all
                    4 tensors that were followed
          why       the samples of this micro-batch teach nothing
          fix       look at what decides which micro-batch is the last of its
                    update, and at what clears or overwrites gradients before it

    What to do:
        Look at what the finding names: `no_sync` and other switches of synchronisation, communication hooks and divide factors, what
        decides which micro-batch is the last one, and what clears gradients.

    Known limits:
        - Three elements of each of up to 32 tensors an update, by turns where there are more.
        - It needs the records of all processes, and is judged when the run ends: processes of other machines are not compared
          where no folder is shared.
        - Elements whose gradients are 0 on all ranks prove nothing.
        - A gradient that is changed before it arrives at its parameter is the same in what a rank gave and in what came of it.
          RLS805 looks at the gradients that arrive at log-probs.
        - With a communication hook of one's own, only known mistakes are told.

    Sources:
        - https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html: the mean over ranks
        - https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html: how sharded gradients are reduced
        - https://github.com/deepspeedai/DeepSpeed/pull/7967: gradients of micro-batches that were dropped for a year and a half
        - https://github.com/huggingface/accelerate/issues/3877: a run that trains worse on the same data in another deployment
    """

    code = "RLS811"
    title = "Gradients not reduced as documented"
    topics = ("ranks", "reduction")
    nothing_seen = "no rank recorded what it gave to a reduction and what it got of it"
    optional = True


class ClippedOtherwise(Rule):
    """Between the reduction and the step, gradients are not scaled by one factor for all ranks that norm and limit give.

    What it checks:
        What each rank's optimizer uses, against what it held after the reduction (see RLS811): all elements on all ranks have one
        factor, and it is min(1, limit / (norm + 1e-6)) with the norm over all ranks. Where parameters are sharded, that norm is
        joined from the ranks' own; no rank knows it by itself.

    Why it matters:
        Clipping each shard by its own norm, clipping by value, or leaving the clip out in one deployment gives another step than
        the same settings give on one device, without an error.

    Example:
        ERROR RLS812 Gradients clipped otherwise than by their common norm · update
        0 · 2 times
          expected  one factor for the gradients of all ranks, by the norm over all
                    of them
          observed  a factor of 1 for a norm of 0.1985 over all ranks and a limit of
                    0.1
          why       the clip was left out, made twice, or took another norm than
                    that over all ranks
          fix       look for a loop or wrapper that leaves out the clip, and for
                    what it takes the norm of

    What to do:
        Clip with the framework's own function for the whole model. Look for code that writes to `.grad` before the step.

    Known limits:
        - Only where something clips in a place that is seen, and not with a gradient scaler.
        - Where each rank holds all parameters, RLS808 compares the norm with its limit at every process.

    Sources:
        - https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html: one factor for all gradients
        - https://huggingface.co/docs/accelerate/package_reference/accelerator: `clip_grad_norm_` in each deployment
    """

    code = "RLS812"
    title = "Gradients clipped otherwise than by their common norm"
    topics = ("ranks", "reduction")
    nothing_seen = "no rank recorded its gradients before and after a clip"
    optional = True
