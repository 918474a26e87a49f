"""Methods that save under a path which the script chose: in the child they save into the temporary folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import wrapt

from rlstep_hooks.rehearse.messages import settings


def save_aside(owner: Any, method: str, argument: str) -> None:
    """Have a method save into the temporary folder."""

    def around(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        given = kwargs.get(argument, args[0] if args else None)
        if given is None:
            return wrapped(*args, **kwargs)
        root, path = Path(settings().folder).resolve(), Path(os.path.realpath(given))
        inside = root == path or root in path.parents
        place = given if inside else str(root / "written" / str(path).lstrip("/"))
        if argument in kwargs:
            return wrapped(*args, **{**kwargs, argument: place})
        return wrapped(place, *args[1:], **kwargs)

    wrapt.wrap_function_wrapper(owner, method, around)
