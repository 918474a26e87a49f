"""Processes of programs that start torchrun themselves and take its sizes from the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch.text import LaunchError, SettingError, UnknownValueError

if TYPE_CHECKING:
    from rlstep_hooks.launch.command import Command


def of_environment(command: Command, *, without: int | None) -> int | None:
    """NPROC_PER_NODE x NNODES, as LLaMA-Factory and ms-swift read them.

    Args:
        command: The command, with the variables that are set in front of it.
        without: What the program starts on one machine where NPROC_PER_NODE is not set; None if that depends on the machine.

    Raises:
        SettingError: One of them is no whole number.
        UnknownValueError: One of them cannot be known.
    """
    each, nodes = _number(command, "NPROC_PER_NODE"), _number(command, "NNODES")
    each = each if each is not None else without
    return None if each is None else each * (nodes or 1)


def visible_devices(command: Command) -> int | None:
    """Devices that CUDA_VISIBLE_DEVICES in front of the command names; None where it does not stand there."""
    token = command.environment.get("CUDA_VISIBLE_DEVICES")
    if token is None:
        return None
    if token.unknown:
        raise UnknownValueError("CUDA_VISIBLE_DEVICES", token.unknown[0])
    return len([part for part in token.text.split(",") if part.strip()])


def from_machine(program: str) -> LaunchError:
    """The error of a launch whose number of processes only the machine knows."""
    return LaunchError(f"`{program}` starts one process for each GPU of the machine; give --world-size N")


def _number(command: Command, name: str) -> int | None:
    token = command.environment.get(name)
    if token is None:
        return None
    if token.unknown:
        raise UnknownValueError(name, token.unknown[0])
    if not token.text.isdigit() or int(token.text) < 1:
        raise SettingError(f"{name} = {token.text!r} is no number of processes", token.place)
    return int(token.text)
