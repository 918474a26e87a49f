"""The name of release 0.1 for the console's views; today it is `rlstep_hooks.show.console`."""

from rlstep_hooks.show.console import ConsoleListener, LiveListener

__all__ = ["ConsoleListener", "LiveListener"]
