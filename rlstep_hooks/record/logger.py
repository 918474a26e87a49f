"""What an audit says outside its report: one logger, `rlstep`, the same in every system.

A process that gives the logger a handler of its own decides where its lines go. Otherwise they go to standard error.
"""

from __future__ import annotations

import logging
import sys

NAME = "rlstep"


class _StandardError(logging.Handler):
    """Writes to what standard error is at the time, which a test or a notebook may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(f"{NAME}: {self.format(record)}", file=sys.stderr, flush=True)
        except Exception:  # noqa: BLE001 - what `logging` does for every handler
            self.handleError(record)


def _prepared() -> logging.Logger:
    logger = logging.getLogger(NAME)
    if not logger.handlers:
        logger.addHandler(_StandardError())
        # The root logger of a training process often has handlers, which would print every line a second time.
        logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)
    return logger


logger = _prepared()


def not_evaluated(reason: str) -> None:
    """Say that something is not evaluated, and why."""
    logger.warning("not evaluated: %s", reason)
