"""What a user asks of an audit, wherever it is attached: arguments, and what stands for one that is left out."""

from __future__ import annotations

import os
from typing import Literal, cast

OnFail = Literal["warn", "stop", "raise"]
"""What happens after an error: it is reported, training ends cleanly, or `StepAuditError` is raised."""


class LeftOut:
    """Stands for an argument that was not given where None has a meaning of its own."""


LEFT_OUT = LeftOut()


def on_fail_asked(given: OnFail | None) -> OnFail:
    """The argument, else RLSTEP_ON_FAIL, else "warn".

    Raises:
        ValueError: It is none of the three.
    """
    asked = given or os.environ.get("RLSTEP_ON_FAIL") or "warn"
    if asked not in ("warn", "stop", "raise"):
        raise ValueError(f'on_fail is "warn", "stop" or "raise", not {asked!r}')
    return cast("OnFail", asked)
