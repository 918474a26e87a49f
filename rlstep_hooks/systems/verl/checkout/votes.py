"""The trainer of TTRL beside a launch: its lines that let answers vote and train a part of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.systems.verl.checkout.beside import ends_early

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import Beside, System
    from rlstep_hooks.systems.verl.checkout.program import Program
    from rlstep_hooks.systems.verl.checkout.run import Run

# MhmdGaffar/TTRL-RM verl/verl/trainer/ppo/ray_trainer.py:932, 994, 1024 and 1043.
_TRAINS = frozenset(
    (
        "batch = batch.repeat(repeat_times=self.config.actor_rollout_ref.rollout.n, interleave=True)",
        "batch[sorted_indices]",
        "self._select_top_k_per_prompt(batch, self.n_votes_per_prompt, self.n_samples_per_prompt)",
    )
)
_ASKS = "self.config.actor_rollout_ref.rollout.n = self.n_votes_per_prompt"
"""What makes the engine answer each prompt as often as there are votes."""
_TAKES = "selected_indices.extend(range(start, start + n_samples_per_prompt))"
"""What `_select_top_k_per_prompt` takes of the votes of a prompt."""


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """What the checkout has otherwise, where its trainer lets answers vote and trains the first of them, as TTRL's.

    Args:
        system: The fork.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: It has other lines that may change the length or the sizes.
    """
    return ends_early(system, command, folder, given, shortfall=0, also=_known)


def _known(program: Program, run: Run, values: Mapping[str, object]) -> frozenset[str]:
    """The lines of TTRL, where the trainer asks for as many answers and takes as many of them as that does."""
    return _TRAINS if _ASKS in run.source.text and _TAKES in run.source.text else frozenset()
