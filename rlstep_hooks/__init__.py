"""A referee for RL post-training that knows each framework's formulas.

Everything is imported when it is first used: `import rlstep_hooks` loads neither torch nor a framework.

PYTEST_DONT_REWRITE: pytest rewrites the assertions of packages that have a plugin, and warns of one that was imported before it,
as this one is under `rlstep run -- pytest`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report, StepAuditError
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.areal.observe.audit import StepAuditAReaL
    from rlstep_hooks.systems.engine.live_plan import plan
    from rlstep_hooks.systems.own_loop.loop import audit
    from rlstep_hooks.systems.rllib.observe.audit import StepAuditRLlib
    from rlstep_hooks.systems.sb3.observe.callback import StepAuditSB3Callback
    from rlstep_hooks.systems.skyrl.observe.audit import StepAuditSkyRL
    from rlstep_hooks.systems.tinker.observe.loops import StepAuditTinker
    from rlstep_hooks.systems.trl.observe.callback import StepAuditCallback
    from rlstep_hooks.systems.trl_ppo_step.observe.audit import StepAuditPPO
    from rlstep_hooks.testing.assertions import assert_schedule
    from rlstep_hooks.version import __version__


_HOMES = {
    "Finding": "rlstep_hooks.planning.finding",
    "Report": "rlstep_hooks.judge.report",
    "Schedule": "rlstep_hooks.planning.schedule",
    "StepAuditAReaL": "rlstep_hooks.systems.areal.observe.audit",
    "StepAuditCallback": "rlstep_hooks.systems.trl.observe.callback",
    "StepAuditError": "rlstep_hooks.judge.report",
    "StepAuditPPO": "rlstep_hooks.systems.trl_ppo_step.observe.audit",
    "StepAuditRLlib": "rlstep_hooks.systems.rllib.observe.audit",
    "StepAuditSB3Callback": "rlstep_hooks.systems.sb3.observe.callback",
    "StepAuditSkyRL": "rlstep_hooks.systems.skyrl.observe.audit",
    "StepAuditTinker": "rlstep_hooks.systems.tinker.observe.loops",
    "__version__": "rlstep_hooks.version",
    "assert_schedule": "rlstep_hooks.testing.assertions",
    "audit": "rlstep_hooks.systems.own_loop.loop",
    "plan": "rlstep_hooks.systems.engine.live_plan",
}

__all__ = [
    "Finding",
    "Report",
    "Schedule",
    "StepAuditAReaL",
    "StepAuditCallback",
    "StepAuditError",
    "StepAuditPPO",
    "StepAuditRLlib",
    "StepAuditSB3Callback",
    "StepAuditSkyRL",
    "StepAuditTinker",
    "__version__",
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
