"""verl-agent: the lines with which its trainer takes the rows of episodes for those of the loader, in the checkouts of its forks."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import taken
from rlstep_hooks.systems.verl.checkout.beside import ends_early
from rlstep_hooks.systems.verl.checkout.program import below

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import Beside, System
    from rlstep_hooks.systems.verl.checkout.program import Program
    from rlstep_hooks.systems.verl.checkout.run import Run

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


_GIVEN = {
    "gen_batch": "gen_batch",
    "actor_rollout_wg": "self.actor_rollout_wg",
    "envs": "self.envs",
    "is_train": "True",
}
"""What verl-agent's trainer gives to `multi_turn_loop`; a fork may give more."""
_COLLECTOR = "agent_system/multi_turn_rollout/rollout_loop.py"
_LOOPS = frozenset(("vanilla_multi_turn_loop", "dynamic_multi_turn_loop"))
"""Loops over turns that verl-agent has: the second one with `algorithm.filter_groups` alone."""


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
    return ends_early(system, command, folder, given, _MAKES, shortfall=0, also=_with_more)


def _with_more(program: Program, run: Run, values: Mapping[str, object]) -> frozenset[str]:
    """Calls that give the collector of episodes more than verl-agent's trainer does, where it runs none but verl-agent's loops."""
    calls = frozenset(
        ast.unparse(node) for node in ast.walk(run.fit) if isinstance(node, ast.Call) and _collects(node)
    ).difference(_MAKES)
    if not calls:
        return calls
    collector = program.checkout.source(below(program.checkout, _COLLECTOR))
    methods = collector.methods("multi_turn_loop") if collector is not None else []
    names = [
        node.func.attr
        for method in methods
        for node in taken(method, values)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    loops = [name for name in names if name.endswith("_loop")]
    return calls if loops and _LOOPS.issuperset(loops) else frozenset()


def _collects(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "multi_turn_loop":
        return False
    given = {word.arg: ast.unparse(word.value) for word in call.keywords}
    return all(given.get(name) == value for name, value in _GIVEN.items())
