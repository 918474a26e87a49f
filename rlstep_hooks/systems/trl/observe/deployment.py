"""How the processes of a run share the model, as the table of links names it (`rlstep_hooks.systems.engine.links`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.deepspeed_engine.faults import faults_of, told
from rlstep_hooks.systems.deepspeed_engine.launch import PACKAGE
from rlstep_hooks.systems.engine.installed import release_here

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlstep_hooks.systems.engine.links import Deployment


def deployment_of(trainer: Any) -> tuple[Deployment, ...]:
    """What sets this run apart from one process that trains a whole model: nothing, if that is what it is.

    accelerate keeps the plugins of a run in its state (`AcceleratorState`, accelerate 1.15.0 state.py:980), those that transformers
    made of its own arguments too.
    """
    return tuple(_parts(trainer))


def engine_faults(trainer: Any, deployment: Sequence[Deployment]) -> list[dict[str, str]]:
    """The known faults of the DeepSpeed that trains, as a rule is told of them; none without DeepSpeed.

    Args:
        trainer: The trainer.
        deployment: The deployment that `deployment_of` gives.
    """
    if getattr(trainer.accelerator.state, "deepspeed_plugin", None) is None:
        return []
    release, arguments = release_here(PACKAGE), trainer.args
    reduced = bool(arguments.bf16 or arguments.fp16)
    return told(
        faults_of(release, deployment, reduced=reduced, microbatches=arguments.gradient_accumulation_steps), release
    )


def _offloads(policy: Any) -> bool:
    """Whether FSDP keeps parameters on the host: FSDP1's policy has a flag, and FSDP2's is of another class (torch 2.13.0
    distributed/fsdp/api.py:300, _fully_shard/_fsdp_api.py `CPUOffloadPolicy`)."""
    flag = getattr(policy, "offload_params", None)
    return type(policy).__name__ == "CPUOffloadPolicy" if flag is None else bool(flag)


def _parts(trainer: Any) -> Iterator[Deployment]:
    state = trainer.accelerator.state
    zero = getattr(state, "deepspeed_plugin", None)
    sharded = getattr(state, "fsdp_plugin", None)
    if zero is not None:
        yield _OF_STAGE[int(zero.zero_stage)]
        optimizer = zero.deepspeed_config.get("zero_optimization", {}).get("offload_optimizer") or {}
        if optimizer.get("device", "none") != "none":
            yield "offload"
    elif sharded is not None:
        yield "FSDP2" if int(getattr(sharded, "fsdp_version", 1)) == 2 else "FSDP1"
        if _offloads(sharded.cpu_offload):
            yield "offload"
    elif trainer.accelerator.num_processes > 1:
        yield "DDP"
    if hasattr(trainer.model, "peft_config"):
        yield "LoRA"


_OF_STAGE: dict[int, Deployment] = {0: "ZeRO-0", 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3"}
