"""A flight recorder and a referee for RL post-training.

Everything is imported when it is first used: `import rlstep_hooks` loads neither torch nor a framework.

PYTEST_DONT_REWRITE: pytest rewrites the assertions of packages that have a plugin, and warns of one that was imported before it,
as this one is under `rlstep run -- pytest`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlstep_hooks.assertions import assert_schedule
    from rlstep_hooks.frameworks.classic.loop import audit
    from rlstep_hooks.frameworks.sb3.callback import StepAuditSB3Callback
    from rlstep_hooks.frameworks.trl.callback import StepAuditCallback
    from rlstep_hooks.frameworks.trl_ppo_step.audit import StepAuditPPO
    from rlstep_hooks.planning import plan
    from rlstep_hooks.report import Finding, Report, StepAuditError
    from rlstep_hooks.schedule import Schedule

__version__ = "0.1.0"

_HOMES = {
    "Finding": "rlstep_hooks.report",
    "Report": "rlstep_hooks.report",
    "Schedule": "rlstep_hooks.schedule",
    "StepAuditCallback": "rlstep_hooks.frameworks.trl.callback",
    "StepAuditError": "rlstep_hooks.report",
    "StepAuditPPO": "rlstep_hooks.frameworks.trl_ppo_step.audit",
    "StepAuditSB3Callback": "rlstep_hooks.frameworks.sb3.callback",
    "assert_schedule": "rlstep_hooks.assertions",
    "audit": "rlstep_hooks.frameworks.classic.loop",
    "plan": "rlstep_hooks.planning",
}

__all__ = [
    "Finding",
    "Report",
    "Schedule",
    "StepAuditCallback",
    "StepAuditError",
    "StepAuditPPO",
    "StepAuditSB3Callback",
    "assert_schedule",
    "audit",
    "plan",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """All public names, imported or not."""
    return sorted({*globals(), *__all__})
