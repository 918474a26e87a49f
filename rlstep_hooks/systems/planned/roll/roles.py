"""Formulas and checks that several roles of ROLL share: processes of a role, and updates of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.systems.engine.declaration import Check, Demand

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMIT = "ROLL 8eb27cc"
START_UP = "at start-up, when the configuration is checked"

PARALLEL = ("tensor_model", "pipeline_model", "context")


def backward(role: str) -> str:
    """Samples of one process in one update."""
    return f"{role}.training_args.per_device_train_batch_size * {role}.training_args.gradient_accumulation_steps"


def processes_of(role: str) -> dict[str, str]:
    """Data-parallel processes of a role: its devices, divided by those that hold one copy of the model."""
    sizes = (f"{role}.strategy_args.strategy_config.{name}_parallel_size" for name in PARALLEL)
    return {
        f"{role}.devices": f"devices({role}.device_mapping)",
        f"{role}.workers": f"{role}.devices // {role}.num_gpus_per_worker",
        f"{role}.megatron": f"'megatron' in ({role}.strategy_args.strategy_name or 'megatron')",
        f"{role}.copy": f"{' * '.join(sizes)} if {role}.megatron else {role}.model_args.ulysses_size or 1",
        f"{role}.processes": f"{role}.workers // {role}.copy",
    }


def checks_of_processes(role: str, where: str) -> Iterator[Check | Demand]:
    """The devices of a role must hold whole copies of the model."""
    sizes = f"{role}.strategy_args.strategy_config."
    yield Demand(
        f"{role}.device_mapping is not None",
        f"{role}.device_mapping is missing; the framework requires it",
        about=f"{role}.device_mapping",
        where=where,
    )
    yield Demand(
        f"{role}.devices is not None",
        f"{role}.device_mapping = {{{role}.device_mapping}} is no list of devices",
        about=f"{role}.device_mapping",
        where=where,
    )
    yield Check(
        f"{role}.devices and {role}.devices % {role}.num_gpus_per_worker == 0",
        f"len(device_mapping)={{{role}.devices}} must be divisible by num_gpus_per_worker={{{role}.num_gpus_per_worker}}.",
        fix=f"{role}.device_mapping of {{multiples({role}.devices, {role}.num_gpus_per_worker)}} devices",
        when=START_UP,
        source=f"{COMMIT} roll/configs/worker_config.py WorkerConfig.__post_init__",
        where=where,
    )
    yield Demand(
        f"{role}.megatron or {role}.workers % {role}.copy == 0",
        f"{{{role}.workers}} workers of {role} cannot share sequences by {{{role}.copy}}",
        about=f"{role}.model_args.ulysses_size",
        where=where,
    )
    yield Check(
        f"{role}.workers % {role}.copy == 0",
        f"Total GPUs ({{{role}.workers}}) must be divisible by model parallel size ({{{role}.copy}} = "
        f"TP:{{{sizes}tensor_model_parallel_size}} x PP:{{{sizes}pipeline_model_parallel_size}} x "
        f"CP:{{{sizes}context_parallel_size}})",
        fix=f"{role}.device_mapping of {{multiples({role}.workers, {role}.copy)}} devices",
        when=START_UP,
        source=f"{COMMIT} roll/utils/config_utils.py calculate_megatron_dp_size",
        where=where,
    )


def updates_of(role: str, world_size: str) -> dict[str, str]:
    """The samples of a rollout on one process of a role, and the sizes near the configured one that divide them."""
    training = f"{role}.training_args"
    return {
        f"{role}.share": f"trained // {world_size}",
        f"{role}.fitting_steps": f"nearest({training}.gradient_accumulation_steps, "
        f"{role}.share % ({training}.per_device_train_batch_size * it) == 0)",
        f"{role}.fitting_size": f"nearest({training}.per_device_train_batch_size, {role}.share % it == 0)",
    }


def checks_of_updates(role: str, world_size: str, where: str) -> Iterator[Check]:
    """The samples of each process must make whole updates."""
    yield Check(
        f"trained % {world_size} == 0",
        f"{{trained}} % {{{world_size}}} != 0",
        fix=f"a rollout of {{multiples(trained, {world_size})}} samples",
        when="after the first rollout, when its samples are shared among the processes",
        source=f"{COMMIT} roll/utils/functionals.py get_seqlen_balanced_partitions",
        where=where,
    )
    yield Check(
        f"{role}.share % ({backward(role)}) == 0",
        f"{{{role}.share}} % {{{backward(role)}}} != 0",
        fix=f"{role}.training_args.{{'gradient_accumulation_steps = ' + {role}.fitting_steps if {role}.fitting_steps "
        f"else 'per_device_train_batch_size = ' + {role}.fitting_size}}",
        when="after the first rollout, in the first training step",
        source=f"{COMMIT} roll/distributed/scheduler/protocol.py DataProto.make_iterator",
        where=where,
    )
