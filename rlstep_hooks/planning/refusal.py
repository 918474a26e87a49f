"""What a framework says when it does not accept a configuration."""

from __future__ import annotations


class PlanError(ValueError):
    """A configuration that its framework refuses, or fails on.

    Attributes:
        message: How the run ends, in the framework's own words.
        when: When the user would see it, for example "after the first rollout".
        fix: The smallest change, with the nearest values that work.
        source: Where the check was read.
    """

    def __init__(self, message: str, *, when: str, fix: str, source: str) -> None:
        super().__init__(f"{message} ({when}); {fix}")
        self.message = message
        self.when = when
        self.fix = fix
        self.source = source
