"""A hand-written loop: it reports its events, and torch's hooks count the updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.engine.declaration import System
from rlstep_hooks.systems.engine.links import limited, no, none, yes

if TYPE_CHECKING:
    from rlstep_hooks.planning.reading import Reading
    from rlstep_hooks.systems.engine.quantities import Quantities


def read(launch: Quantities) -> Reading:
    """No launch command says the schedule of a loop of one's own.

    Raises:
        LaunchError: Always.
    """
    raise LaunchError(
        "a loop of one's own has no launch command that says its schedule",
        remedy="make the schedule with Schedule.ppo(...), or give its numbers: --framework paper -- paper --prompts-per-rollout N ...",
    )


SYSTEM = System(
    name="own_loop",
    title="a loop of your own",
    version="2.2",
    package="torch",
    plan="rlstep_hooks.systems.own_loop.system:read",
    attaches_by="`with rlstep_hooks.audit(schedule) as audit:` around the loop.",
    # Hooks on all optimizers of a process came with torch 2.2.
    observed_releases=("2.2", "3"),
    observes=("what the loop tells the audit", "updates of torch's optimizers", "learning rate", "weights"),
    links={
        "settings in force": no("a loop's settings are its own"),
        "completions": no("the loop hands over none"),
        "completions on the way": no("the loop hands over none"),
        "rewards on the way": no("a loop hands over the rewards that it has"),
        "advantages": yes(
            "from audit.rewards, by the estimator that audit.advantages names, in float64",
            "not by other estimators",
            often="compared",
        ),
        "advantages on the way": yes(
            "from audit.advantages to audit.microbatch, up to their mean and a positive factor", often="compared"
        ),
        "mask": no("the loop does not say what its tokens are"),
        "mask on the way": no("the loop hands over its masks once"),
        "loss": yes("that its constants carry no gradient", "not its value: nothing says which loss it is"),
        "backward": no("nothing says by what the loop means to multiply its loss"),
        "gradients cleared": yes(
            "an update's gradients are not those of its backward passes and of the update before, added up",
            "not with a gradient scaler, or gradients that are changed on the way",
            often="whole",
        ),
        "gradients on the way": no("a loop may scale or mask its gradients on purpose"),
        "reduction": yes(
            "with audit(model=...): megatron-core's DDP and its optimizers (0.16.1); of torch's DDP, known mistakes",
            "not without it, nor tensor and pipeline parallelism, loss per token over all ranks, fused gradients",
            often="whole",
        ),
        "gradient norm": yes(
            "of all gradients at the step, against audit(max_grad_norm=...)", "not without it", often="whole"
        ),
        "optimizer step": yes(
            "SGD, Adam, AdamW and RMSprop of torch, replayed in float64",
            "not other optimizers, nor steps with a closure",
            often="compared",
        ),
        "optimizer moments": yes("between a replayed step and the next", often="compared"),
        "learning rate": yes(
            "against audit(learning_rate=...)", "not without it: nothing else says which schedule the loop means"
        ),
        "reference": no("the loop hands over none"),
        "reference on the way": no("the loop hands over none"),
        "sampler": none("the loop samples itself"),
        "weights between updates": yes("a probe between updates"),
        "replicas": no("a loop says what it does, and not which processes share it"),
    },
    rules={
        "RLS210": limited("call `audit.skipped(...)` where the loop leaves a step out"),
        "RLS303": limited("it knows the calls of `audit.refresh()`, not who else computes log-probs"),
        "RLS305": yes(
            "what the loop hands over: `audit.refresh(old_logprobs=...)`, and the samples of each micro-batch"
        ),
        "RLS308": no("the loop hands over none"),
        "RLS402": limited("the loop says which version sampled, or nothing; then it is not evaluated"),
        "RLS404": yes("the policy's weights"),
        "RLS516": yes(
            "from audit.rewards, by the estimator that audit.advantages names, in float64",
            "not by other estimators; what other ends of episodes explain is a warning where the loop may be right and the call wrong: "
            "`dones` one timestep later, without time limits, or without the value at a time limit",
            often="compared",
        ),
        "RLS602": no("there is no scheduler whose position can be read"),
        "RLS801": no("nothing says which loss it is"),
        "RLS802": yes("what the loop hands over"),
        "RLS803": yes(
            "the gradients of an update against those of its backward passes and those that the step before left",
            "not with a gradient scaler, nor where they are changed on the way by more than one factor",
            "whole",
        ),
        "RLS809": yes("updates whose advantages and log-probs, new and old, the loop hands over"),
        "RLS811": yes(
            "with audit(model=...): what each rank's backward passes gave, and what it got of the reduction, joined from all "
            "records (megatron-core's DDP 0.16.1; of torch's DDP, known mistakes)",
            "not without it, nor tensor and pipeline parallelism, loss per token over all ranks, fused gradients",
            "whole",
        ),
        "RLS812": yes(
            "with audit(model=...): what each optimizer of megatron-core uses, against what came of the reduction",
            "not without it, nor with a gradient scaler",
            "whole",
        ),
    },
    does_not_observe=("what the loop does not tell",),
)
