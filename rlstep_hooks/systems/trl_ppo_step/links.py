"""What is compared of a run that calls `step()` of TRL's first PPOTrainer: by a script, or by a trainer built on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.systems.engine.links import no, yes

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.links import Link, LinkName

LINKS: dict[LinkName, Link] = {
    "settings in force": no("a script may change them between two steps on purpose"),
    "completions": no("they stay inside step()"),
    "completions on the way": no("they stay inside step()"),
    "rewards on the way": no("a script hands its scores to step() itself"),
    "advantages": no("step() computes them inside, and hands them on to its loss alone"),
    "advantages on the way": no("step() keeps it inside"),
    "mask": no("the script says what its tokens are"),
    "mask on the way": no("step() keeps it inside"),
    "loss": yes("that its constants carry no gradient", "not its value"),
    "backward": no("the loss stays inside step()"),
    "gradients cleared": no("step() clears them where nothing of this package stands"),
    "gradients on the way": no("step() backpropagates inside, where nothing of this package stands"),
    "reduction": no("step() backpropagates inside, where nothing of this package stands"),
    "gradient norm": no("step() clips inside"),
    "optimizer step": yes(
        "SGD, Adam, AdamW and RMSprop of torch, replayed in float64",
        "not other optimizers, nor steps of DeepSpeed's engine",
        often="compared",
    ),
    "optimizer moments": yes("between a replayed step and the next", often="compared"),
    "learning rate": no("the script gives the scheduler, if there is one"),
    "reference": no("its log-probs stay inside step()"),
    "reference on the way": no("its log-probs stay inside step()"),
    "sampler": no("the script samples"),
    "weights between updates": yes("a probe between updates"),
    "replicas": no("what ranks hold is compared in the trainers of GRPO and RLOO alone"),
}

RULES: dict[str, Link] = {
    "RLS308": no("its log-probs stay inside step()"),
    "RLS404": yes("the policy's weights"),
    "RLS801": no("the loss stays inside step()"),
    "RLS802": yes("old log-probs, advantages and the critic's targets"),
}
