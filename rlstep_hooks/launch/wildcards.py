"""Names and the patterns of shells that they match."""

from __future__ import annotations

from fnmatch import fnmatchcase


def matches(name: str, pattern: str) -> bool:
    """Whether a name matches a pattern, as `fnmatch.fnmatchcase` says it.

    That compiles each pattern at its first use, which takes several times as long as comparing; nearly all patterns of a launch have no
    wildcard but `*`.
    """
    if "?" in pattern or "[" in pattern:
        return fnmatchcase(name, pattern)
    head, *inner = pattern.split("*")
    if not inner:
        return name == pattern
    *inner, tail = inner
    at, end = len(head), len(name) - len(tail)
    if at > end or not (name.startswith(head) and name.endswith(tail)):
        return False
    for part in inner:  # the first place of each leaves the most for those behind it
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
