"""What an audit knows when training begins: the plan of the live arguments, how much of it is done, and facts for the judge."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.events import FactsRead
from rlstep_hooks.record.ledger import rank_process
from rlstep_hooks.record.tail import Tail
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.openrlhf.observe.deployment import deployment_of, engine_faults
from rlstep_hooks.systems.openrlhf.observe.labels import FIRST_WEIGHTS, NEUTRAL, sampling_of
from rlstep_hooks.systems.openrlhf.observe.process import OBSERVED_SINCE, folder
from rlstep_hooks.systems.openrlhf.observe.settings import configured_schedule
from rlstep_hooks.systems.openrlhf.plan import plan_config
from rlstep_hooks.systems.openrlhf.releases import SUPPORTED, installed_release

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.session.ray_sink import Sink

ATTACH_HINT = (
    "every worker must import rlstep_hooks: install it there, and start the driver with RLSTEP_DIR=<folder that all machines share> "
    "(where they share none, also RLSTEP_SINK=ray) "
    "and RAY_RUNTIME_ENV_HOOK=rlstep_hooks.openrlhf.runtime_env_hook"
)


def plan_of(args: Any, rows: Callable[[], int | None]) -> tuple[Schedule | None, str]:
    """The plan of the live arguments, and why the run cannot be followed; empty where it can.

    Args:
        args: The live arguments.
        rows: Gives the rows of the training set, None where they are not known; asked only in a release that is supported.
    """
    release = installed_release()
    if release is None or not release.supported:
        return (
            None,
            f"OpenRLHF {release.openrlhf if release else 'of unknown release'} is not supported ({SUPPORTED} are)",
        )
    of_set = rows()
    try:
        schedule = plan_config(args, rows=of_set, release=release)
    except Exception as error:  # noqa: BLE001 - whatever the plan meets in the arguments must not end training
        return None, f"the arguments could not be read: {describe(error)}"
    if not release.since(OBSERVED_SINCE):
        return (
            schedule,
            f"OpenRLHF {release.openrlhf} gets the plan only: hooks are verified from {OBSERVED_SINCE} on",
        )
    if schedule.critic is not None and schedule.critic.world_size != schedule.world_size:
        return schedule, "policy and critic train on different numbers of processes, which is not followed"
    return schedule, ""


def facts_of(args: Any, schedule: Schedule | None, *, rollouts: int, updates: int) -> dict[str, Any]:
    """What the judge needs to know of a run, besides its plan.

    Args:
        args: The live arguments.
        schedule: The plan; None where there is none.
        rollouts: The rollouts that a resumed run has behind it.
        updates: The updates of the policy that it has behind it.
    """
    deployment = deployment_of(args, int(args.actor.num_nodes) * int(args.actor.num_gpus_per_node))
    facts: dict[str, Any] = {
        "position": {"rollouts": rollouts, "updates": updates, "version": updates},
        "engine_dtype": "bfloat16",  # vllm_engine.py:214
        "lr_constant": args.actor.lr_scheduler == "constant",
        "attach_hint": ATTACH_HINT,
        # The reference's own processes leave no record; the arrival of its log-probs is seen here.
        "unrecorded": ["reference"],
        "labels_are_weights": True,
        "deployment": deployment,
        "release_faults": engine_faults(args, schedule),
    } | index.link_facts("openrlhf", deployment)
    if not getattr(args.train, "agent_func_path", None):  # an agent may sample as it likes
        # train_ppo_ray.py:163; samples_generator.py:209 takes the rest from nowhere.
        asked = sampling_of(args.rollout.temperature, args.rollout.top_p, top_k=-1)
        facts["configured_sampling"] = asked | NEUTRAL
        if args.rollout.max_new_tokens is not None:
            facts["configured_sampling"]["max_tokens"] = float(args.rollout.max_new_tokens)
    if not rollouts:
        facts["first_label"] = FIRST_WEIGHTS
    if schedule is not None and schedule.lr_horizon:
        facts["lr_warmup"] = math.ceil(schedule.lr_horizon * args.actor.lr_warmup_ratio)  # deepspeed.py:381
        for name, own in (("lr_schedule", args.actor), ("critic_lr_schedule", args.critic)):
            # A checkpoint brings the rate that it was made with, and Muon has two: then the trainer says what it has.
            if not rollouts and own.optim == "adam":
                facts[name] = configured_schedule(own, schedule.lr_horizon)
    return facts


def updates_before(run: str, sink: Sink | None) -> int:
    """Policy updates before this run began, as the first trainer's DeepSpeed engine counts them.

    Args:
        run: The name of the run.
        sink: What brings the records of other machines; None where all share a folder.
    """
    first = rank_process(0)
    record = Tail(folder() / f"{run}.{first}.jsonl")
    read: list[FactsRead] = []

    def lacking() -> list[str]:
        read.extend(event for event in record.read() if isinstance(event, FactsRead))
        return [] if read else [first]

    if sink is not None:
        sink.wait_for(lacking)
    return 0 if lacking() else int(read[0].facts.get("engine_updates", 0))
