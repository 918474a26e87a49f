"""How many processes a launcher starts, by the options that it is given: `accelerate launch`, `torchrun` and `deepspeed`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch.command import Processes
from rlstep_hooks.launch.text import LaunchError, Token

if TYPE_CHECKING:
    from rlstep_hooks.launch.text import Place


def _number(token: Token, option: str) -> int:
    try:
        value = int(
            token.text.rpartition(":")[2]
        )  # torchrun's --nnodes 1:4 starts with the smaller, may grow to the larger
    except ValueError:
        raise LaunchError(f"{option} is {token.text!r}, not a whole number", token.place) from None
    if value < 1:
        raise LaunchError(f"{option} is {value}; it must be at least 1", token.place)
    return value


def _counted(
    given: dict[str, Token], place: Place, launcher: str, each: tuple[str, ...], groups: str
) -> Processes | None:
    """Processes from one option for the number on a machine and one for the machines."""
    token = next((given[name] for name in each if name in given), None)
    for one in (token, given.get(groups)):
        if one is not None and one.unknown:
            return Processes(None, one.place, launcher, one.unknown[0])
    count = _number(token, each[0]) if token is not None else None
    machines = _number(given[groups], groups) if groups in given else 1
    return Processes(None if count is None else count * machines, token.place if token else place, launcher)


def accelerate_processes(given: dict[str, Token], place: Place) -> Processes:
    """The processes that `accelerate launch` starts: one with `--cpu`, else as many as `--num_processes` says."""
    if "--cpu" in given and "--mpirun_hostfile" not in given:
        # accelerate 1.15.0 commands/launch.py launch_command, simple_launcher: one Python process, whatever --num_processes says.
        return Processes(1, given["--cpu"].place, "accelerate launch --cpu")
    token, file = given.get("--num_processes") or given.get("-n"), given.get("--config_file")
    if token is not None and token.unknown:
        return Processes(None, token.place, "accelerate launch", token.unknown[0])
    count = None if token is None else _number(token, "--num_processes")
    config = file.text if file is not None and not file.unknown else ""
    distributed = not given.keys().isdisjoint(_TOGETHER)
    return Processes(
        count, place if token is None else token.place, "accelerate launch", config=config, distributed=distributed
    )


_TOGETHER = ("--multi_gpu", "--use_deepspeed", "--use_fsdp", "--tpu", "--use_megatron_lm")
"""Flags with any of which accelerate does not look at `distributed_type` of its configuration (1.15.0 commands/launch.py)."""


def torchrun_processes(given: dict[str, Token], place: Place) -> Processes | None:
    """The processes that `torchrun` starts: those of each machine, on as many machines as there are."""
    token = given.get("--nproc_per_node")
    if token is not None and token.text in ("gpu", "auto", "cpu", "xpu"):
        return Processes(None, token.place, "torchrun")
    if token is None:
        given = {**given, "--nproc_per_node": Token("1", place)}  # torchrun starts one process unless told otherwise
    return _counted(given, place, "torchrun", ("--nproc_per_node",), "--nnodes")


_CHOOSES_DEVICES = frozenset({"--num_gpus", "--num_nodes", "--include", "-i", "--exclude", "-e", "--hostfile", "-H"})


def deepspeed_processes(given: dict[str, Token], place: Place, visible: Token | None) -> Processes | None:
    """`--num_gpus`, `--include`, else one process for each device: of those in CUDA_VISIBLE_DEVICES, if it is set.

    deepspeed 0.19.6 launcher/runner.py main, "respect VISIBLE_DEVICES": on one machine it is what `--include localhost:...` would be.
    """
    include = given.get("--include") or given.get("-i")
    if visible is not None and not given.keys() & _CHOOSES_DEVICES:
        if visible.unknown:
            return Processes(None, visible.place, "deepspeed", visible.unknown[0])
        devices = [part for part in visible.text.split(",") if part.strip()]
        return Processes(len(devices), visible.place, "deepspeed") if devices else Processes(None, place, "deepspeed")
    if include is not None and not include.unknown:
        hosts = include.text.split("@")
        if all(":" in host for host in hosts):
            return Processes(sum(len(host.split(":")[1].split(",")) for host in hosts), include.place, "deepspeed")
    return _counted(given, place, "deepspeed", ("--num_gpus",), "--num_nodes")
