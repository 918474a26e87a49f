"""Whether a run of a planned launch could be recorded. If not, one note says so, from the declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.request import release_of

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.declaration import System
    from rlstep_hooks.systems.engine.request import Request


def not_observed(system: System, request: Request) -> tuple[Note, ...]:
    """The note of a launch whose run is not observed, or none."""
    # Another program of the same framework may have a declaration of its own.
    declared = (system.instead(request) if system.instead is not None else None) or system
    if not declared.attaches_by:
        started = f" started by `{request.command.program.name}`" if declared is not system else ""
        return (Note("unobserved", f"not observed live: {system.title}{started} is planned only"),)
    bounds = declared.observed_releases
    if bounds is not None and not release_of(bounds[0]) <= release_of(request.version) < release_of(bounds[1]):
        text = f"not observed live: of {system.title}, runs of {bounds[0]} and later, before {bounds[1]}, are observed"
        return (Note("unobserved", text),)
    return ()
