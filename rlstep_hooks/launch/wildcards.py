"""Names and the patterns of shells that they match."""

from __future__ import annotations

from fnmatch import fnmatchcase


def matches(name: str, pattern: str) -> bool:
    """Whether a name matches a pattern, as `fnmatch.fnmatchcase` says it.

    That compiles each pattern at its first use, which takes several times as long as comparing; nearly all patterns of a launch have no
    wildcard, or one `*`.
    """
    head, star, tail = pattern.partition("*")
    if "*" in tail or "?" in pattern or "[" in pattern:
        return fnmatchcase(name, pattern)
    if not star:
        return name == pattern
    return len(name) >= len(head) + len(tail) and name.startswith(head) and name.endswith(tail)
