"""What is compared of a run of TRL's GRPOTrainer and RLOOTrainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.systems.engine.links import yes

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.links import Link, LinkName

OF_UPDATES: dict[LinkName, Link] = {
    "backward": yes(
        "the factor that arrives at the loss",
        "not with a gradient scaler or DeepSpeed, whose factors are their own",
    ),
    "gradients on the way": yes(
        "eight tensors an update, from autograd to the step",
        "not among several processes, nor with a scaler, FSDP or DeepSpeed",
    ),
    "gradient norm": yes(
        "of all gradients at the step, against max_grad_norm", "with sharded parameters, only one process's part"
    ),
    "optimizer step": yes(
        "SGD, Adam, AdamW and RMSprop of torch, replayed in float64",
        "not other optimizers, nor steps of DeepSpeed's engine",
    ),
    "optimizer moments": yes("between a replayed step and the next"),
    "learning rate": yes("constant, linear and cosine of transformers", "not other schedules"),
}
"""From the loss to the weights: the same in every trainer that inherits these from TRL's."""

LINKS: dict[LinkName, Link] = {
    **OF_UPDATES,
    "settings in force": yes(
        "what trainer and optimizer compute with, when training begins and at each rollout",
        "of an optimizer that you build yourself, only its changes",
    ),
    "completions": yes(
        "against the policy's own distributions and each other (0.20 and later); the loss's log-probs against those of generate",
        "not truncated sampling, several turns, or dropout; an engine's log-probs where it gives them",
    ),
    "completions on the way": yes(
        "what generate was asked for and gave, and bit for bit from the rollout to the loss",
        "with an engine, only from the rollout on",
    ),
    "rewards on the way": yes(
        "what each reward function gave, and which completions it got (0.20 and later)",
        "not reward models, nor coroutines",
    ),
    "advantages": yes(
        "from the rewards, in float64: group's and rollout's deviation, leave-one-out, several reward functions (0.20 and later)",
        "before 0.20 rewards are not seen; not RLOO with a KL penalty in the rewards, nor trainers with advantages of their own",
    ),
    "advantages on the way": yes("bit for bit, from the rollout to the loss"),
    "mask": yes(
        "through the first end; truncated completions as configured",
        "not with tools, environments or other ends: several turns",
    ),
    "mask on the way": yes("bit for bit, from the rollout to the loss"),
    "loss": yes("the documented types, on the same log-probs", "not inside a liger loss, nor types of somebody's own"),
    "gradients cleared": yes("a probe before the first micro-batch of each update"),
    "reference": yes(
        "a probe of its weights, also against writes that were undone; with sync_ref_model the mix of each sync",
        "not shards, nor a reference that is the policy with its adapters off",
    ),
    "reference on the way": yes(
        "bit for bit, from the rollout to the loss",
        "not RLOO's, which enter its rewards, nor those computed in the loss",
    ),
    "sampler": yes(
        "settings at the call of generate; with vLLM its log-probs, and in colocate mode what it is given "
        "and what it holds after each sync; of a vLLM server too that was started with RLSTEP_ENGINES (1.16)",
        "not what other servers do with the weights",
    ),
    "weights between updates": yes("a probe, between updates and while samples are generated"),
}
