"""The registered verl hook: what verl loads in its driver and in every worker.

verl 0.9 and later load this module through the entry point `verl.plugins`; 0.6 and later load `rlstep_hooks.verl` when
`VERL_USE_EXTERNAL_MODULES` names it. An audit is asked for by `RLSTEP_DIR` in the environment, or by that name. Otherwise
nothing happens here, and nothing but the standard library is imported.

verl swallows whatever a plugin raises while it is loaded (verl 0.9.1 `__init__.py:75`), so this module raises nothing itself, and every
process that attaches says so in a file of its own.
"""

from __future__ import annotations

import os

from rlstep_hooks.systems.verl.observe.environment import FOLDER

MODULE = "rlstep_hooks.verl"
"""The name for `VERL_USE_EXTERNAL_MODULES` that asks for an audit."""


def asked() -> bool:
    """Whether somebody asked for an audit of this process."""
    return bool(os.environ.get(FOLDER)) or MODULE in os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")


def activate() -> None:
    """Attach the audit to this process if it was asked for. A second call does nothing."""
    if not asked():
        return
    if "://" in os.environ.get(FOLDER, ""):
        from rlstep_hooks.record.ledger import NO_FOLDER
        from rlstep_hooks.record.logger import not_evaluated

        not_evaluated(f"{FOLDER}={os.environ[FOLDER]}: {NO_FOLDER}")
        return
    # Workers that Ray starts on this machine inherit the environment, but may have another working folder.
    os.environ[FOLDER] = os.path.abspath(os.environ.get(FOLDER) or "rlstep")
    from rlstep_hooks.systems.verl.observe.attach import attach

    attach()


def imported(module: object) -> None:
    """verl was imported under `rlstep run`: 0.6 and later; from 0.9 on its entry point asks too, and the second asks in vain."""
    activate()


activate()
