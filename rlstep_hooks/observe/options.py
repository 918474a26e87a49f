"""The options of an audit, wherever it is attached: arguments, and the defaults of those that are left out."""

from __future__ import annotations

import os
from typing import Literal, cast, get_args

OnFail = Literal["warn", "stop", "raise"]
"""What happens after an error: it is reported, training ends cleanly, or `StepAuditError` is raised."""

ON_FAIL = "RLSTEP_ON_FAIL"
"""The environment variable with the default of `on_fail`."""


class LeftOut:
    """Stands for an argument that was not given where None has a meaning of its own."""


LEFT_OUT = LeftOut()


def on_fail_asked(given: OnFail | None = None) -> OnFail:
    """The argument, else RLSTEP_ON_FAIL, else "warn". Case does not matter.

    Raises:
        ValueError: It is none of the three.
    """
    asked = given or os.environ.get(ON_FAIL) or "warn"
    found = str(asked).strip().lower()
    if found not in get_args(OnFail):
        where = "on_fail" if given else ON_FAIL
        raise ValueError(f'{where} is "warn", "stop" or "raise", not {asked!r}')
    return cast("OnFail", found)
