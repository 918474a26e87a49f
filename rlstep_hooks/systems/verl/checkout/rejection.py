"""Forks of verl 0.2 that can reject groups without signal before they train: the lines with which Skywork-OR1 and DeepScaleR do.

Other forks took `trainer.rejection_sample` over and do otherwise with it: some fill a rollout from later batches of the loader, and
some cut what is left. Lines that are not these are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.systems.verl.checkout.beside import ends_early

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import Beside, System

_REJECTS = frozenset(
    (
        # The loader's batch: Skywork-OR1 64e96af verl/trainer/ppo/ray_trainer.py:505.
        "train_batch_size *= self.config.trainer.rejection_sample_multiplier",
        "train_batch_size = int(train_batch_size)",
        # The engine repeats each prompt: rLLM 874daa4 verl/verl/trainer/ppo/ray_trainer.py:608.
        "batch = self.actor_rollout_wg.generate_sequences(batch)",
        # What is left of a rollout: Skywork-OR1 64e96af verl/trainer/ppo/ray_trainer.py:1062-1087, and rLLM 874daa4 :653-670.
        "if not valid_mask.any():",
        "batch = batch[valid_mask]",
        "batch = dataprotoitem_to_dataproto(batch)",
        "if not max_batch_size:",
        "batch = batch[size_mask]",
    )
)


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """Nothing to add where the trainer of the checkout ends as verl 0.2 does, and rejects groups as these forks do.

    Args:
        system: The fork.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: It has other lines that may change the length or the sizes.
    """
    return ends_early(system, command, folder, given, _REJECTS)
