"""Looks for the name of a mistake that was found already: what fails in that costs the name, and never the finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.logger import logger

if TYPE_CHECKING:
    from collections.abc import Callable


def name_of(look: Callable[[], str]) -> str:
    """What a mistake is called; empty where nothing explains it, or looking fails.

    Args:
        look: Computes what each known mistake would have given, from numbers in whatever form a framework has them.
    """
    try:
        return look()
    except Exception as error:  # noqa: BLE001 - numbers in a form that a known mistake does not expect are wrong all the same
        logger.warning("the cause of wrong numbers could not be looked for: %s", describe(error))
        return ""
