"""Processes of programs that start torchrun themselves and read its sizes from the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch.text import LaunchError, SettingError, UnknownValueError

if TYPE_CHECKING:
    from rlstep_hooks.launch.command import Command


def of_environment(command: Command, *, without: int | None) -> int | None:
    """NPROC_PER_NODE x NNODES, as LLaMA-Factory and ms-swift read them.

    Args:
        command: The command, with the variables set in front of it.
        without: Processes that the program starts if NPROC_PER_NODE is not set; None if that depends on the machine.

    Raises:
        SettingError: A variable is not a whole number.
        UnknownValueError: A variable's value cannot be known.
    """
    each, nodes = _number(command, "NPROC_PER_NODE"), _number(command, "NNODES")
    each = each if each is not None else without
    return None if each is None else each * (nodes or 1)


def visible_devices(command: Command) -> int | None:
    """Number of devices in the command's own CUDA_VISIBLE_DEVICES; None if the command does not set it."""
    token = command.environment.get("CUDA_VISIBLE_DEVICES")
    if token is None:
        return None
    if token.unknown:
        raise UnknownValueError("CUDA_VISIBLE_DEVICES", token.unknown[0])
    return len([part for part in token.text.split(",") if part.strip()])


def from_machine(program: str) -> LaunchError:
    """The error for a launch whose number of processes depends on the machine."""
    return LaunchError(f"`{program}` starts one process for each GPU of the machine; give --world-size N")


def _number(command: Command, name: str) -> int | None:
    token = command.environment.get(name)
    if token is None:
        return None
    if token.unknown:
        raise UnknownValueError(name, token.unknown[0])
    if not token.text.isdigit() or int(token.text) < 1:
        raise SettingError(f"{name} = {token.text!r} is not a number of processes", token.place)
    return int(token.text)
