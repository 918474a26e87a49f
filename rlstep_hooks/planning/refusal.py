"""A framework's refusal of a configuration."""

from __future__ import annotations


class PlanError(ValueError):
    """A configuration that its framework refuses or fails on.

    Attributes:
        message: The framework's own error message.
        when: When the user would see it, for example "after the first rollout".
        fix: The smallest change that helps, with the nearest working values.
        source: Where the check was found.
    """

    def __init__(self, message: str, *, when: str, fix: str, source: str) -> None:
        super().__init__(f"{message} ({when}); {fix}")
        self.message = message
        self.when = when
        self.fix = fix
        self.source = source
