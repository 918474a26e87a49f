"""Patterns of shells, compared with Python's own."""

from __future__ import annotations

from fnmatch import fnmatchcase

from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.launch.wildcards import matches

PIECES = st.lists(st.sampled_from(["a", "b", "ab", ".", "*", "?", "[ab]", "[", "]", "\n"]), max_size=6).map("".join)


@given(PIECES, PIECES)
def test_a_pattern_matches_what_fnmatch_says(name: str, pattern: str) -> None:
    assert matches(name, pattern) is bool(fnmatchcase(name, pattern))
