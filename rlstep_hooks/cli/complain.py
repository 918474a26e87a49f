"""What the command line says on standard error."""

from __future__ import annotations

import sys

from rlstep_hooks.planning.words import printable


def complain(text: object) -> None:
    """Say why something is not done, or what was done beside. The names and texts in it may be anybody's."""
    print(f"rlstep: {printable(str(text))}", file=sys.stderr, flush=True)
