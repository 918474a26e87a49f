"""Files that a launch names by their place on another machine: in a container, or in somebody's home folder."""

from __future__ import annotations

from pathlib import Path

from rlstep_hooks.rehearse.messages import say_once


def place_here(name: str) -> str:
    """The place of a file on this machine.

    A path that is not here is looked for below the folder of the launch, by the longest end of it that has its folder with it:
    `/openrlhf/examples/python/reward_func.py` is `examples/python/reward_func.py` of a checkout. A file's name alone would find
    others too.

    Args:
        name: The path that the launch names.

    Returns:
        The path of the file that stands for it; the name itself where it is here, is relative, or nothing stands for it.
    """
    path = Path(name).expanduser()
    if not path.is_absolute() or path.exists():
        return name
    parts = path.parts[1:]
    ends = (Path(*parts[start:]) for start in range(len(parts) - 1))
    found = next((end for end in ends if end.exists()), None)
    return name if found is None else str(Path.cwd() / found)


def stand_in(setting: str, name: str) -> str:
    """The path that stands for one of the launch on this machine (`place_here`); where it is another, the rehearsal says so.

    Args:
        setting: What the launch calls it.
        name: The path that the launch names.
    """
    found = place_here(name)
    if found != name:
        short = Path(found).relative_to(Path.cwd())
        say_once("left out", f"{setting} {name}: not on this machine, but {short} is", "replaced")
    return found
