"""Rules: what must hold in a run. One class a rule, found by its code; `catalogue` lists them all.

The catalogue is imported when it is first asked for: `rlstep plan` looks at four rules and does not load the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.catalogue import BY_CODE, HUNDREDS, RANK_RULES, RULES, Progress, Rule

__all__ = ["BY_CODE", "HUNDREDS", "RANK_RULES", "RULES", "Progress", "Rule"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name in __all__:
        from rlstep_hooks.judge.rules import catalogue

        return getattr(catalogue, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
