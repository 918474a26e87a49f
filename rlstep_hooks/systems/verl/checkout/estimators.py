"""The names that a trainer has for estimators of the advantage: `AdvantageEstimator.GRPO` is "grpo" there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlstep_hooks.launch.checkout import Checkout, Source

_ALGORITHMS = "trainer/ppo/core_algos.py"
"""Where they are since 0.4.1; before, the trainer's own file has them."""
_CLASS = re.compile(r"^class AdvantageEstimator\([^\n]*\):\n(?P<body>(?:[ \t][^\n]*\n|\n)+)", re.MULTILINE)
_MEMBER = re.compile(r"^[ \t]+(?P<name>[A-Z][A-Z0-9_]*) = [\"'](?P<value>[^\"'\n]+)[\"']", re.MULTILINE)


def estimators_in(checkout: Checkout, trainer: Source) -> dict[str, str]:
    """The value of each name, as conditions of the trainer write it ("AdvantageEstimator.GRPO").

    Args:
        checkout: The package.
        trainer: The file of the trainer.
    """
    files = (checkout.source(_ALGORITHMS), trainer)
    bodies = [found["body"] for file in files if file is not None for found in _CLASS.finditer(file.text)]
    return {f"AdvantageEstimator.{each['name']}": each["value"] for body in bodies for each in _MEMBER.finditer(body)}
