"""How the processes of a run share the policy, as the table of links names it (`rlstep_hooks.systems.engine.links`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.deepspeed_engine.launch import EngineConfig, faults_of_launch
from rlstep_hooks.systems.openrlhf.deviations import known_before

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.engine.links import Deployment

_OF_STAGE: dict[int, Deployment] = {0: "ZeRO-0", 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3"}


def deployment_of(args: Any, world_size: int) -> tuple[Deployment, ...]:
    """What sets this run apart from one process for each role under ZeRO-2: nothing, if that is what it is.

    Args:
        args: OpenRLHF's arguments; the names are those of cli/train_ppo_ray.py, 0.11.
        world_size: Processes that train the policy.
    """
    return tuple(_parts(args, world_size))


def _parts(args: Any, world_size: int) -> Iterator[Deployment]:
    stage = int(args.ds.zero_stage)
    if world_size > 1 or stage != 2:
        yield _OF_STAGE[stage]
    if args.ds.adam_offload:
        yield "offload"
    if int(args.ds.lora.rank) > 0:
        yield "LoRA"


def holds_whole_model(args: Any) -> bool:
    """Whether each process of a model holds all of its weights and whole rows, so that a forward of one process waits for no other.

    DeepSpeed's ZeRO-1 and ZeRO-2 share out gradients and the optimizer's state alone; models that are not trained are in ZeRO-3 where
    the policy is, and in no stage elsewhere (utils/deepspeed/deepspeed.py 0.11.2 `get_ds_eval_config`).
    """
    return int(args.ds.zero_stage) < 3 and has_whole_rows(args)


def has_whole_rows(args: Any) -> bool:
    """Whether each process has whole rows and whole matrices: not with ring attention, nor with tensor parallelism."""
    return int(args.ds.ring_attn_size) == 1 == int(args.ds.tensor_parallel_size)


def engine_faults(args: Any, schedule: Schedule | None) -> list[dict[str, str]]:
    """The known faults of the DeepSpeed that trains, and of OpenRLHF, as a rule is told of them.

    Args:
        args: The arguments that `deployment_of` takes.
        schedule: The plan; None where there is none.
    """
    engine = EngineConfig(int(args.ds.zero_stage), bool(args.ds.adam_offload))
    # With dynamic batches each backward pass is at a boundary of the engine's (utils/deepspeed/deepspeed.py 0.11.2:453).
    passes = None if schedule is None or args.train.dynamic_batch_enable else schedule.microbatches_per_update
    of_engine = faults_of_launch(engine, reduced=True, microbatches=int(passes or 1)) or []
    if schedule is None:
        return of_engine
    averages = bool(args.train.enable_ema)
    return of_engine + known_before(schedule.version, stage=int(args.ds.zero_stage), averages=averages)
