"""Ray in a rehearsal: a cluster on this machine alone, which leaves nothing in the user's home folder."""

from __future__ import annotations

import functools
import os
import secrets
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def ray_variables(folder: str | Path) -> dict[str, str]:
    """Environment variables of all processes: its files are in this folder, and nothing is reported to anybody.

    Ray writes a token for its cluster to `~/.ray/auth_token` when it starts for the first time on a machine
    (ray/_private/authentication/authentication_token_setup.py:32, 2.60). What a rehearsal writes there goes to the temporary
    folder, where Ray's server does not look; so the cluster of a rehearsal has a token of its own.
    """
    return {
        "RAY_TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # Ray starts a worker for each CPU that it believes in (16) as soon as there is a driver; most would never be used.
        "RAY_prestart_worker_first_driver": "0",
    }


def no_dashboard(ray: Any) -> None:
    """Ray starts eight processes for its dashboard, which take longer to be ready than a run in small does."""
    start = ray.init

    @functools.wraps(start)
    def init(*arguments: Any, **keywords: Any) -> Any:
        if not arguments and "address" not in keywords and "RAY_ADDRESS" not in os.environ:
            keywords.setdefault("include_dashboard", False)
        return start(*arguments, **keywords)

    ray.init = init
