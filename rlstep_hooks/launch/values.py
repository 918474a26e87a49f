"""Words as values, read as Hydra reads them."""

from __future__ import annotations

import math
import re
from typing import Any

_INTEGER = re.compile(r"[+-]?(0|[1-9](_?[0-9])*)")
_FLOAT = re.compile(
    r"[+-]?(((0|[1-9](_?[0-9])*)\.([0-9](_?[0-9])*)?|\.[0-9](_?[0-9])*)([eE][+-]?[0-9](_?[0-9])*)?"
    r"|(0|[1-9](_?[0-9])*)[eE][+-]?[0-9](_?[0-9])*)"
)
_SPECIAL = {"inf": math.inf, "+inf": math.inf, "-inf": -math.inf, "nan": math.nan, "+nan": math.nan, "-nan": math.nan}


def primitive(text: str) -> Any:
    """The value of an unquoted word: null, true, false, a number, or text."""
    lowered = text.lower()
    if lowered == "null":
        return None
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered in _SPECIAL:
        return _SPECIAL[lowered]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
