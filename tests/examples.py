"""How much of a property the fast tests try: the same few examples in every run. `nox -s fuzz` tries far more."""

from __future__ import annotations

import os

from hypothesis import settings

THOROUGH = bool(os.environ.get("RLSTEP_EXAMPLES"))
"""Whether `nox -s fuzz` asks: every line of a record is damaged then, and each property gets so many random examples."""

FEW = settings(max_examples=settings.default.max_examples // 3)
"""For properties that are tried for many pairs of frameworks, each by itself."""

MANY = settings(max_examples=4 * settings.default.max_examples)
"""For properties of texts, whose examples are cheap and of which most are alike."""
