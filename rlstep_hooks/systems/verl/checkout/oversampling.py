"""The trainer of PRIME's recipe beside a launch, which generates more than it trains as the one that was read does."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import find_checkout, nearest
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.verl.checkout.beside import ends_early

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import Beside, System

_MARKER = "recipe/prime/prime_ray_trainer.py"
_FILTER = "filter_and_downsample"
# verl-recipe 48ea0a7 prime/prime_ray_trainer.py `_create_dataloader`, `fit` and `filter_and_downsample`; with the same lines
# Budcankui/code-r1 recipe/prime/prime_ray_trainer.py:198, 430 and 571.
_OVERSAMPLES = frozenset(
    (
        "int(self.config.data.train_batch_size * self.config.data.oversample_factor)",
        f"batch = self.{_FILTER}(scores, batch)",
    )
)
_KEEPS = "batch.reorder(reorder_index[:int(len(batch) // self.config.data.oversample_factor)])"


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """What the checkout has otherwise, where its trainer generates and filters as the one that was read.

    Args:
        system: The recipe.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: It has other lines that may change the length or the sizes.
    """
    remedy = f"--version {system.version} plans it as {system.title}"
    recipes = nearest(folder, find_checkout(_MARKER, [folder]), "PRIME's recipe", remedy)
    source = recipes.source(_MARKER.partition("/")[2]) if recipes is not None else None
    filters = source.methods(_FILTER) if source is not None else []
    for each in filters[:1]:
        takes = [ast.unparse(node) for node in ast.walk(each) if isinstance(node, ast.Expr)]
        if source is not None and _KEEPS not in takes:
            raise LaunchError(
                f"the trainer beside the launch is not that of {system.title} {system.version}: {_FILTER} keeps other samples"
                f" ({source.at(each.lineno)})",
                remedy=remedy,
            )
    return ends_early(system, command, folder, given, _OVERSAMPLES)
