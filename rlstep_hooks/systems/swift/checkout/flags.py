"""Flags that a copy of ms-swift does not have, with which its `swift rlhf` ends at once.

Its arguments are dataclasses of its own, of TRL and of transformers (swift/arguments 4.6.0, swift/llm/argument 3.9.3). A flag that none
of them has is left over, and what is left over ends the run (swift/pipelines/base.py 4.6.0 `_parse_args`, swift/llm/base.py 3.9.3).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rlstep_hooks.systems.engine.abbreviations import is_flag
from rlstep_hooks.systems.engine.keys import key_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlstep_hooks.launch.checkout import Checkout
    from rlstep_hooks.launch.settings import Setting

_ARGUMENTS = ("arguments", "llm/argument")
"""Where a copy keeps its arguments: ms-swift 4, and ms-swift 3."""
_NEXT = ("rlhf_trainers", "trainers")
"""Where most of the others are."""
_OF_TRANSFORMERS = "trl/keys.json"
"""The fields of TRL's configurations and of transformers' TrainingArguments, release by release."""
_PASSES = "ignore_args_error"
"""A flag with which what is left over is a warning."""


def refused_flags(checkout: Checkout, given: Mapping[str, Setting]) -> dict[str, str]:
    """The flags of a launch that nothing in the copy has, each with the words in which it is refused.

    A flag counts as known where any word in the copy begins with it: the beginning of a flag stands for it, and a field may be put
    together elsewhere. Nothing is said of a copy without its arguments.

    Args:
        checkout: The package `swift` beside the launch.
        given: What the launch sets.
    """
    if _PASSES in given or not any((checkout.package / each).is_dir() for each in _ARGUMENTS):
        return {}
    inherited = key_list(_OF_TRANSFORMERS).keys
    unknown = {
        name
        for name, setting in given.items()
        if is_flag(setting) and name.isidentifier() and not any(known.startswith(name) for known in inherited)
    }
    for text in _texts(checkout):
        unknown = {name for name in unknown if re.search(rf"\b{name}", text) is None}
        if not unknown:
            return {}
    return {name: f"ValueError: remaining_argv: ['{given[name].written.partition('=')[0]}', ...]" for name in unknown}


def _texts(checkout: Checkout) -> Iterator[str]:
    """The texts of the copy's Python files, those with its arguments first: most launches are done with these."""
    package = checkout.package
    first = [package / each for each in (*_ARGUMENTS, *_NEXT)]
    seen = set()
    for folder in (*first, package):
        for path in sorted(folder.rglob("*.py")):
            if path not in seen:
                seen.add(path)
                source = checkout.source(str(path.relative_to(package)))
                yield "" if source is None else source.text
