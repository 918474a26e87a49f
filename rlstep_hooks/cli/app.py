"""The command line's entry: one module per verb, imported when the verb runs.

It uses argparse because `rlstep plan` answers in 100 ms and importing a larger library would take most of that.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from typing import TYPE_CHECKING

from rlstep_hooks.cli.options import VERBS, add_verb

if TYPE_CHECKING:
    from collections.abc import Sequence

_OBJECTS = 50_000
"""Objects that are made before Python looks for circles of them. A plan makes fewer, and looking whenever there are 700 more, as Python
does by itself, takes a twentieth of its time."""
_DESCRIPTION = "A referee for RL post-training. Exit status: 0 pass, 1 findings, 2 the tool could not do it."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with the verb's status.

    Args:
        arguments: The words after `rlstep`; None for those of this process.
    """
    gc.set_threshold(_OBJECTS)
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            status = _status(words)
        finally:
            sys.stdout.flush()  # a closed pipe must raise here, where it is caught
        if arguments is None:
            gc.freeze()  # the process ends here, and need not look for circles among all its objects once more
        sys.exit(status)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The output's reader is gone: exit silently, and keep Python from flushing again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _status(words: list[str]) -> int:
    """Run one verb and return its exit status."""
    cut = words.index("--") if "--" in words else len(words)
    given = parser(*words[:1]).parse_args(words[:cut])
    given.command = words[cut + 1 :]
    status: int = given.verb(given)
    return status


def parser(word: str = "") -> argparse.ArgumentParser:
    """The options of the verb that is asked for; of all verbs where the first word is none. The launch command after `--` is not parsed
    here."""
    top = argparse.ArgumentParser(prog="rlstep", description=_DESCRIPTION, allow_abbrev=False)
    verbs = top.add_subparsers(metavar="VERB", required=True)
    for name in (word,) if word in VERBS else VERBS:
        add_verb(name, verbs)
    return top
