"""What is compared of a run of Stable-Baselines3 and sb3-contrib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.systems.engine.links import no, none, yes

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.links import Link, LinkName

LINKS: dict[LinkName, Link] = {
    "settings in force": yes(
        "sizes, discount, lambda, coefficients, limits, clips and the optimizer's: at each rollout against those when training "
        "began; discount, lambda and a constant rate also against the copies that the buffer and `lr_schedule` keep",
        "the model's attributes are its configuration; another ent_coef, which callbacks lower on purpose, is reported as "
        "information",
    ),
    "completions": yes(
        "whether actions are drawn from the policy: those of each rollout's first mini-batch, by its entropies",
        "not in continuous spaces",
    ),
    "completions on the way": yes(
        "observations, actions, values and ends of episodes: bit for bit, from the environment's step to the buffer and the loss; "
        "masks of actions and states of LSTMs from the buffer to the loss",
        "not in a buffer class or a `collect_rollouts` of somebody's",
        often="compared",
    ),
    "rewards on the way": yes(
        "bit for bit, from the environment's step to the buffer",
        "not what wrappers make of them, nor a buffer class of somebody's",
        often="compared",
    ),
    "advantages": yes(
        "GAE and the critic's targets, from the buffer's rewards, values and ends of episodes, in float64",
        often="compared",
    ),
    "advantages on the way": yes(
        "bit for bit, from the buffer to the mini-batch; the critic's targets too", often="compared"
    ),
    "mask": none("each timestep counts"),
    "mask on the way": none("each timestep counts"),
    "loss": yes(
        "by the gradients that it sends to log-probs, values and entropies: clips, normalisation, signs, coefficients",
        "not where a clip is a function of somebody's that does more than compute with numbers",
        often="compared",
    ),
    "backward": yes("in the same gradients, as a factor of the loss", often="compared"),
    "gradients cleared": yes("a probe after zero_grad"),
    "gradients on the way": yes(
        "eight tensors in each update, from the backward pass to the step; hooks of modules",
        "not what a hook of a tensor between two layers does",
        often="whole",
    ),
    "reduction": none("one process computes all gradients"),
    "gradient norm": yes("of all gradients at the step, against max_grad_norm", often="whole"),
    "optimizer step": yes(
        "SGD, Adam, AdamW and RMSprop of torch, and RMSpropTFLike, replayed in float64",
        "not other optimizers",
        often="compared",
    ),
    "optimizer moments": yes("between a replayed step and the next", often="compared"),
    "learning rate": yes(
        "constant and linear schedules of Stable-Baselines3, and functions that only compute with numbers",
        "not functions that do more than that",
    ),
    "reference": none("there is none"),
    "reference on the way": none("there is none"),
    "sampler": none("the policy itself acts"),
    "weights between updates": yes("a probe between updates"),
    "replicas": none("one process holds all weights"),
}

RULES: dict[str, Link] = {
    "RLS120": yes("the generators of torch and numpy, when training begins"),
    "RLS214": yes("the divergence of the mini-batch that PPO's target_kl left untrained"),
    "RLS213": yes("PPO's target_kl, of which `train` allows 1.5 times as much", often="compared"),
    "RLS305": yes("bit for bit, sample by sample, from the buffer to the loss"),
    "RLS306": no("it has timesteps: RLS521"),
    "RLS308": no("there is none"),
    "RLS404": yes("the policy's weights"),
    "RLS407": yes("at each rollout"),
    "RLS408": yes("layers that are frozen in mid-run", "not those that are frozen from the start"),
    "RLS413": yes("actions of the first mini-batch of every rollout, in spaces of separate actions"),
    "RLS421": yes(
        "gSDE's noise and the actions made of it; likeliest actions and nothing else, of Gaussian and categorical policies",
        "not masked actions, nor several or binary ones",
        often="compared",
    ),
    "RLS420": yes(
        "layers, activations, gSDE's distribution, and the weights before the first update", "not feature extractors"
    ),
    "RLS521": yes(
        "in their own `collect_rollouts` and their own buffers; masks of actions and states of LSTMs from the buffer to the loss",
        often="compared",
    ),
    "RLS605": yes(
        "the schedules of Stable-Baselines3, and functions that only compute with numbers: these are called once more for each rollout",
        "not functions that do more than that",
    ),
    "RLS801": yes(
        "by the gradients that it sends to log-probs, values and entropies: clips, normalisation, signs, coefficients",
        "not where a clip is a function of somebody's that does more than compute with numbers",
        "compared",
    ),
    "RLS802": yes("old log-probs, advantages and the critic's targets"),
    "RLS809": yes("every update"),
}
