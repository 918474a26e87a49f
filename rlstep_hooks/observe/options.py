"""The options of an audit, wherever it is attached: arguments, and the defaults of those that are left out."""

from __future__ import annotations

import math
import os
from typing import Literal, cast, get_args

OnFail = Literal["warn", "stop", "raise"]
"""What happens after an error: it is reported, training ends cleanly, or `StepAuditError` is raised."""

ON_FAIL = "RLSTEP_ON_FAIL"
"""The environment variable with the default of `on_fail`."""

COMPARE = "RLSTEP_COMPARE"
"""The environment variable that says how much is recomputed: "all", or the share of the time that hooks may take, such as "10 %"."""

SHARE = 0.01
"""The share of a run's time that hooks may take where the user asked for none: half of what the audit may cost, because hooks
leave caches cold, which costs about as much as they take."""


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


def share_asked() -> float:
    """The share of the run's time that hooks may take, from RLSTEP_COMPARE; infinite where all is to be recomputed.

    Raises:
        ValueError: The variable says neither "all" nor a share.
    """
    asked = os.environ.get(COMPARE, "").strip().lower()
    if not asked:
        return SHARE
    if asked == "all":
        return math.inf
    try:
        percent = float(asked.removesuffix("%"))
    except ValueError:
        percent = math.nan
    if not asked.endswith("%") or not 0 < percent <= 100:
        raise ValueError(f'{COMPARE} is "all", or a share of the run\'s time such as "10 %", not {asked!r}')
    return percent / 100
