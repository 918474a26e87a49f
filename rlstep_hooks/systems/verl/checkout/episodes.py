"""verl-agent: the lines with which its trainer takes the rows of episodes for those of the loader, in the checkouts of its forks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.systems.verl.checkout.beside import ends_early

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import Beside, System

_EPISODES = "gen_batch=gen_batch, actor_rollout_wg=self.actor_rollout_wg, envs=self.envs, is_train=True"
_MAKES = frozenset(
    (
        f"self.traj_collector.multi_turn_loop({_EPISODES})",
        f"self.traj_collector.multi_turn_loop({_EPISODES}, epoch=epoch)",
        # Rows are copied until they divide: agent_system/multi_turn_rollout/utils.py `adjust_batch`.
        "adjust_batch(self.config, batch)",
        "adjust_batch(self.config, batch, mode='copy')",
    )
)


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """What the checkout has otherwise, where its trainer takes episodes as verl-agent's does and leaves no rollout out.

    Args:
        system: The fork.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: It ends elsewhere, or has other lines that may change the length or the sizes.
    """
    return ends_early(system, command, folder, given, _MAKES, shortfall=0)
