"""What ends a part of a script before its last statement."""

from __future__ import annotations


class EndedError(Exception):
    """`exit`: the nearest branch that only the run decides on ends here, or the whole script."""


class ReturnedError(Exception):
    """`return`: the nearest branch that only the run decides on ends here, or the function."""


class BrokenError(Exception):
    """`break` outside all conditions."""


class ContinuedError(Exception):
    """`continue` outside all conditions."""
