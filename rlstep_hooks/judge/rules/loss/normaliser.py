"""RLS8xx: what the loss is divided by, on all processes."""

from __future__ import annotations

from rlstep_hooks.judge.rules.base import Rule


class TokensOfAllRanks(Rule):
    """A loss that is divided by the tokens, or samples, of all processes is given another number.

    What it checks:
        Each process records the tokens that count in its own masks, and the number that its losses were given for those of all
        processes. The number must be the sum over the processes, which is known when the records are joined. Exact, but for the
        rounding of a count to float32. In TRL's GRPO these are the tokens of a rollout, with the loss types dapo, cispo and vespo. In
        verl they are those of a mini-batch, with `loss_agg_mode=token-mean`, and in OpenRLHF those of an update, or its samples that
        have a token that counts, of policy and critic.

    Why it matters:
        The mean of the ranks' gradients is the gradient of a mean over all tokens only if each rank divides by the tokens of all
        ranks over their number. Divided by its own tokens, a rank with short completions weighs each of them more: the loss of each
        process looks right by itself, and the update is that of another objective.

    Example:
        ERROR RLS820 Loss divided by other tokens than all ranks have · rank 0,
        rollout 0, micro-batch 0
          expected  the losses of rank 0 are given the tokens of all 2 processes,
                    600
          observed  212: its own tokens alone
          why       the loss is 2.83 times the documented one here, and another
                    multiple on ranks with more or fewer tokens
          fix       look at where the tokens of all processes are added up, and at
                    what changes that number before the loss

    What to do:
        The finding names the number if it is a known one: the rank's own tokens (nothing was gathered), these times the number of ranks
        (gathered from itself), the mean over the ranks. Look at where the counts are added up, and at what changes the sum before the
        loss gets it.

    Known limits:
        - What the loss itself makes of the number is RLS801's.
        - TRL's rollouts whose samples are filtered, replayed or masked when they are truncated are not compared.
        - In verl and OpenRLHF the compared updates are joined. OpenRLHF's last update of a pass is not, where it has fewer
          micro-batches than the others.
        - It needs the records of all processes.

    Sources:
        - https://huggingface.co/docs/trl/grpo_trainer: loss types, and which of them are divided by the tokens of the global batch
        - https://github.com/OpenRLHF/OpenRLHF/blob/main/openrlhf/utils/loss_utils.py: `_optimizer_step_loss_norm` (release 0.11.2)
        - https://github.com/verl-project/verl/blob/v0.9.1/verl/workers/engine/fsdp/transformer_impl.py: `forward_backward_batch`
        - https://github.com/verl-project/verl/issues/5625: a token mean over other tokens than those of the mini-batch
    """

    code = "RLS820"
    title = "Loss divided by other tokens than all ranks have"
    topics = ("ranks", "loss")
    nothing_seen = "no loss that was looked at is divided by the tokens of all processes"
